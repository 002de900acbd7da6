#include "text/printable.h"

#include <fmt/format.h>

#include "text/data_error.h"
#include "text/unicode.h"

namespace tern::text {
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
