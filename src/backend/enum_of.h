#pragma once
#include <cstddef>
#include <optional>
#include <string_view>

namespace tern::backend {

/// Enumerator, among the values 0 to count - 1, whose name() is the text; none for any other text.
template <class Enum>
std::optional<Enum> enum_of(std::string_view text, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    if (text == name(static_cast<Enum>(i))) return static_cast<Enum>(i);
  return std::nullopt;
}

}  // namespace tern::backend
