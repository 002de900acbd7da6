#pragma once
#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace tern::backend {

/// Parses the whole text as a number, as std::from_chars does: without spaces and '+'. None for any other text, and for a number outside
/// the type's range.
template <class T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace tern::backend
