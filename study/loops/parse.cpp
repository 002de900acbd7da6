// Text of schedules: read and printed.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "backend/error.h"
#include "schedule.h"

namespace study::loops {

namespace {

constexpr std::size_t max_text = 1 << 16, max_lines = 200, max_word = 32, max_words = 16;

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// A text in a message: short, and of characters that a terminal shows.
std::string quoted(std::string_view text) {
  std::string shown;
  for (const char c : text.substr(0, max_word)) shown += c >= ' ' && c <= '~' ? c : '?';
  return "'" + shown + (text.size() > max_word ? "...'" : "'");
}

class Parser {
 public:
  Parser(std::string_view text, std::string place) : rest_(text), place_(std::move(place)) { next(); }

  Line line() {
    Line line{.primitive = name("a primitive"), .names = {}};
    const std::string& p = line.primitive;
    if (p == "split") {
      line.names = {name("a loop")};
      word("by");
      line.factors = list(&Parser::factor);
      word("->");
      line.results = names("a name");
      if (line.results.size() != line.factors.size() + 1)
        refuse(fmt::format("{} names after ->, one more than factors", line.factors.size() + 1));
      in(line);
    } else if (p == "fuse") {
      line.names = names("a loop");
      if (line.names.size() < 2) refuse("two loops to fuse");
      word("->");
      line.results = {name("a name")};
    } else if (p == "reorder" || p == "vectorise" || p == "unroll") {
      line.names = names("a loop");
      in(line);
    } else if (p == "bind") {
      do {
        line.names.push_back(name("a loop"));
        line.binds.push_back(one_of<Bind>({{"block", Bind::block}, {"thread", Bind::thread}, {"cores", Bind::cores}}));
      } while (skip(",") && line.names.size() < max_words);
    } else if (p == "keep") {
      line.names = names("a tensor");
      word("in");
      line.place = space();
      if (skip("at")) line.loop = name("a loop");
      if (skip("as")) line.order = names("an axis");
      if (skip("pad")) line.pad = factor();
    } else if (p == "part") {
      line.names = names("a tensor");
      word("by");
      line.of = names("a loop");
      line.place = skip("in") ? space() : Tensor::Kind::registers;
    } else if (p == "at") {
      line.names = {name("a loop")};
      word("compute");
      line.of = {name("a tensor")};
    } else refuse("split, fuse, reorder, bind, vectorise, unroll, keep, part or at", quoted(p));
    if (!word_.empty()) refuse("the end of the line");
    for (const std::vector<std::string>* of : {&line.names, &line.results, &line.order, &line.of})
      for (std::size_t i = 0; i < of->size(); ++i)
        if (std::count(of->begin(), of->end(), (*of)[i]) > 1) refuse("different names", quoted((*of)[i]) + " twice");
    return line;
  }

 private:
  [[noreturn]] void refuse(const std::string& expected) { refuse(expected, word_.empty() ? "the end of the line" : quoted(word_)); }
  [[noreturn]] void refuse(const std::string& expected, const std::string& got) {
    throw tern::Error(fmt::format("{}: expected {} but got {}", place_, expected, got));
  }

  void next() {
    while (!rest_.empty() && (rest_[0] == ' ' || rest_[0] == '\t' || rest_[0] == '\r')) rest_.remove_prefix(1);
    std::size_t n = 0;
    if (rest_.starts_with("->")) n = 2;
    else if (!rest_.empty() && (is_letter(rest_[0]) || is_digit(rest_[0])))
      while (n < rest_.size() && (is_letter(rest_[n]) || is_digit(rest_[n]))) ++n;
    else n = std::min<std::size_t>(rest_.size(), 1);
    word_ = rest_.substr(0, n);
    rest_.remove_prefix(n);
  }
  bool skip(std::string_view word) {
    if (word_ != word) return false;
    next();
    return true;
  }
  void word(const char* expected) {
    if (!skip(expected)) refuse(expected);
  }
  std::string name(const char* expected) {
    if (word_.empty() || !is_letter(word_[0]) || word_.size() > max_word) refuse(expected);
    std::string result(word_);
    next();
    return result;
  }
  std::int64_t factor() {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(word_.data(), word_.data() + word_.size(), value);
    if (error != std::errc() || end != word_.data() + word_.size() || value < 1 || value > 65536) refuse("a number from 1 to 65536");
    next();
    return value;
  }
  template <class T>
  std::vector<T> list(T (Parser::*one)()) {
    std::vector<T> result;
    do result.push_back((this->*one)());
    while (skip(",") && (result.size() < max_words || (refuse(fmt::format("at most {} in a list", max_words)), false)));
    return result;
  }
  std::vector<std::string> names(const char* expected) {
    expected_ = expected;
    return list(&Parser::listed_name);
  }
  std::string listed_name() { return name(expected_); }
  template <class T>
  T one_of(const std::vector<std::pair<const char*, T>>& words) {
    std::string all;
    for (const auto& [text, value] : words) {
      if (skip(text)) return value;
      all += (all.empty() ? "" : " or ") + std::string(text);
    }
    refuse(all);
  }
  Tensor::Kind space() { return one_of<Tensor::Kind>({{"shared", Tensor::Kind::shared}, {"registers", Tensor::Kind::registers}}); }
  void in(Line& line) {
    if (skip("in")) line.of = names("a tensor");
  }

  std::string_view rest_, word_;
  std::string place_;
  const char* expected_ = "";
};

}  // namespace

std::vector<Line> parse_schedule(std::string_view text, const std::string& file) {
  std::vector<Line> lines;
  if (text.size() > max_text) throw tern::Error(fmt::format("{}: expected at most {} bytes but got {}", file, max_text, text.size()));
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    line = line.substr(0, line.find('#'));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string place = fmt::format("{}:{}", file, number);
    if (lines.size() == max_lines) throw tern::Error(fmt::format("{}: expected at most {} lines", place, max_lines));
    lines.push_back(Parser(line, place).line());
    lines.back().number = number;
  }
  return lines;
}

std::string to_text(const Line& line) {
  const auto list = [](const auto& of) { return fmt::format("{}", fmt::join(of, ", ")); };
  const std::string space = line.place == Tensor::Kind::shared ? "shared" : "registers";
  std::string text = line.primitive + " ";
  if (line.primitive == "bind") {
    constexpr const char* binds[] = {"", "block", "thread", "cores"};
    for (std::size_t i = 0; i < line.names.size(); ++i)
      text += fmt::format("{}{} {}", i > 0 ? ", " : "", line.names[i], binds[static_cast<int>(line.binds[i])]);
    return text;
  }
  text += list(line.names);
  if (line.primitive == "at") return text + " compute " + line.of[0];
  if (line.primitive == "part") return text + " by " + list(line.of) + " in " + space;
  if (line.primitive == "keep") {
    text += " in " + space;
    if (!line.loop.empty()) text += " at " + line.loop;
    if (!line.order.empty()) text += " as " + list(line.order);
    if (line.pad > 0) text += fmt::format(" pad {}", line.pad);
    return text;
  }
  if (!line.factors.empty()) text += " by " + list(line.factors);
  if (!line.results.empty()) text += " -> " + list(line.results);
  if (!line.of.empty()) text += " in " + list(line.of);
  return text;
}

}  // namespace study::loops
