#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tern::text {

inline constexpr char32_t replacement_character = 0xFFFD;

// One step of a UTF-8 decoder. `size` is the number of bytes used, at least 1. When `valid` is false the bytes are a
// maximal subpart of an ill-formed sequence (The Unicode Standard, 3.9, table 3-7) and `code_point` is U+FFFD.
struct Utf8Step {
  char32_t code_point;
  std::uint8_t size;
  bool valid;
};
Utf8Step decode_utf8(std::string_view bytes) noexcept;  // `bytes` must not be empty

// Offset of the first byte that is not well-formed UTF-8 (overlong forms, surrogates and values past U+10FFFF are not),
// or npos.
std::size_t find_invalid_utf8(std::string_view bytes) noexcept;

void append_utf8(std::string& out, char32_t code_point);

// Well-formed text stays as it is; each maximal ill-formed subpart becomes one U+FFFD.
std::string utf8_lossy(std::string_view bytes);

// Decodes; an ill-formed byte becomes U+DC00 + byte, so that two different bad bytes stay different.
std::u32string to_code_points(std::string_view text);

// White space as Python's str.split() sees it: the Unicode property White_Space and the separators U+001C to U+001F.
bool is_python_space(char32_t c) noexcept;

// True for text that shows nothing: white space (is_python_space), control characters and characters without width, such as U+200B, U+FEFF
// and the blanks of Braille and Hangul.
bool is_blank(std::string_view text) noexcept;

// Calls f(std::string_view) for each word of `text`, in order: the runs without white space, as of Python's str.split().
template <class F>
void for_each_word(std::string_view text, F&& f) {
  std::size_t begin = 0, at = 0;
  while (at < text.size()) {
    const Utf8Step step = decode_utf8(text.substr(at));
    if (is_python_space(step.code_point)) {
      if (at > begin) f(text.substr(begin, at - begin));
      begin = at + step.size;
    }
    at += step.size;
  }
  if (at > begin) f(text.substr(begin));
}

// `text` without trailing white space in the sense of is_python_space.
std::string_view strip_right(std::string_view text) noexcept;

// True for characters that control a terminal or the layout of text: C0 and DEL, C1 (U+0080 to U+009F, which begin escape sequences as ESC
// does), line and paragraph separators, and the marks that override the direction of text (U+202A to U+202E, U+2066 to U+2069).
bool is_control(char32_t code_point) noexcept;

// Untrusted text for a message: one line of UTF-8, with control characters and bytes that are not UTF-8 escaped (\n, \x1b, \u009b, \xff).
// A text of more than `limit` bytes loses its middle.
std::string printable(std::string_view text, std::size_t limit = 1000);

// Untrusted text without escapes: each control character becomes a space, each ill-formed subpart U+FFFD.
std::string without_controls(std::string_view text);

}  // namespace tern::text
