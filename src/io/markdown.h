#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace tern::io {

/// A table in Markdown, one line a row. Cells are written as they are: pass text that may contain a bar through markdown_cell().
class MarkdownTable {
 public:
  /// Begins a table with the names of its columns.
  explicit MarkdownTable(const std::vector<std::string>& columns);
  /// Adds a row, with as many cells as there are columns.
  void add(const std::vector<std::string>& cells);
  /// All lines, each with its line break.
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

/// A text as a cell: its bars escaped, "(none)" for an empty one.
std::string markdown_cell(std::string_view text);

}  // namespace tern::io
