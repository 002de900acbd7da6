#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace tern::io {

/// A table in Markdown, one line a row. Cells are written as they are: pass text that may contain a bar through markdown_cell().
class MarkdownTable {
 public:
  /// Begins a table with the names of its columns.
  explicit MarkdownTable(const std::vector<std::string>& columns) {
    add(columns);
    add(std::vector<std::string>(columns.size(), "---"), "");
  }
  /// Adds a row, with as many cells as there are columns.
  void add(const std::vector<std::string>& cells) { add(cells, " "); }
  /// All lines, each with its line break.
  const std::string& text() const { return text_; }

 private:
  void add(const std::vector<std::string>& cells, const char* space) {
    text_ += '|';
    for (const std::string& cell : cells) text_ += space + cell + space + "|";
    text_ += '\n';
  }

  std::string text_;
};

/// A text as a cell: its bars escaped, "(none)" for an empty one.
inline std::string markdown_cell(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '|') result += '\\';
    result += c;
  }
  return result.empty() ? "(none)" : result;
}

}  // namespace tern::io
