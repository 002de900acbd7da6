// The tuner: trees, what they see of a schedule, mutations, and the search, whose clock is a formula here.
#include "loops/tune.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "catch.h"
#include "compile/generated.h"
#include "files.h"
#include "loops/code.h"
#include "loops/counts.h"
#include "paths.h"
#include "schedule_text.h"
#include "skip.h"

using namespace study::loops;
using namespace study::loops::test;
using tern::contains, tern::message_of;

namespace {

const std::vector<std::int64_t> rows_sizes = {64, 512};
const std::string rows_schedule = "split c by 4, 4 -> c, u, v\npart m, s by u, v\nvectorise v\nunroll u\n";

double value_of(feature::Feature f, const std::string& kernel_name, const std::string& text) {
  const Program plain = kernel(kernel_name, usual_sizes(kernel_name));
  const std::vector<double> all = features(scheduled(plain, text), statements_run(plain));
  REQUIRE(all.size() == feature::count);
  return all[f];
}

/// A time that the features decide: fewer steps and a shorter chain are faster.
double formula(const Program& p, double work) {
  const std::vector<double> x = features(p, work);
  return std::exp2(x[feature::steps] + 0.5 * x[feature::chain] + 0.25 * x[feature::loop_steps]);
}
/// Measures by the formula.
struct Clock {
  double work;
  int calls = 0;
  std::vector<std::string> asked;
  std::vector<std::optional<double>> operator()(const std::vector<Candidate>& candidates) {
    ++calls;
    std::vector<std::optional<double>> ms;
    for (const Candidate& c : candidates) asked.push_back(to_text(c.lines)), ms.push_back(formula(c.program, work));
    return ms;
  }
};
Clock rows_clock() { return {statements_run(kernel("softmax", rows_sizes))}; }

Tuned search(Clock& clock, const std::vector<Timed>& database, const TuneOptions& options = {}) {
  return tune("softmax", rows_sizes, lines_of(rows_schedule), database, [&](const auto& all) { return clock(all); }, options);
}

}  // namespace

TEST_CASE("Boosted trees fit a function that they know, also where they have not seen it") {
  Random random(3);
  const auto number = [&] { return static_cast<double>(random() % 1000) / 1000; };
  const auto function = [](const std::vector<double>& x) { return 3 * (x[0] > 0.4) + 2 * x[1] - 4 * (x[2] > 0.5) * x[1]; };
  std::vector<std::vector<double>> rows;
  std::vector<double> targets;
  for (int i = 0; i < 1000; ++i) {
    rows.push_back({number(), number(), number(), number()});
    targets.push_back(function(rows.back()));
  }
  const Trees trees(rows, targets);
  double squares = 0, spread = 0;
  for (int i = 0; i < 500; ++i) {
    const std::vector<double> x = {number(), number(), number(), number()};
    squares += std::pow(trees.predict(x) - function(x), 2);
    spread += std::pow(1.5 - function(x), 2);
  }
  CHECK(squares < 0.01 * spread);
  CHECK(Trees().predict(rows[0]) == 0);
  CHECK(Trees({{1, 2}, {2, 1}}, {5, 7}).predict(std::vector<double>{1, 1}) == Approx(6));  // too few to split
}

TEST_CASE("A feature of a schedule moves with what it counts") {
  struct Pair {
    feature::Feature feature;
    const char *kernel, *less, *more;
  };
  for (const Pair& x :
       {Pair{feature::steps, "gelu", "split i by 16 -> i, v\nvectorise v", "split i by 4 -> i, v\nvectorise v"},
        {feature::slow_functions, "gelu", "split i by 16 -> i, v\nvectorise v", "split i by 2 -> i, v\nvectorise v"},
        {feature::vector_width, "gelu", "split i by 4 -> i, v\nvectorise v", "split i by 16 -> i, v\nvectorise v"},
        {feature::statements, "gelu", "split i by 64 -> i, v", "split i by 60 -> i, v\nsplit v by 16 -> v, w"},
        {feature::guards, "gelu", "split i by 64 -> i, v", "split i by 60 -> i, v"},
        {feature::code, "gelu", "split i by 4 -> i, v", "split i by 4 -> i, v\nunroll v"},
        {feature::threads, "gelu", "split i by 4 -> i, v", "split i by 4 -> i, v\nbind v thread"},
        {feature::blocks_or_cores, "gelu", "split i by 4 -> i, v", "split i by 4 -> i, v\nbind i cores"},
        {feature::steps_a_thread, "gelu", "split i by 64 -> i, v\nbind i block, v thread", "split i by 64 -> i, v\nbind i block"},
        {feature::chain, "softmax", "split c by 16 -> c, v\npart s, m by v", ""},
        {feature::loop_steps, "softmax", "at c compute e", ""},
        {feature::shared_bytes, "softmax", "", "keep e in shared"},
        {feature::register_bytes, "softmax", "", "keep x in registers at r"},
        {feature::barriers, "softmax", "bind r block", "split c by 32 -> c, t\npart m, s by t in shared\nbind r block, t thread"},
        {feature::contiguous_reads, "gelu", "split i by 16 -> i, v\nvectorise v", "split i by 4 -> i, v\nvectorise v"},
        {feature::strided_reads, "matmul", "reorder i, k, j", ""},
        {feature::by_compiler, "matmul", "", "reorder i, k, j"},
        {feature::stores, "matmul", "", "reorder i, k, j"},
        {feature::lines_beyond_l1, "matmul", "split j by 32 -> jo, j\nsplit k by 64 -> ko, k\nreorder jo, ko, i, k, j", "reorder i, k, j"},
        {feature::lines_beyond_l2, "matmul", "split j by 32 -> jo, j\nsplit k by 128 -> ko, k\nreorder jo, ko, i, k, j", ""},
        {feature::nests, "matmul", "keep c in registers at j", ""},
        {feature::scattered_stores, "transpose",
         "split c by 8 -> co, c\nreorder co, r, c\nsplit r by 8 -> ro, r\nreorder ro, c, r\nvectorise r",
         "split c by 8 -> c, v\nvectorise v"},
        {feature::uncoalesced, "transpose", "bind r block", "bind r block\nsplit c by 32 -> c, t\nbind t thread"},
        {feature::choices, "softmax", "split c by 16 -> c, v\npart m, s by v\nvectorise v",
         "split c by 32 -> c, v\npart m, s by v\nvectorise v"},
        {feature::uniform_reads, "softmax", "split c by 64 -> c, v", "keep s in shared\nsplit c by 64 -> c, v"},
        {feature::arithmetic, "matmul", "split j by 16 -> j, v\nreorder i, k, j, v\nvectorise v", ""},
        {feature::cycles, "matmul", "split j by 16 -> j, v\nreorder i, k, j, v\nvectorise v", ""},
        {feature::guards, "gelu", "split i by 60, 16 -> i, u, v\nvectorise v", "split i by 60, 3 -> i, u, v"},
        {feature::steps, "softmax", "split c by 16 -> c, v\npart m, s by v\nvectorise v",
         "split c by 60, 16 -> c, u, v\npart m, s by v\nvectorise v"},
        {feature::chain, "softmax", "split c by 2, 16 -> c, u, v\npart m, s by u, v\nvectorise v",
         "split c by 2, 16 -> c, u, v\npart m, s by v\nvectorise v"},
        {feature::inner_extent, "softmax", "split c by 4 -> c, v", ""}}) {
    INFO(x.feature << " " << x.kernel);
    CHECK(value_of(x.feature, x.kernel, x.less) < value_of(x.feature, x.kernel, x.more));
  }
  // A guard that holds for a part of a vector leaves its steps to the compiler, whose vectors have 8 elements.
  const auto steps = [](std::int64_t columns) {
    const Program plain = kernel("softmax", {8, columns});
    return features(scheduled(plain, "split c by 2, 16 -> c, u, v\npart m, s by v\nvectorise v"), statements_run(plain))[feature::steps];
  };
  CHECK(steps(1000) > 0.8 + steps(1008));
  // A rounded-up tile's steps, of the kernel's: 2^23 is no multiple of 60.
  CHECK(value_of(feature::statements, "gelu", "") == Approx(0).margin(1e-5));
  CHECK(value_of(feature::bytes, "gelu", "") == Approx(26).margin(1e-5));
}

TEST_CASE("Rank correlation is that of ranks, with ties at their mean") {
  CHECK(spearman({1, 2, 3, 4}, {10, 20, 30, 1e9}) == Approx(1));
  CHECK(spearman({1, 2, 3, 4}, {4, 3, 2, 1}) == Approx(-1));
  CHECK(spearman({1, 2, 2, 3}, {1, 2, 3, 4}) == Approx(0.9486833));
  CHECK(spearman({1, 1}, {1, 2}) == 0);
}

TEST_CASE("The model ranks schedules of sizes, and of a kernel, that it was not fitted to") {
  std::vector<Example> examples;
  for (const char* name : {"softmax", "rms_norm"})
    for (const std::vector<std::int64_t>& sizes : {std::vector<std::int64_t>{32, 256}, {16, 1024}}) {
      const std::string first =
          std::string(name) == "softmax" ? "split c by 8 -> c, v\npart m, s by v" : "split c by 8 -> c, v\npart s by v";
      for (const std::vector<Line>& lines : draw(name, {sizes}, lines_of(first), 40, false, 5)) {
        Timed row{name, sizes, lines, 1};
        const Program plain = kernel(name, sizes);
        Program p = plain;
        for (const Line& line : lines) p = apply(p, line);
        row.ms = formula(p, statements_run(plain)) * static_cast<double>(sizes[0]);
        examples.push_back(example(row));
      }
    }
  const std::map<std::string, Ranking> ranking = rank(examples);
  REQUIRE(ranking.size() == 2);
  for (const auto& [name, r] : ranking) {
    INFO(name);
    CHECK((r.sizes == 2 && r.schedules == 80));
    CHECK(r.spearman > 0.9);
    CHECK(r.spearman_of_kind > 0.5);
    CHECK(r.near_best == 2);
  }
  // Times that no feature explains can be ranked by who has seen them alone.
  Random random(1);
  for (Example& e : examples) e.ms = 1 + static_cast<double>(random() % 1000);
  for (const auto& [name, r] : rank(examples)) CHECK((std::abs(r.spearman) < 0.3 && std::abs(r.spearman_of_kind) < 0.3));
}

TEST_CASE("A mutation changes a schedule by one line, in names that are there") {
  Random random(11);
  std::map<std::string, int> kinds;
  int proved = 0, changed = 0;
  for (const bool is_gpu : {false, true})
    for (int i = 0; i < 600; ++i) {
      const Program plain = kernel("softmax", rows_sizes);
      const std::vector<Line> lines = lines_of(i % 3 == 0 ? gpu_softmax : rows_schedule), next = mutate(plain, lines, is_gpu, random);
      CHECK(std::abs(static_cast<int>(next.size()) - static_cast<int>(lines.size())) <= 1);
      std::size_t same = 0;
      for (const Line& line : next)
        same += std::any_of(lines.begin(), lines.end(), [&](const Line& x) { return to_text(x) == to_text(line); });
      CHECK(same + 1 >= next.size());
      changed += to_text(next) != to_text(lines);
      for (const Line& line : next) {
        ++kinds[line.primitive];
        CHECK((is_gpu || i % 3 == 0 || line.binds != std::vector<Bind>{Bind::block}));
      }
      const std::string refused = message_of([&] {
        schedule(plain, lines_of(to_text(next)), "s");
        ++proved;
      });
      CHECK_FALSE(contains(refused, "\n"));
    }
  CHECK(changed > 1000);
  CHECK((proved > 300 && proved < 1000));
  for (const char* kind : {"split", "reorder", "bind", "vectorise", "unroll", "keep", "part", "at"}) CHECK(kinds[kind] > 0);
}

TEST_CASE("A candidate that the proof refuses, or whose program is there, or that takes too long, is none") {
  Candidates candidates("softmax", rows_sizes, lines_of(rows_schedule));
  CHECK_FALSE(candidates.add(lines_of("split c by 4 -> c, t\nbind t thread")));  // threads that write one maximum
  CHECK(candidates.refused == 1);
  CHECK_FALSE(candidates.add(lines_of("unroll z")));
  CHECK(candidates.refused == 2);
  CHECK_FALSE(candidates.add(lines_of(rows_schedule + "reorder u, v in y\nreorder u, v in y")));
  CHECK(candidates.refused == 2);
  CHECK(candidates.add(lines_of("at c compute e")));
  CHECK(candidates.all.size() == 2);
  CHECK_FALSE(candidates.add(lines_of("split r by 60000 -> r, r1")));  // guards leave out nearly all of its steps
  CHECK_FALSE(candidates.add(lines_of("split c by 256 -> c, t\nunroll t")));
  CHECK_FALSE(candidates.add({{.primitive = "unroll", .names = {"u", "u"}}}));  // its text could not be read again
  CHECK(candidates.refused == 5);
  CHECK(contains(message_of([] { Candidates none("softmax", rows_sizes, lines_of("unroll z")); }), "schedule:1: unroll z: "));
}

TEST_CASE("Drawn schedules are different, and all can be applied at each size") {
  const std::vector<std::vector<std::int64_t>> sizes = {{3, 5}, {8, 100}};
  const auto drawn = draw("softmax", sizes, lines_of(rows_schedule), 20, false, 1);
  CHECK(drawn.size() == 20);
  CHECK(to_text(drawn[0]) == to_text(lines_of(rows_schedule)));
  std::set<std::string> texts;
  for (const std::vector<Line>& lines : drawn) {
    texts.insert(to_text(lines));
    for (const std::vector<std::int64_t>& s : sizes) CHECK_NOTHROW(schedule(kernel("softmax", s), lines, "s"));
  }
  CHECK(texts.size() == 20);
  CHECK(to_text(draw("softmax", sizes, lines_of(rows_schedule), 20, false, 1)[19]) == to_text(drawn[19]));
  CHECK(to_text(draw("softmax", sizes, lines_of(rows_schedule), 20, false, 2)[19]) != to_text(drawn[19]));
}

TEST_CASE("Schedules drawn for a GPU keep what their kernels compute, and are CUDA that NVRTC compiles") {
  if (!tern::compiler::has_nvrtc()) return tern::test::skip("it needs NVRTC");
  for (const std::string& name : kernel_names()) {
    const std::filesystem::path lessons = std::filesystem::path(tern::test::source_directory) / "study/loops" / name / "gpu";
    for (const auto& entry : std::filesystem::directory_iterator(lessons)) {
      const std::vector<Line> first = parse_schedule(tern::test::slurp(entry.path()), "s");
      for (const std::vector<Line>& lines : draw(name, {odd_sizes(name)[3], usual_sizes(name)}, first, 3, true, 4)) {
        INFO(name << ": " << to_text(lines));
        CHECK(check_schedule(name, [&](const Program& plain) { return schedule(plain, lines, "s"); }) < 1e-12);
        CHECK_NOTHROW(tern::compiler::compile_cuda(cuda_text(schedule(kernel(name, usual_sizes(name)), lines, "s")), "sm_90a"));
      }
    }
  }
}

TEST_CASE("The search finds what the clock prefers, and the same for the same seed and database") {
  Clock clock = rows_clock();
  const Tuned found = search(clock, {});
  CHECK((found.candidates == 200 && found.measured == 17 && found.known == 0 && found.wrong == 0));
  CHECK(found.refused > 0);
  CHECK(clock.calls == 4);
  CHECK(found.ms * 1.5 < found.first_ms);
  const Program plain = kernel("softmax", rows_sizes);
  CHECK(formula(schedule(plain, found.lines, "s"), clock.work) == Approx(found.ms));
  CHECK(found.rows.size() == 17);
  CHECK(to_text(found.rows[0].lines) == to_text(lines_of(rows_schedule)));
  CHECK(found.rows[0].ms == found.first_ms);

  Clock again = rows_clock(), never = rows_clock(), other = rows_clock();
  CHECK(to_text(search(again, {}).lines) == to_text(found.lines));
  CHECK(again.asked == clock.asked);
  const Tuned known = search(never, found.rows);
  CHECK((to_text(known.lines) == to_text(found.lines) && known.known == 17 && known.measured == 0 && never.calls == 0));
  search(other, {}, {.seed = 2});
  CHECK(other.asked != clock.asked);
}

TEST_CASE("The model decides what is measured") {
  // Times of another size say what is fast, or the contrary of it.
  const std::vector<std::int64_t> sizes = {32, 256};
  const Program plain = kernel("softmax", sizes);
  std::vector<Timed> database, reversed;
  for (const std::vector<Line>& lines : draw("softmax", {sizes}, lines_of(rows_schedule), 80, false, 9)) {
    const double ms = formula(schedule(plain, lines, "s"), statements_run(plain));
    database.push_back({"softmax", sizes, lines, ms});
    reversed.push_back({"softmax", sizes, lines, 1 / ms});
  }
  const TuneOptions once{.rounds = 1, .measured = 4};
  const auto mean = [&](const std::vector<Timed>& rows) {
    Clock clock = rows_clock();
    const Tuned tuned = search(clock, rows, once);
    double sum = 0;
    for (std::size_t i = 1; i < tuned.rows.size(); ++i) sum += tuned.rows[i].ms / tuned.first_ms;
    CHECK(tuned.rows.size() == 5);
    return sum / 4;
  };
  CHECK(mean(database) < 0.8);
  CHECK(mean(reversed) > 1.2);
}

TEST_CASE("A winner takes 3% less than the first schedule, by times that follow the machine's pace") {
  const auto with = [](double share) {
    return tune("softmax", rows_sizes, lines_of(rows_schedule), {},
                [&](const std::vector<Candidate>& all) {
                  std::vector<std::optional<double>> ms(all.size(), share);
                  ms[0] = 1;
                  return ms;
                },
                {.candidates = 40});
  };
  CHECK(to_text(with(0.98).lines) == to_text(lines_of(rows_schedule)));
  CHECK(with(0.98).ms == 1);
  CHECK(to_text(with(0.96).lines) != to_text(lines_of(rows_schedule)));
  CHECK(with(0.96).ms == 0.96);

  Clock clock = rows_clock();
  const Tuned steady = search(clock, {});
  Clock same = rows_clock();
  const Tuned slower = tune("softmax", rows_sizes, lines_of(rows_schedule), {},
                            [&](const std::vector<Candidate>& all) {
                              auto ms = same(all);
                              for (auto& x : ms) *x *= same.calls;
                              return ms;
                            },
                            {});
  CHECK(to_text(slower.lines) == to_text(steady.lines));
  CHECK(slower.ms == Approx(steady.ms));
}

TEST_CASE("What the interpreter refuses at small sizes is not measured, nor chosen when it does not run") {
  // Loops of 32 and 64 can be split by 8 after they were fused; the odd ones of a check cannot.
  const std::vector<Line> only_here = lines_of("fuse i, j -> ij\nsplit ij by 8 -> ij, v");
  const std::vector<std::int64_t> sizes = {32, 64, 8}, others = {64, 64, 8};
  REQUIRE_NOTHROW(schedule(kernel("matmul", sizes), only_here, "s"));
  REQUIRE(message_of([&] { check_schedule("matmul", [&](const Program& p) { return schedule(p, only_here, "s"); }); }) != "");
  const std::vector<Timed> database = {{"matmul", others, lines_of("reorder i, k, j"), 5}, {"matmul", others, only_here, 0.1}};
  const Tuned tuned = tune("matmul", sizes, lines_of("reorder i, k, j"), database,
                           [&](const std::vector<Candidate>& all) {
                             std::vector<std::optional<double>> ms;
                             for (const Candidate& c : all) {
                               CHECK(to_text(c.lines) != to_text(only_here));
                               ms.push_back(1);
                             }
                             for (std::size_t i = 1; i < all.size(); i += 2) ms[i] = {};
                             return ms;
                           },
                           {.candidates = 24});
  CHECK(tuned.wrong > 1);
  CHECK(tuned.measured > 1);
  CHECK(tuned.ms == 1);
}

TEST_CASE("A search ends when its time does, with the first schedule measured") {
  Clock clock = rows_clock();
  const Tuned tuned = search(clock, {}, {.seconds = 0});
  CHECK((clock.calls == 1 && clock.asked[0] == to_text(lines_of(rows_schedule)) && tuned.candidates < 40));
}
