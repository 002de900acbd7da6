#include "text/pretokenize.h"

#include <string>

namespace tern::text {
namespace {

// GPT-2's pattern. White space is written out as the Unicode property White_Space: PCRE2's own \s also has U+180E,
// which has not been a space since Unicode 6.3.
const Pattern& words() {
  static const Pattern pattern([] {
    const std::string space = R"(\x09-\x0D\x20\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
    return R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{L}\p{N})" + space + "]+|[" + space + "]+(?![^" + space +
           "])|[" + space + "]+";
  }());
  return pattern;
}

}  // namespace

PreTokenizer::PreTokenizer() : matcher_(words()) {}

std::size_t PreTokenizer::word_end(std::string_view valid, std::size_t begin) {
  std::size_t first = 0, end = 0;
  // Every character is a letter, a number, white space or none of these, so a match always starts at `begin`.
  if (!matcher_.find(valid, begin, first, end) || first != begin || end == begin) return valid.size();
  return end;
}

}  // namespace tern::text
