#include "text/pretokenize.h"

#include <fmt/format.h>
#include <pcre2.h>

#include <iterator>
#include <new>
#include <stdexcept>
#include <string>

namespace tern::text {
namespace {

std::string message(int code) {
  unsigned char buffer[256] = {};
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

pcre2_code* as_code(void* p) { return static_cast<pcre2_code*>(p); }
pcre2_match_data* as_data(void* p) { return static_cast<pcre2_match_data*>(p); }

}  // namespace

Pattern::Pattern(const std::string& expression) {
  int code = 0;
  PCRE2_SIZE offset = 0;
  code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(), PCRE2_UTF | PCRE2_UCP, &code, &offset, nullptr);
  if (!code_) throw std::logic_error(fmt::format("[pattern] {} at byte {} of {}", message(code), offset, expression));
  pcre2_jit_compile(as_code(code_), PCRE2_JIT_COMPLETE);  // without JIT the interpreter matches the same, slower
}

Pattern::~Pattern() { pcre2_code_free(as_code(code_)); }

bool Pattern::matches(std::string_view text) const {
  std::size_t begin, end;
  return Matcher(*this).find(text, 0, begin, end);
}

Matcher::Matcher(const Pattern& pattern) : pattern_(pattern), data_(pcre2_match_data_create_from_pattern(as_code(pattern.code_), nullptr)) {
  if (!data_) throw std::bad_alloc();
}

Matcher::~Matcher() { pcre2_match_data_free(as_data(data_)); }

bool Matcher::find(std::string_view text, std::size_t from, std::size_t& begin, std::size_t& end) {
  const int code = pcre2_match(as_code(pattern_.code_), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from, PCRE2_NO_UTF_CHECK,
                               as_data(data_), nullptr);
  if (code == PCRE2_ERROR_NOMATCH) return false;
  if (code < 0) throw std::runtime_error(fmt::format("[pattern] {}", message(code)));
  const PCRE2_SIZE* span = pcre2_get_ovector_pointer(as_data(data_));
  begin = span[0];
  end = span[1];
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

// An expression with the classes of this library in place of \p{L}, \p{N}, \s and \S.
std::string with_own_classes(std::string_view expression) {
  std::string result;
  bool in_class = false;
  const auto add_class = [&](const std::string& characters, bool is_negated) {
    result += in_class ? characters : (is_negated ? "[^" : "[") + characters + "]";
  };
  while (!expression.empty()) {
    std::size_t size = 1;
    if (expression.starts_with(R"(\p{L})")) {
      add_class(std::string(R"(\p{L})") + new_letters, false);
      size = 5;
    } else if (expression.starts_with(R"(\p{N})")) {
      add_class(std::string(R"(\p{N})") + new_numbers, false);
      size = 5;
    } else if (expression.starts_with(R"(\s)") || expression.starts_with(R"(\S)")) {
      add_class(spaces, expression[1] == 'S');
      size = 2;
    } else {
      if (expression[0] == '[' || expression[0] == ']') in_class = expression[0] == '[';
      result += expression[0];
    }
    expression.remove_prefix(size);
  }
  return result;
}

template <std::size_t i>
const Pattern& compiled() {
  static const Pattern pattern(with_own_classes(word_patterns[i].expression));
  return pattern;
}

const Pattern& words(std::size_t pattern) {
  static_assert(std::size(word_patterns) == 3);
  return pattern == 0 ? compiled<0>() : pattern == 1 ? compiled<1>() : compiled<2>();
}

}  // namespace

PreTokenizer::PreTokenizer(std::size_t pattern) : matcher_(words(pattern)) {}

std::size_t PreTokenizer::word_end(std::string_view valid, std::size_t begin) {
  std::size_t first = 0, end = 0;
  // Every character is a letter, a number, white space or none of these, so a match always starts at `begin`.
  if (!matcher_.find(valid, begin, first, end) || first != begin || end == begin) return valid.size();
  return end;
}

}  // namespace tern::text
