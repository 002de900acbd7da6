#include "substitutions/rules.h"

#include <fmt/format.h>

#include <cmath>

#include "backend/parse.h"
#include "text/data_error.h"

namespace tern::substitutions {

namespace {

constexpr int most_ops = 64;                // of a side; as many are its depth at most
constexpr int most_concats = 4;             // of a side: each doubles the memory that a judge takes
constexpr std::size_t most_bytes = 10'000;  // of a line

/// Reader of a line.
class Reader {
 public:
  Reader(std::string_view line, std::string place, Terms& terms) : rest_(line), place_(std::move(place)), terms_(terms) {}

  Rule rule() {
    Rule rule;
    rule.left = term();
    expect("=>");
    rule.right = term();
    expect(";");
    const std::string_view verdict = word();
    if (verdict != "exact" && verdict != "sound") fail("exact or sound", verdict);
    rule.verdict = verdict == "exact" ? Verdict::exact : Verdict::sound;
    if ((terms_.inputs(rule.right) & ~terms_.inputs(rule.left)) != 0) fail("a right side of the left one's inputs", "others");
    if (word_is_next()) {
      expect(";"), expect("fingerprint");
      rule.fingerprint = fingerprint();
      expect(";"), expect("error");
      rule.error = number("the largest error");
    }
    if (word_is_next()) fail("the end of the line", word());
    return rule;
  }

 private:
  [[noreturn]] void fail(const std::string& expected, std::string_view got) const {
    const std::string shown = got.empty() ? "the end of the line" : std::string(got.substr(0, 40));
    throw text::DataError(fmt::format("{}: expected {} but got {}: write a rule as (neg (neg a)) => a ; exact", place_, expected, shown));
  }
  bool word_is_next() {
    while (!rest_.empty() && (rest_[0] == ' ' || rest_[0] == '\t' || rest_[0] == '\r')) rest_.remove_prefix(1);
    return !rest_.empty();
  }
  /// The next word, parenthesis or semicolon; empty at the end.
  std::string_view word() {
    if (!word_is_next()) return {};
    const bool is_sign = std::string_view("();").find(rest_[0]) != std::string_view::npos;
    const std::size_t size = is_sign ? 1 : std::min(rest_.find_first_of("(); \t\r"), rest_.size());
    const std::string_view result = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return result;
  }
  void expect(std::string_view wanted) {
    if (const std::string_view got = word(); got != wanted) fail(std::string(wanted), got);
  }
  double number(const char* what) {
    const std::string_view got = word();
    const auto value = backend::parse_number<double>(got);
    if (!value || !std::isfinite(*value)) fail(what, got);
    return *value;
  }
  std::uint64_t fingerprint() {
    const std::string_view got = word();
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(got.data(), got.data() + got.size(), value, 16);
    if (error != std::errc() || end != got.data() + got.size() || value == 0) fail("a fingerprint in hexadecimal digits", got);
    return value;
  }

  Id term() {
    ops_ = concats_ = 0;
    return part();
  }
  Id part() {
    std::string_view got = word();
    if (got != "(") {
      for (int i = 0; i < input_count; ++i)
        if (got == name(static_cast<Op>(i))) return static_cast<Id>(i);
      fail("an input (a, b, c, v, w) or (", got);
    }
    if (++ops_ > most_ops) fail(fmt::format("at most {} ops", most_ops), "more");
    got = word();
    const auto op = backend::enum_of<Op>(got, op_count);
    if (!op || is_input(*op)) fail("an op", got);
    if (*op == Op::concat && ++concats_ > most_concats) fail(fmt::format("at most {} times concat", most_concats), "more");
    Node node{*op};
    if (node.op == Op::scale) {
      const std::string_view before = rest_;
      node.number = word() == "s" ? Node::symbol : (rest_ = before, number("a number or s"));
    }
    node.x = part();
    if (is_binary(node.op)) node.y = part();
    expect(")");
    return terms_.add(node);
  }

  std::string_view rest_;
  std::string place_;
  Terms& terms_;
  int ops_ = 0, concats_ = 0;
};

}  // namespace

std::string text_of(const Terms& terms, const Rule& rule) {
  std::string line = fmt::format("{} => {} ; {}", terms.text(rule.left), terms.text(rule.right), name(rule.verdict));
  if (rule.fingerprint != 0) line += fmt::format(" ; fingerprint {:016x} ; error {:.3g}", rule.fingerprint, rule.error);
  return line;
}

std::vector<Rule> read_rules(std::string_view text, const std::string& file, Terms& terms) {
  std::vector<Rule> rules;
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.size() > most_bytes)
      throw text::DataError(
          fmt::format("{}:{}: expected a line of at most {} bytes but got {}: split it", file, number, most_bytes, line.size()));
    line = line.substr(0, line.find('#'));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    rules.push_back(Reader(line, fmt::format("{}:{}", file, number), terms).rule());
    rules.back().line = number;
  }
  return rules;
}

}  // namespace tern::substitutions
