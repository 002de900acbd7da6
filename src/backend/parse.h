#pragma once
#include <charconv>
#include <cstddef>
#include <optional>
#include <string_view>
#include <system_error>

// Numbers and names from text.
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

/// Enumerator, among the values 0 to count - 1, whose name() is the text; none for any other text.
template <class Enum>
std::optional<Enum> enum_of(std::string_view text, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    if (text == name(static_cast<Enum>(i))) return static_cast<Enum>(i);
  return std::nullopt;
}

}  // namespace tern::backend
