#include "text/pretokenize.h"

#include <iterator>
#include <string>

namespace tern::text {
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
