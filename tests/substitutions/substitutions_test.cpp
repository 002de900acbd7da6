// The stages of `tern-bench rules`, each for itself.
#include <fmt/format.h>

#include <cmath>
#include <regex>
#include <set>

#include "catch.h"
#include "compile/trace.h"
#include "files.h"
#include "message.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "paths.h"
#include "substitutions/enumerate.h"
#include "substitutions/fingerprint.h"
#include "substitutions/firing.h"
#include "substitutions/search.h"
#include "tensor/context.h"
#include "text/data_error.h"

using namespace tern;
using namespace tern::substitutions;

namespace {

/// The sides of a rule as text, `left => right`.
Rule rule_of(Terms& terms, const std::string& sides, const char* verdict = "sound") {
  return read_rules(sides + " ; " + verdict, "rules", terms).at(0);
}
Id term_of(Terms& terms, const std::string& text) { return rule_of(terms, text + " => " + text).left; }

Judgement judged(const std::string& sides) {
  static const Judge judge;
  Terms terms;
  const Rule rule = rule_of(terms, sides);
  return judge(terms, rule.left, rule.right);
}

std::vector<std::string> texts(const Terms& terms, const std::vector<Rule>& rules) {
  std::vector<std::string> result;
  for (const Rule& rule : rules)
    result.push_back(fmt::format("{} => {} {}", terms.text(rule.left), terms.text(rule.right), name(rule.verdict)));
  return result;
}

/// A matrix of a judge's text: a number, or [rows], as a batch of one.
Tensor matrix(const std::string& text, DType dtype) {
  std::vector<float> values;
  std::int64_t rows = 1;
  for (std::size_t at = text[0] == '['; at < text.size(); ++at) {
    std::size_t size = 0;
    if (text[at] == ';') ++rows, ++at;
    values.push_back(static_cast<float>(std::stod(text.substr(at), &size)));
    at += size;
    if (at < text.size() && text[at] == ';') --at;
  }
  return cast(Tensor::from(values, {1, rows, static_cast<std::int64_t>(values.size()) / rows}), dtype);
}

/// True if the inputs that a rejection names make the two sides as different as it says.
bool shows(const Terms& terms, const Rule& rule, const std::string& reason) {
  std::smatch found;
  std::array<Type, input_count> types;
  if (reason.find(" is ") != std::string::npos) {
    const std::regex shape("([abcvw]) is (\\d+) x (\\d+)");
    for (std::sregex_iterator at(reason.begin(), reason.end(), shape), end; at != end; ++at)
      types[std::string("abcvw").find((*at)[1].str())] = {std::stoll((*at)[2]), std::stoll((*at)[3])};
    return terms.type(rule.left, types) && terms.type(rule.left, types) != terms.type(rule.right, types);
  }
  const DType dtype = reason.starts_with("f32") ? DType::f32 : reason.starts_with("bf16") ? DType::bf16 : DType::f16;
  std::array<Tensor, input_count> inputs, in_f64;
  const std::regex input(" ([abcvw]) = (\\[[^\\]]*\\]|[^,:]*)"), number(" s = ([^,:]*)"), place("in row (\\d+), column (\\d+)");
  for (std::sregex_iterator at(reason.begin(), reason.end(), input), end; at != end; ++at) {
    const std::size_t index = std::string("abcvw").find((*at)[1].str());
    inputs[index] = matrix((*at)[2], dtype);
    in_f64[index] = cast(inputs[index], DType::f64);
  }
  const double s = std::regex_search(reason, found, number) ? std::stod(found[1]) : 0;
  const bool has_place = std::regex_search(reason, found, place);
  const std::int64_t row = has_place ? std::stoll(found[1]) : 0, column = has_place ? std::stoll(found[2]) : 0;
  const auto value = [&](Id id, const auto& of, DType low) {
    const Tensor result = cast(Judge::compute(terms, id, of, low, s), DType::f64);
    return result.to_vector<double>().at(static_cast<std::size_t>(row * result.size(2) + column));
  };
  const double left = value(rule.left, inputs, dtype), right = value(rule.right, inputs, dtype),
               exact = value(rule.left, in_f64, DType::f64);
  if (std::isnan(left) || std::isnan(right)) return std::isnan(left) != std::isnan(right);
  if (std::isinf(left) || std::isinf(right)) return left != right;
  return std::abs(right - exact) > 2 * std::abs(left - exact);
}

/// The program of a function of two matrices.
compiler::Program traced(const std::function<Tensor(const Tensor&, const Tensor&)>& f) {
  const NoGrad unrecorded;
  compiler::Trace trace({full({5, 3}, 1), full({5, 3}, 2)}, cpu, compiler::Grouping::none);
  return trace.finish({f(trace.inputs()[0], trace.inputs()[1])});
}

}  // namespace

TEST_CASE("Equal terms are one, and are read as they are written") {
  Terms terms;
  for (const char* text : {"(add a (exp b))", "(matmul (transpose a) (scale s b))", "(scale -0.25 (sum (mul a w)))", "(max v (maxr c))"})
    CHECK(terms.text(term_of(terms, text)) == text);
  CHECK(term_of(terms, "(mul (exp b) a)") == term_of(terms, "(mul a (exp b))"));
  CHECK(term_of(terms, "(sub b a)") != term_of(terms, "(sub a b)"));
  CHECK(term_of(terms, "(scale 2 a)") != term_of(terms, "(scale s a)"));
  CHECK(terms.ops(term_of(terms, "(div (exp a) (sum (exp a)))")) == 3);
  // Operands have one order, whatever came before them.
  Terms others;
  term_of(others, "(log a)"), term_of(others, "(exp b)");
  CHECK(others.text(term_of(others, "(max (log a) (exp b))")) == terms.text(term_of(terms, "(max (exp b) (log a))")));
}

TEST_CASE("Every graph of two ops is enumerated once") {
  Terms terms;
  const Enumeration all = enumerate(terms, 2, 3);
  // Its names in all orders give the same text for each renaming: the least of them.
  std::set<std::string> graphs;
  for (Id id = 0; id < all.begin.back(); ++id) {
    std::string least;
    for (std::string names : {"abc", "acb", "bac", "bca", "cab", "cba"}) {
      std::string text = terms.text(id);
      for (std::size_t i = 0; i < text.size(); ++i)
        if ((i == 0 || text[i - 1] == ' ') && (i + 1 == text.size() || text[i + 1] == ' ' || text[i + 1] == ')') && text[i] >= 'a' &&
            text[i] <= 'c')
          text[i] = names[static_cast<std::size_t>(text[i] - 'a')];
      text = terms.text(term_of(terms, text));
      if (least.empty() || text < least) least = text;
    }
    graphs.insert(least);
  }
  CHECK(terms.size() == all.begin.back());  // closed under renaming
  CHECK(graphs.size() == all.graphs);
  for (const char* text :
       {"(add a (add b c))", "(mul v (sub a w))", "(exp (concat a a))", "(split1 (transpose a))", "(matmul (widen a) (widen a))"})
    CHECK(term_of(terms, text) < all.begin.back());
  for (const char* text : {"(add a (widen b))", "(matmul v a)", "(split0 v)", "(add (mul a b) (mul c v))"})
    CHECK(term_of(terms, text) >= all.begin.back());
}

TEST_CASE("Graphs of three ops share parts") {
  Terms terms;
  const Enumeration all = enumerate(terms, 3, 1);
  for (const char* text :
       {"(div (exp a) (sum (exp a)))", "(add (exp w) (log w))", "(sub (relu a) (neg (relu a)))", "(exp (exp (exp v)))"}) {
    INFO(text);
    CHECK(term_of(terms, text) < all.begin.back());
  }
  CHECK(term_of(terms, "(add (neg a) (log (exp a)))") >= all.begin.back());  // four
}

TEST_CASE("Fingerprints are equal for what is equal in a field") {
  Terms terms;
  const auto is_candidate = [&](const std::string& sides, int fields = 2) {
    const Rule rule = rule_of(terms, sides);
    return fingerprint(terms, rule.left, fields) == fingerprint(terms, rule.right, fields);
  };
  for (const char* sides :
       {"(exp (add a b)) => (mul (exp a) (exp b))",
        "(div (exp (sub a (maxr a))) (sum (exp (sub a (maxr a))))) => (div (exp a) (sum (exp a)))", "(sqrt (mul a a)) => a",
        "(mul (sqrt a) (sqrt b)) => (sqrt (mul a b))", "(div a (sqrt b)) => (mul a (rsqrt b))", "(maxr (concat a b)) => (maxr (max a b))",
        "(relu (max a b)) => (max (relu a) (relu b))", "(log (transpose a)) => (transpose (log a))",
        "(matmul a (add b c)) => (add (matmul a b) (matmul a c))", "(scale 0.5 (scale 2 a)) => a", "(split1 (concat a b)) => b",
        "(add a w) => (transpose (add (transpose a) (transpose w)))", "(exp (exp (add a b))) => (exp (mul (exp a) (exp b)))"}) {
    INFO(sides);
    CHECK(is_candidate(sides));
  }
  for (const char* sides :
       {"(log (exp a)) => a", "(relu a) => a", "(max (exp a) (exp b)) => (exp (max a b))", "(widen a) => a", "(sub a b) => (sub b a)",
        "(scale s a) => (scale 2 a)", "(relu (maxr a)) => (maxr a)", "(sum a) => (sum (transpose a))", "(matmul a b) => (matmul b a)",
        "(sqrt a) => (log a)", "(split0 a) => (split1 a)", "(exp a) => (exp (neg a))"}) {
    INFO(sides);
    CHECK_FALSE(is_candidate(sides));
  }
  // The first prime is 0 in its own field alone.
  CHECK(is_candidate("(scale 2147483579 a) => (scale 0 a)", 1));
  CHECK_FALSE(is_candidate("(scale 2147483579 a) => (scale 0 a)"));
  // All at once are as each alone.
  Terms small;
  const Enumeration all = enumerate(small, 2, 2);
  const auto prints = fingerprints(small, all.begin[2]);
  for (Id id = 0; id < small.size(); id += 41) CHECK(prints[id] == fingerprint(small, id));
}

TEST_CASE("The judge tells equal bits, small errors and the rest") {
  const std::map<Verdict, std::vector<const char*>> wanted = {
      {Verdict::exact,
       {"(neg (neg a)) => a", "(narrow (exp (widen a))) => (exp a)", "(max a a) => a", "(add b (neg a)) => (sub b a)",
        "(scale -1 a) => (neg a)", "(transpose (add (transpose a) (transpose b))) => (add a b)", "(split0 (concat a b)) => a",
        "(mul v (neg a)) => (mul (neg v) a)", "(sum v) => v", "(narrow (matmul (widen a) (widen b))) => (matmul a b)"}},
      {Verdict::sound,
       {"(neg (sub a b)) => (sub b a)", "(div a (sqrt b)) => (mul a (rsqrt b))", "(relu (max a b)) => (max (relu a) (relu b))"}}};
  for (const auto& [verdict, rules] : wanted)
    for (const char* sides : rules) {
      INFO(sides);
      CHECK(judged(sides).verdict == verdict);
    }
  const double error = judged("(div a (sqrt b)) => (mul a (rsqrt b))").error;
  CHECK((error > 0.5 && error < 3));
  const std::map<std::string, std::string> reasons = {
      {"(sub a a) => (scale 0 (relu (exp (neg (mul a a)))))", "left nan, right 0"},  // inf and NaN alone show it
      {"(scale s a) => (scale -3 a)", "s = 0.3"},                                    // and the second number
      {"(add a (scale 0.001 (scale 0 b))) => a", "left nan"},
      {"(narrow (mul (widen a) (scale 70000 (widen b)))) => (mul a (scale 70000 b))", "f16"},  // equal in f32, and sound in bf16
      {"(sum a) => (maxr a)", "in row"},                                                       // equal for one element
      {"(add a (transpose b)) => (add a b)", "a is 2 x 4, b is 4 x 2: left 2 x 4, right none"},
      {"(transpose a) => a", "a is 2 x 4: left 4 x 2, right 2 x 4"},
      {"(sub (add a b) a) => b", "left 0, right"}};
  for (const auto& [sides, part] : reasons) {
    const Judgement found = judged(sides);
    INFO(sides << ": " << found.reason);
    CHECK(found.verdict == Verdict::rejected);
    CHECK(contains(found.reason, part));
  }
}

TEST_CASE("A hundred wrong rules are rejected, each with an input that shows it") {
  Terms terms;
  const std::string file = test::source_directory + std::string("/tests/substitutions/wrong.rules");
  const std::vector<Rule> rules = read_rules(test::slurp(file), file, terms);
  CHECK(rules.size() == 100);
  const Judge judge;
  for (const Rule& rule : rules) {
    const Judgement found = judge(terms, rule.left, rule.right);
    INFO(text_of(terms, rule) << ": " << found.reason);
    CHECK(found.verdict == Verdict::rejected);
    CHECK(shows(terms, rule, found.reason));
  }
}

TEST_CASE("Renamings and consequences of rules are pruned") {
  Terms terms;
  std::vector<Pair> pairs;
  for (const char* sides :
       {"(neg (neg a)) => a", "(neg (neg b)) => b", "(exp (neg (neg a))) => (exp a)", "(sub (neg (neg b)) (neg (neg a))) => (sub b a)",
        "(neg (neg v)) => v", "(max (max a b) a) => (max a b)", "(max (max (log a) c) (log a)) => (max c (log a))",
        "(transpose (transpose (widen a))) => (widen a)", "(transpose (transpose a)) => a", "(sum (neg (neg (neg a)))) => (neg (sum a))",
        "(mul a (sum v)) => (mul a v)", "(mul a (sum (exp b))) => (mul a (exp b))"}) {
    const Rule rule = rule_of(terms, sides);
    pairs.push_back({rule.left, rule.right, {Verdict::exact, 0, ""}});
  }
  pairs.push_back({term_of(terms, "(exp (sub a a))"), term_of(terms, "(exp a)"), {Verdict::rejected, 0, "wrong"}});
  // Inputs of rules are not of f32, and v is a column, so that rules for others stay; so does what costs less than what the others make of
  // it.
  CHECK(texts(terms, prune(terms, pairs)) ==
        std::vector<std::string>{"(transpose (transpose a)) => a exact", "(neg (neg a)) => a exact", "(max a (max a b)) => (max a b) exact",
                                 "(mul a (sum v)) => (mul a v) exact", "(transpose (transpose (widen a))) => (widen a) exact",
                                 "(mul a (sum (exp b))) => (mul a (exp b)) exact", "(sum (neg (neg (neg a)))) => (neg (sum a)) exact"});
}

TEST_CASE("The funnel of two ops") {
  Terms terms;
  const Funnel found = search(terms, 2, 3);
  CHECK(found.equal >= found.count(Verdict::exact) + found.count(Verdict::sound));
  CHECK(found.pairs.size() == found.count(Verdict::exact) + found.count(Verdict::sound) + found.count(Verdict::rejected));
  const std::vector<std::string> kept = texts(terms, found.kept);
  CHECK((kept.size() > 100 && kept.size() < 200));
  const auto has = [&](const char* text) { return std::find(kept.begin(), kept.end(), text) != kept.end(); };
  for (const char* text : {"(neg (neg a)) => a exact", "(div b (sqrt a)) => (mul b (rsqrt a)) sound", "(split0 (concat a b)) => a exact",
                           "(neg (sub a b)) => (sub b a) sound", "(transpose (transpose a)) => a exact"}) {
    INFO(text);
    CHECK(has(text));
  }
  for (const Rule& rule : found.kept) {
    CHECK(fingerprint(terms, rule.left) == rule.fingerprint);
    CHECK(terms.cost(rule.right) < terms.cost(rule.left));
    CHECK((terms.inputs(rule.right) & ~terms.inputs(rule.left)) == 0);
  }
  CHECK(std::any_of(found.pairs.begin(), found.pairs.end(), [&](const Pair& pair) {
    return pair.judgement.verdict == Verdict::rejected && terms.text(pair.left) == "(div (sqrt a) a)" &&
           terms.text(pair.right) == "(rsqrt a)";
  }));
}

TEST_CASE("Rules fire where a program has their kernels and nothing else reads between") {
  Terms terms;
  const std::vector<Rule> rules = read_rules(
      "(sum (neg a)) => (neg (sum a)) ; sound\n(scale s (scale s a)) => (scale s a) ; sound\n"
      "(transpose (exp (transpose a))) => (exp a) ; exact\n(widen (neg a)) => (neg (widen a)) ; exact\n",
      "rules", terms);
  const Firing firing(terms, rules, DType::f32);
  for (std::size_t i = 0; i < rules.size(); ++i) CHECK(firing.changes_kernels(i) == (i < 2));
  using Counts = std::vector<std::size_t>;
  CHECK(firing.count(traced([](const Tensor& x, const Tensor&) { return sum(neg(x), {-1}, true); })) == Counts{1, 0, 0, 0});
  CHECK(firing.count(traced([](const Tensor& x, const Tensor& y) { return sum(neg(x), {-1}, true) + sum(neg(y) * x, {-1}, true); })) ==
        Counts{1, 0, 0, 0});
  CHECK(firing.count(traced([](const Tensor& x, const Tensor&) {
    const Tensor y = neg(x);
    return y * sum(y, {-1}, true);
  })) == Counts{0, 0, 0, 0});
  CHECK(firing.count(traced([](const Tensor& x, const Tensor&) { return x * 0.3 * 0.3; })) == Counts{0, 1, 0, 0});
  CHECK(firing.count(traced([](const Tensor& x, const Tensor&) { return x * 0.3 * 0.4; })) == Counts{0, 0, 0, 0});
}

TEST_CASE("What is no rule is refused with its line") {
  const std::map<std::string, std::string> refused = {
      {"\n(neg a => a ; exact", "f:2: expected ) but got =>: write a rule as (neg (neg a)) => a ; exact"},
      {"a => a", "expected ; but got the end of the line"},
      {"a => a ; maybe", "expected exact or sound but got maybe"},
      {"(nag a) => a ; exact", "expected an op but got nag"},
      {"(a b) => a ; exact", "expected an op but got a"},
      {"d => a ; exact", "expected an input (a, b, c, v, w) or ( but got d"},
      {"(add a) => a ; exact", "expected an input (a, b, c, v, w) or ( but got )"},
      {"a => b ; exact", "expected a right side of the left one's inputs but got others"},
      {"a => (scale s a) ; exact", "expected a right side of the left one's inputs but got others"},
      {"(scale inf a) => a ; exact", "expected a number or s but got inf"},
      {"(scale 1e999 a) => a ; exact", "expected a number or s but got 1e999"},
      {"a => a ; exact ; fingerprint xyz ; error 0", "expected a fingerprint in hexadecimal digits but got xyz"},
      {"a => a ; exact ; fingerprint 12 ; error nan", "expected the largest error but got nan"},
      {"a => a ; exact ; fingerprint 12 ; error 0 0", "expected the end of the line but got 0"},
      {"(concat (concat (concat (concat (concat a a) a) a) a) a) => a ; exact", "expected at most 4 times concat but got more"},
      {"(neg (neg a)) => a ; exact)", "expected ; but got )"}};
  for (const auto& [text, part] : refused) {
    Terms terms;
    INFO(text);
    CHECK(contains(message_of<text::DataError>([&, &of = text] { read_rules(of, "f", terms); }), part));
  }
  std::string deep = "a", long_line(10'001, '#');
  for (int i = 0; i < 65; ++i) deep = "(neg " + deep + ")";
  Terms terms;
  CHECK(contains(message_of<text::DataError>([&] { read_rules(deep + " => a ; exact", "f", terms); }), "at most 64 ops"));
  CHECK(contains(message_of<text::DataError>([&] { read_rules(long_line, "f", terms); }), "at most 10000 bytes"));
  CHECK(read_rules("# a comment\n\n  (neg a) => (neg a) ; exact # and another\r\n", "f", terms).at(0).line == 3);
}
