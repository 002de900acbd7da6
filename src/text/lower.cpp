#include <utf8proc.h>

#include <cstdint>

#include "text/pattern.h"
#include "text/unicode.h"

namespace tern::text {
namespace {

// Final_Sigma (The Unicode Standard, table 3-17): a cased letter before, none after, case-ignorable ones not counted.
bool is_final_sigma(const std::u32string& text, std::size_t at) {
  static const Pattern cased(R"(\A\p{Cased})"), ignorable(R"(\A\p{Case_Ignorable})");
  const auto is = [](const Pattern& pattern, char32_t c) {
    if (c >= 0xD800 && c < 0xE000) return false;  // a byte that is not UTF-8 (to_code_points)
    std::string bytes;
    append_utf8(bytes, c);
    return pattern.matches(bytes);
  };
  std::size_t before = at, after = at + 1;
  while (before > 0 && is(ignorable, text[before - 1])) --before;
  if (before == 0 || !is(cased, text[before - 1])) return false;
  while (after < text.size() && is(ignorable, text[after])) ++after;
  return after == text.size() || !is(cased, text[after]);
}

}  // namespace

// utf8proc maps single characters; the two cases that depend on context or give two characters, sigma and U+0130, are handled here.
// Decoding and encoding are in unicode.h instead: utf8proc does not say how many ill-formed bytes make one U+FFFD, and a program that
// lower-cases nothing so goes without its tables of 340 KB.
std::string lower(std::string_view text) {
  const std::u32string points = to_code_points(text);
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < points.size(); ++i) {
    const char32_t c = points[i];
    if (c == 0x130) {
      out += "i\xCC\x87";
    } else if (c == 0x3A3) {
      append_utf8(out, is_final_sigma(points, i) ? 0x3C2 : 0x3C3);
    } else if (c >= 0xDC00 && c < 0xE000) {
      out.push_back(static_cast<char>(c - 0xDC00));
    } else {
      append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
    }
  }
  return out;
}

}  // namespace tern::text
