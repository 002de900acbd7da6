#include "profile/memory_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "io/files.h"
#include "io/markdown.h"

namespace tern::profile {

namespace {

constexpr std::size_t largest_shown = 10, saved_shown = 20;

std::string peaks_table(const std::vector<MemoryReportPart>& parts) {
  std::vector<std::string> columns = {"part", "peak"};
  for (std::size_t i = 0; i < memory_categories; ++i) columns.emplace_back(name(static_cast<MemoryCategory>(i)));
  columns.emplace_back("end");
  io::MarkdownTable table(columns);
  for (const MemoryReportPart& part : parts) {
    std::vector<std::string> cells = {part.title, part.failure};
    if (part.history) {
      const MemoryPeak peak = part.history->peak();
      cells.back() += (part.failure.empty() ? "" : ": ") + bytes_text(peak.bytes);
      for (const std::size_t bytes : peak.categories.bytes) cells.push_back(bytes_text(bytes));
      cells.push_back(bytes_text(part.history->at_end().total()));
    }
    cells.resize(columns.size());
    table.add(cells);
  }
  return table.text();
}

std::string largest_table(const MemoryHistory& history, bool at_peak) {
  io::MarkdownTable table({"bytes", "category", "op", "module or tensor"});
  std::string stacks;
  for (const std::size_t place : history.largest(largest_shown, at_peak)) {
    const MemoryBlock& block = history.blocks()[place];
    const std::string op = block.op ? *block.op : "", pass = name(block.pass);
    const std::string* const where = block.tensor ? block.tensor : block.module;
    table.add({bytes_text(block.bytes), name(block.category), op + (op.empty() || pass.empty() ? "" : ", ") + pass, where ? *where : ""});
    if (block.stack.empty()) continue;
    stacks += fmt::format("\n{} {}:\n```\n", bytes_text(block.bytes), op);
    for (const std::string& line : stack_lines(block.stack)) stacks += line + "\n";
    stacks += "```\n";
  }
  return table.text() + stacks;
}

std::string saved_table(const std::vector<SavedBytes>& saved) {
  io::MarkdownTable table({"bytes", "op", "module"});
  std::size_t sum = 0, rest = 0;
  for (std::size_t i = 0; i < saved.size(); ++i) {
    sum += saved[i].bytes;
    if (i < saved_shown) table.add({bytes_text(saved[i].bytes), saved[i].op, saved[i].module});
    else rest += saved[i].bytes;
  }
  if (rest > 0) table.add({bytes_text(rest), fmt::format("{} others", saved.size() - saved_shown), ""});
  table.add({bytes_text(sum), "in all", ""});
  return table.text();
}

}  // namespace

std::string bytes_text(std::size_t bytes) {
  const auto count = static_cast<double>(bytes);
  if (bytes >= std::size_t{1} << 30) return fmt::format("{:.3f} GiB", count / 0x1p30);
  if (bytes >= std::size_t{1} << 20) return fmt::format("{:.2f} MiB", count / 0x1p20);
  if (bytes >= std::size_t{1} << 10) return fmt::format("{:.1f} KiB", count / 0x1p10);
  return fmt::format("{}", bytes);
}

std::string memory_report(const std::string& title, const std::vector<std::string>& notes, const std::vector<MemoryReportPart>& parts) {
  std::string text = "# " + title + "\n\n";
  for (const std::string& note : notes) text += note + "\n\n";
  text += "Peak bytes by category, which sum to the allocator's own peak:\n\n" + peaks_table(parts);
  for (const MemoryReportPart& part : parts) {
    if (part.history) {
      text += fmt::format("\n## {}: the largest blocks at the peak\n\n", part.title) + largest_table(*part.history, true);
      text += fmt::format("\n## {}: the largest allocations within it\n\n", part.title) + largest_table(*part.history, false);
    }
    if (part.history && !part.history->is_complete()) text += "\nEvents are missing: there was no memory to keep them.\n";
    if (!part.saved.empty()) text += fmt::format("\n## {}: saved for backward\n\n", part.title) + saved_table(part.saved);
  }
  return text;
}

void write_memory_report(const std::string& path, const std::string& title, const std::vector<std::string>& notes,
                         const std::vector<MemoryReportPart>& parts) {
  io::write_file_atomically(path, memory_report(title, notes, parts));
}

}  // namespace tern::profile
