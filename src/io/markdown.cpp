#include "io/markdown.h"

namespace tern::io {

MarkdownTable::MarkdownTable(const std::vector<std::string>& columns) {
  add(columns);
  text_ += '|';
  for (std::size_t i = 0; i < columns.size(); ++i) text_ += "---|";
  text_ += '\n';
}

void MarkdownTable::add(const std::vector<std::string>& cells) {
  text_ += '|';
  for (const std::string& cell : cells) text_ += " " + cell + " |";
  text_ += '\n';
}

std::string markdown_cell(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '|') result += '\\';
    result += c;
  }
  return result.empty() ? "(none)" : result;
}

}  // namespace tern::io
