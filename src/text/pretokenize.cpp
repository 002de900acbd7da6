#include "text/pretokenize.h"

#include <fmt/format.h>
#include <pcre2.h>

#include <iterator>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "text/data_error.h"

namespace tern::text {
namespace {

std::string message(int code) {
  unsigned char buffer[256] = {};
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

pcre2_code* as_code(void* p) { return static_cast<pcre2_code*>(p); }
pcre2_match_data* as_data(void* p) { return static_cast<pcre2_match_data*>(p); }
pcre2_match_context* as_context(void* p) { return static_cast<pcre2_match_context*>(p); }

}  // namespace

// Note [Bounded matching]
// An expression such as (a+)+b takes exponential time on some texts, and a*a*b takes cubic time. PCRE2's match limit does not count the
// characters that a repetition passes, and its JIT does not count repetitions. So a pattern that a user's file brought is compiled with a
// callout before each of its items, which counts a step for each character between it and the last: all work is counted. A text begins with
// base_steps and a few for each of its bytes, and each match adds match_steps for each of its bytes, more than five times what the
// expressions of known models take. Without steps left it is an error. PCRE2's limits on depth, memory and its JIT's stack end what
// recurses without steps.
constexpr std::uint64_t base_steps = 10'000'000, text_steps = 16, match_steps = 100;
constexpr std::uint32_t match_limit = 10'000'000, depth_limit = 100'000, heap_limit_kib = 64 * 1024;

Pattern::Pattern(const std::string& expression, bool is_bounded) : is_bounded_(is_bounded) {
  int code = 0;
  PCRE2_SIZE offset = 0;
  code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                        PCRE2_UTF | PCRE2_UCP | (is_bounded ? PCRE2_AUTO_CALLOUT : 0U), &code, &offset, nullptr);
  if (!code_) throw std::logic_error(fmt::format("[pattern] {} at byte {} of {}", message(code), offset, expression));
  pcre2_jit_compile(as_code(code_), PCRE2_JIT_COMPLETE);  // without JIT the interpreter matches the same, slower
}

Pattern::Pattern(Pattern&& other) noexcept : code_(std::exchange(other.code_, nullptr)), is_bounded_(other.is_bounded_) {}

Pattern::~Pattern() { pcre2_code_free(as_code(code_)); }

bool Pattern::matches(std::string_view text) const {
  std::size_t begin, end;
  return Matcher(*this).find(text, 0, begin, end);
}

Matcher::Matcher(const Pattern& pattern)
    : pattern_(pattern), data_(pcre2_match_data_create_from_pattern(as_code(pattern.code_), nullptr)), context_(nullptr) {
  if (!data_) throw std::bad_alloc();
  if (!pattern.is_bounded_) return;
  context_ = pcre2_match_context_create(nullptr);
  if (!context_) {
    pcre2_match_data_free(as_data(data_));
    throw std::bad_alloc();
  }
  pcre2_set_match_limit(as_context(context_), match_limit);
  pcre2_set_depth_limit(as_context(context_), depth_limit);
  pcre2_set_heap_limit(as_context(context_), heap_limit_kib);
  pcre2_set_callout(
      as_context(context_),
      [](pcre2_callout_block* block, void* data) {
        Steps& steps = *static_cast<Steps*>(data);
        const std::size_t at = block->current_position, passed = at > steps.at ? at - steps.at : steps.at - at;
        steps.at = at;
        if (steps.left <= passed) return static_cast<int>(PCRE2_ERROR_CALLOUT);
        steps.left -= passed + 1;
        return 0;
      },
      &steps_);
}

Matcher::~Matcher() {
  pcre2_match_context_free(as_context(context_));
  pcre2_match_data_free(as_data(data_));
}

void Matcher::begin_text(std::size_t bytes) noexcept { steps_.left = base_steps + text_steps * bytes; }

bool Matcher::find(std::string_view text, std::size_t from, std::size_t& begin, std::size_t& end) {
  steps_.at = from;
  const int code = pcre2_match(as_code(pattern_.code_), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from, PCRE2_NO_UTF_CHECK,
                               as_data(data_), as_context(context_));
  if (code == PCRE2_ERROR_NOMATCH) return false;
  if (code < 0 && pattern_.is_bounded_)
    throw DataError(
        fmt::format("expected a Split expression in tokenizer.json that takes at most {} steps for each byte of a text but got "
                    "one that takes more: {}",
                    match_steps, code == PCRE2_ERROR_CALLOUT ? "it goes back too often" : message(code)));
  if (code < 0) throw std::runtime_error(fmt::format("[pattern] {}", message(code)));
  const PCRE2_SIZE* span = pcre2_get_ovector_pointer(as_data(data_));
  begin = span[0];
  end = span[1];
  steps_.left += match_steps * (end - from);
  return true;
}

namespace {

// Letters and numbers that are new in Unicode 15 and 16, which an older PCRE2 does not know: tokens must not depend on the installed
// library.
constexpr const char* new_letters = R"(\x{1C89}-\x{1C8A}\x{A7CB}-\x{A7CD}\x{A7DA}-\x{A7DC}\x{105C0}-\x{105F3}\x{10D4A}-\x{10D65})"
                                    R"(\x{10D6F}-\x{10D85}\x{10EC2}-\x{10EC4}\x{1123F}-\x{11240}\x{11380}-\x{11389}\x{1138B}\x{1138E})"
                                    R"(\x{11390}-\x{113B5}\x{113B7}\x{113D1}\x{113D3}\x{11BC0}-\x{11BE0}\x{11F02}\x{11F04}-\x{11F10})"
                                    R"(\x{11F12}-\x{11F33}\x{1342F}\x{13441}-\x{13446}\x{13460}-\x{143FA}\x{16100}-\x{1611D})"
                                    R"(\x{16D40}-\x{16D6C}\x{18CFF}\x{1B132}\x{1B155}\x{1DF25}-\x{1DF2A}\x{1E030}-\x{1E06D})"
                                    R"(\x{1E4D0}-\x{1E4EB}\x{1E5D0}-\x{1E5ED}\x{1E5F0}\x{2B739}\x{2EBF0}-\x{2EE5D}\x{31350}-\x{323AF})";
constexpr const char* new_numbers = R"(\x{10D40}-\x{10D49}\x{116D0}-\x{116E3}\x{11BF0}-\x{11BF9}\x{11F50}-\x{11F59}\x{16130}-\x{16139})"
                                    R"(\x{16D70}-\x{16D79}\x{1CCF0}-\x{1CCF9}\x{1D2C0}-\x{1D2D3}\x{1E4F0}-\x{1E4F9}\x{1E5F1}-\x{1E5FA})";

// White space is written out as the Unicode property White_Space: PCRE2's own \s also has U+180E, which has not been a
// space since Unicode 6.3.
constexpr const char* spaces = R"(\x09-\x0D\x20\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

// Reads an expression of Oniguruma's Ruby syntax and writes it in PCRE2's, with the classes of this library in place of \p{L}, \p{N}, \s
// and \S.
class Translator {
 public:
  explicit Translator(std::string_view expression) : rest_(expression) {}

  std::string translate() {
    while (!rest_.empty()) {
      const char c = rest_[0];
      if (c == '\\') escape();
      else if (is_in_class_) member();
      else if (c == '[') begin_class();
      else if (c == '(') begin_group();
      else if (c == ')') end_group();
      else if (c == '{') count();
      else if (c == '^' || c == '$') refuse("an anchor");
      else if (c == '.') take(1, R"([^\n])");
      else literal(c);
    }
    if (is_in_class_ || !is_caseless_.empty()) refuse("an end within a class or group");
    return std::move(out_);
  }

 private:
  [[noreturn]] static void refuse(const std::string& what) { throw std::invalid_argument(what); }

  void take(std::size_t size, std::string_view written) {
    rest_.remove_prefix(size);
    out_ += written;
  }
  void take(std::size_t size) { take(size, rest_.substr(0, size)); }

  bool is_caseless() const { return !is_caseless_.empty() && is_caseless_.back(); }

  // Oniguruma folds ß to ss and the ligature of st to st: such pairs, and letters past ASCII, would match other text than PCRE2's.
  void check_folding(char c) {
    if (!is_caseless()) return;
    if (static_cast<unsigned char>(c) >= 0x80) refuse("(?i:...) of other letters than ASCII's");
    const char lower = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
    constexpr std::string_view pairs = "ss st ff fi fl";
    if (before_ != '\0' && lower != ' ' && pairs.find(std::string{before_, lower}) != std::string_view::npos)
      refuse("(?i:...) of a ligature");
    before_ = lower;
  }

  void literal(char c) {
    check_folding(c);
    take(1);
  }

  void add_class(std::size_t size, const std::string& characters, bool is_negated) {
    if (is_negated && is_in_class_) refuse("a negated class in a class");
    take(size, is_in_class_ ? characters : (is_negated ? "[^" : "[") + characters + "]");
  }

  void escape() {
    const char c = rest_.size() > 1 ? rest_[1] : '\0';
    before_ = '\0';
    if (c == 's' || c == 'S') return add_class(2, spaces, c == 'S');
    if (c == 'd') return take(2, R"(\p{Nd})");
    if (c == 'p' || c == 'P') return category();
    if (c == 'r' || c == 'n' || c == 't' || c == 'f') return take(2);
    const bool is_mark = c > ' ' && c < 0x7F && !((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'));
    if (!is_mark) refuse(fmt::format("\\{}", c > ' ' && c < 0x7F ? std::string(1, c) : ""));
    take(2);
  }

  void category() {
    constexpr std::string_view known = " L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp ";
    const std::size_t end = rest_.find('}');
    const bool has_name = rest_.size() > 2 && rest_[2] == '{' && end != std::string_view::npos && end > 3;
    const std::string name(has_name ? rest_.substr(3, end - 3) : "");
    if (!has_name || known.find(" " + name + " ") == std::string_view::npos) refuse("\\p of anything but a general category");
    const bool is_negated = rest_[1] == 'P';
    if (name == "L") return add_class(end + 1, std::string(R"(\p{L})") + new_letters, is_negated);
    if (name == "N") return add_class(end + 1, std::string(R"(\p{N})") + new_numbers, is_negated);
    take(end + 1);
  }

  void begin_class() {
    is_in_class_ = true;
    take(rest_.starts_with("[^") ? 2 : 1);
    if (rest_.starts_with("]")) refuse("an empty class");
  }

  void member() {
    if (rest_[0] == '[') refuse("a class in a class");
    if (rest_.starts_with("&&")) refuse("an intersection of classes");
    is_in_class_ = rest_[0] != ']';
    before_ = '\0';
    check_folding(rest_[0]);
    take(1);
    before_ = '\0';
  }

  void begin_group() {
    before_ = '\0';
    for (const std::string_view kind : {"(?:", "(?i:", "(?=", "(?!", "(?>"}) {
      if (!rest_.starts_with(kind)) continue;
      is_caseless_.push_back(is_caseless() || kind == "(?i:");
      return take(kind.size());
    }
    if (rest_.starts_with("(?")) refuse("a group of another kind than (?:, (?i:, (?=, (?! and (?>");
    is_caseless_.push_back(is_caseless());
    take(1);
  }

  void end_group() {
    if (is_caseless_.empty()) refuse("a parenthesis that closes no group");
    is_caseless_.pop_back();
    before_ = '\0';
    take(1);
  }

  // {2}, {2,} and {2,5}. What may follow means different things to the two.
  void count() {
    std::size_t at = 1;
    const auto digits = [&] {
      const std::size_t begin = at;
      while (at < rest_.size() && rest_[at] >= '0' && rest_[at] <= '9') ++at;
      return at - begin;
    };
    const bool has_low = digits() > 0;
    if (at < rest_.size() && rest_[at] == ',') ++at, digits();
    if (!has_low || at >= rest_.size() || rest_[at] != '}') refuse("a brace that is no count");
    const char next = at + 1 < rest_.size() ? rest_[at + 1] : '\0';
    if (next == '+' || next == '?' || next == '*' || next == '{') refuse("a count with another quantifier");
    take(at + 1);
  }

  std::string_view rest_;
  std::string out_;
  bool is_in_class_ = false;
  std::vector<bool> is_caseless_;  // of the open groups
  char before_ = '\0';             // the last letter, if a literal follows it directly
};

template <std::size_t i>
const Pattern& compiled() {
  static const Pattern pattern(Translator(word_patterns[i].expression).translate());
  return pattern;
}

const Pattern& words(std::size_t pattern) {
  static_assert(std::size(word_patterns) == 3);
  return pattern == 0 ? compiled<0>() : pattern == 1 ? compiled<1>() : compiled<2>();
}

}  // namespace

PreTokenizer::PreTokenizer(std::size_t pattern) : matcher_(words(pattern)) {}

Pattern split_pattern(std::string_view expression) {
  const std::string translated = Translator(expression).translate();
  try {
    return Pattern(translated, true);
  } catch (const std::logic_error& error) {
    throw std::invalid_argument(error.what());
  }
}

std::size_t PreTokenizer::word_end(std::string_view valid, std::size_t begin) {
  std::size_t first = 0, end = 0;
  if (!matcher_.find(valid, begin, first, end)) return valid.size();
  // Each of word_patterns matches at every character. Text that another expression leaves out is a word; a match without characters ends
  // one.
  for (std::size_t from = begin; first == begin && end == begin;) {
    from += decode_utf8(valid.substr(from)).size;
    if (from >= valid.size() || !matcher_.find(valid, from, first, end)) return valid.size();
  }
  return first > begin ? first : end;
}

}  // namespace tern::text
