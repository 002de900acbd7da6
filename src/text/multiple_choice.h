#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tern::text {

/// A beginning of a text and endings, of which one is right: the form of HellaSwag (Zellers et al., 2019).
struct MultipleChoice {
  std::string context;
  std::vector<std::string> endings;  ///< 2 or more
  std::size_t label = 0;             ///< index of the right one
};

/// Reads a line of JSON, {"ctx": TEXT, "endings": [TEXT, ...], "label": N}, where N may be a text, too, and other keys do not matter.
/// Throws DataError, which begins with `place`, for anything else.
MultipleChoice read_multiple_choice(std::string_view line, const std::string& place);

}  // namespace tern::text
