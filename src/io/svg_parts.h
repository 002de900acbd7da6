#pragma once
#include <cstddef>
#include <string>

/// Parts that all pictures have.
namespace tern::io::svg {

/// Middle tones, which stand out from white and from black alike.
/// @{
inline constexpr const char* grey = "#7d8590";
const char* colour(std::size_t number);
/// @}

/// `anchor`: start, middle or end. `more`: further attributes, with a space before.
std::string text_at(double x, double y, const std::string& words, const char* anchor = "middle", const std::string& more = "");

/// A whole file of `body`.
std::string document(double width, double height, const std::string& title, const std::string& body);

}  // namespace tern::io::svg
