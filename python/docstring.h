#pragma once
#include <cstddef>

namespace tern::python {

/// Docstring of a name in the public headers, "relu" or "nn.Linear". docstrings.py writes the table when the extension is built, sorted.
struct Docstring {
  const char* name;
  const char* text;
};
extern const Docstring docstrings[];
extern const std::size_t docstring_count;

}  // namespace tern::python
