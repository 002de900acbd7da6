#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tern::text {

// True for characters that control a terminal or the layout of text: C0 and DEL, C1 (U+0080 to U+009F, which begin escape sequences as ESC
// does), line and paragraph separators, and the marks that override the direction of text (U+202A to U+202E, U+2066 to U+2069).
bool is_control(char32_t code_point) noexcept;

// Untrusted text for a message: one line of UTF-8, with control characters and bytes that are not UTF-8 escaped (\n, \x1b, \u009b, \xff).
// A text of more than `limit` bytes loses its middle.
std::string printable(std::string_view text, std::size_t limit = 1000);

// Untrusted text without escapes: each control character becomes a space, each ill-formed subpart U+FFFD.
std::string without_controls(std::string_view text);

}  // namespace tern::text
