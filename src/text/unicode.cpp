#include "text/unicode.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "text/data_error.h"

namespace tern::text {
namespace {

// The bytes that may follow a lead byte directly: narrower than 80..BF after E0, ED, F0 and F4, which is what keeps out
// overlong forms, surrogates and values past U+10FFFF (The Unicode Standard, table 3-7).
struct SecondByte {
  std::uint8_t low, high;
};
constexpr SecondByte second_byte(std::uint8_t lead) noexcept {
  switch (lead) {
    case 0xE0: return {0xA0, 0xBF};
    case 0xED: return {0x80, 0x9F};
    case 0xF0: return {0x90, 0xBF};
    case 0xF4: return {0x80, 0x8F};
    default: return {0x80, 0xBF};
  }
}

// True when the eight bytes at p are ASCII: almost all text is, so this is what validation costs.
bool eight_ascii(const char* p) noexcept {
  std::uint64_t word;
  std::memcpy(&word, p, sizeof word);
  return (word & 0x8080808080808080u) == 0;
}

}  // namespace

Utf8Step decode_utf8(std::string_view bytes) noexcept {
  const auto at = [&](std::size_t i) { return static_cast<std::uint8_t>(bytes[i]); };
  const std::uint8_t lead = at(0);
  if (lead < 0x80) return {lead, 1, true};
  const int length = lead >= 0xC2 && lead <= 0xDF ? 2 : (lead & 0xF0) == 0xE0 ? 3 : lead >= 0xF0 && lead <= 0xF4 ? 4 : 0;
  if (length == 0) return {replacement_character, 1, false};
  char32_t value = lead & (0xFFu >> (length + 1));
  for (int i = 1; i < length; ++i) {
    const SecondByte range = i == 1 ? second_byte(lead) : SecondByte{0x80, 0xBF};
    const auto index = static_cast<std::size_t>(i);
    if (index >= bytes.size() || at(index) < range.low || at(index) > range.high) {
      return {replacement_character, static_cast<std::uint8_t>(i), false};
    }
    value = (value << 6) | (at(index) & 0x3Fu);
  }
  return {value, static_cast<std::uint8_t>(length), true};
}

std::size_t find_invalid_utf8(std::string_view bytes) noexcept {
  std::size_t i = 0;
  while (i < bytes.size()) {
    if (i + 8 <= bytes.size() && eight_ascii(bytes.data() + i)) {
      i += 8;
      continue;
    }
    const Utf8Step step = decode_utf8(bytes.substr(i));
    if (!step.valid) return i;
    i += step.size;
  }
  return std::string_view::npos;
}

void append_utf8(std::string& out, char32_t c) {
  if (c < 0x80) {
    out.push_back(static_cast<char>(c));
    return;
  }
  if (c < 0x800) {
    out.push_back(static_cast<char>(0xC0 | (c >> 6)));
  } else {
    if (c < 0x10000) {
      out.push_back(static_cast<char>(0xE0 | (c >> 12)));
    } else {
      out.push_back(static_cast<char>(0xF0 | (c >> 18)));
      out.push_back(static_cast<char>(0x80 | ((c >> 12) & 0x3F)));
    }
    out.push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3F)));
  }
  out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
}

std::string utf8_lossy(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const std::size_t bad = find_invalid_utf8(bytes);
    out.append(bytes.substr(0, bad));
    if (bad == std::string_view::npos) break;
    append_utf8(out, replacement_character);
    bytes.remove_prefix(bad);
    bytes.remove_prefix(decode_utf8(bytes).size);
  }
  return out;
}

std::u32string to_code_points(std::string_view text) {
  std::u32string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Step step = decode_utf8(text);
    if (step.valid) {
      out.push_back(step.code_point);
    } else {
      for (std::size_t i = 0; i < step.size; ++i) out.push_back(0xDC00u + static_cast<std::uint8_t>(text[i]));
    }
    text.remove_prefix(step.size);
  }
  return out;
}

bool is_python_space(char32_t c) noexcept {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_blank(std::string_view text) noexcept {
  struct Range {
    char32_t first, last;
  };
  // Control characters, U+2800, and the property Default_Ignorable_Code_Point of Unicode 16.
  constexpr Range invisible[] = {{0x00, 0x1F},     {0x7F, 0x9F},     {0xAD, 0xAD},       {0x34F, 0x34F},     {0x61C, 0x61C},
                                 {0x115F, 0x1160}, {0x17B4, 0x17B5}, {0x180B, 0x180F},   {0x200B, 0x200F},   {0x202A, 0x202E},
                                 {0x2060, 0x206F}, {0x2800, 0x2800}, {0x3164, 0x3164},   {0xFE00, 0xFE0F},   {0xFEFF, 0xFEFF},
                                 {0xFFA0, 0xFFA0}, {0xFFF0, 0xFFF8}, {0x1BCA0, 0x1BCA3}, {0x1D173, 0x1D17A}, {0xE0000, 0xE0FFF}};
  while (!text.empty()) {
    const Utf8Step step = decode_utf8(text);
    const char32_t c = step.code_point;
    const bool shows_nothing =
        std::any_of(std::begin(invisible), std::end(invisible), [&](const Range& range) { return c >= range.first && c <= range.last; });
    if (!step.valid || !(shows_nothing || is_python_space(c))) return false;
    text.remove_prefix(step.size);
  }
  return true;
}

std::string_view strip_right(std::string_view text) noexcept {
  while (!text.empty()) {
    std::size_t start = text.size() - 1;  // of the last character: step back over at most three continuation bytes
    while (start > 0 && text.size() - start < 4 && (static_cast<std::uint8_t>(text[start]) & 0xC0) == 0x80) --start;
    const Utf8Step last = decode_utf8(text.substr(start));
    if (!last.valid || start + last.size != text.size() || !is_python_space(last.code_point)) break;
    text.remove_suffix(last.size);
  }
  return text;
}

namespace {

void append_printable(std::string& out, std::string_view text) {
  while (!text.empty()) {
    const Utf8Step step = decode_utf8(text);
    if (!step.valid) {
      for (std::size_t i = 0; i < step.size; ++i) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[i]));
    } else if (step.code_point == '\n') {
      out += "\\n";
    } else if (step.code_point == '\r') {
      out += "\\r";
    } else if (step.code_point == '\t') {
      out += "\\t";
    } else if (is_control(step.code_point)) {
      const auto value = static_cast<std::uint32_t>(step.code_point);
      out += value < 0x80 ? fmt::format("\\x{:02x}", value) : fmt::format("\\u{:04x}", value);
    } else {
      out += text.substr(0, step.size);
    }
    text.remove_prefix(step.size);
  }
}

// The largest offset up to `at` that is not within a character.
std::size_t boundary(std::string_view text, std::size_t at) {
  for (int steps = 0; steps < 3 && at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80; ++steps) --at;
  return at;
}

}  // namespace

bool is_control(char32_t c) noexcept {
  return c < 0x20 || (c >= 0x7F && c <= 0x9F) || c == 0x2028 || c == 0x2029 || (c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
}

std::string printable(std::string_view text, std::size_t limit) {
  std::string out;
  if (text.size() <= limit) {
    append_printable(out, text);
    return out;
  }
  // The middle goes: a message begins with its subject and ends with the remedy.
  append_printable(out, text.substr(0, boundary(text, limit - limit / 3)));
  out += " ... ";
  append_printable(out, text.substr(boundary(text, text.size() - limit / 3)));
  return out;
}

// The limit leaves room for two paths of the system's longest.
DataError::DataError(const std::string& message) : std::runtime_error(printable(message, 10'000)) {}

std::string without_controls(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Step step = decode_utf8(text);
    if (step.valid && !is_control(step.code_point)) out.append(text.substr(0, step.size));
    else append_utf8(out, step.valid ? U' ' : replacement_character);
    text.remove_prefix(step.size);
  }
  return out;
}

}  // namespace tern::text
