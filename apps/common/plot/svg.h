#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

namespace tern::apps::svg {

// Middle tones, which stand out from white and from black alike.
constexpr const char* grey = "#7d8590";
constexpr const char* colours[] = {"#3b82f6", "#ea7317", "#22a352", "#b45bd6", "#d64561", "#12a5b0", "#a5841c", "#6366d8", "#c46aa0"};

/// Text as characters of XML, of an element or an attribute: what XML 1.0 has no character for (its production 2, Char) becomes U+FFFD.
std::string escape(std::string_view text);

/// `anchor`: start, middle or end. `more`: further attributes, with a space before.
inline std::string text(double x, double y, const std::string& words, const char* anchor = "middle", const std::string& more = "") {
  return fmt::format("<text x=\"{:g}\" y=\"{:g}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, more, escape(words));
}

/// The picture's title, in letters of 15, or smaller where they do not fit into `room`.
inline std::string title(double x, double y, double room, const std::string& words) {
  const double size = std::clamp(room / (0.52 * static_cast<double>(words.size() + 1)), 9.0, 15.0);
  return text(x, y, words, "start", fmt::format(" font-size=\"{:.3g}\"", size));
}

/// A whole file of `body`.
inline std::string document(double width, double height, const std::string& title, const std::string& body) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:g} {1:g}\" width=\"{0:g}\" height=\"{1:g}\" role=\"img\" "
      "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\" fill=\"{2}\">\n<title>{3}</title>\n{4}</svg>\n",
      width, height, grey, escape(title), body);
}

}  // namespace tern::apps::svg
