#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace tern::io {

/// A table in Markdown: a line for each row, between bars. Cells are text as it is; markdown_cell() is for text that may have a bar in it.
class MarkdownTable {
 public:
  /// The names of the columns.
  explicit MarkdownTable(const std::vector<std::string>& columns);
  /// A row of as many cells as there are columns.
  void add(const std::vector<std::string>& cells);
  /// All lines, each with its line break.
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

/// A text with its bars escaped, "(none)" for an empty one.
std::string markdown_cell(std::string_view text);

}  // namespace tern::io
