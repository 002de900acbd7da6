#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tern::text {

// True for the characters that are an instruction to a terminal or to a page and no text: C0 and DEL, C1 (U+0080 to
// U+009F, which begin escape sequences as ESC does), line and paragraph separators, and the marks that override the
// direction of the text around them (U+202A to U+202E, U+2066 to U+2069).
bool is_control(char32_t code_point) noexcept;

// Text from a file or from a flag as a message shows it: one line of UTF-8. A control character and a byte that is not
// UTF-8 are spelled: \n, \x1b, \u009b, \xff. Of a text of more than `limit` bytes the middle is left out.
std::string printable(std::string_view text, std::size_t limit = 1000);

// Text that is to stay a text: each control character becomes a space, each ill-formed subpart U+FFFD.
std::string without_controls(std::string_view text);

}  // namespace tern::text
