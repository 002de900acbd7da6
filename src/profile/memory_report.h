#pragma once
#include <filesystem>
#include <string>

#include "profile/memory_history.h"

namespace tern::profile {

/// A part of the report: what a history says, and what the graph of its loss keeps.
struct MemoryReportPart {
  std::string title;                       ///< "forward", "step"
  const MemoryHistory* history = nullptr;  ///< null where memory ran out before there was one
  std::vector<SavedBytes> saved = {};      ///< saved_for_backward(loss)
  std::string failure = {};                ///< "out of memory"; "" where the work ended well
};

/// "1.250 GiB", "20.00 MiB", "1.5 KiB", and below that the number of bytes alone, "512".
std::string bytes_text(std::size_t bytes);

/// Markdown: a table of peaks by category, then for each part the largest blocks at its peak with category, op, module and the stack where
/// the history has it, and the bytes saved for backward by module. `notes` are lines above the table.
std::string memory_report(const std::string& title, const std::vector<std::string>& notes, const std::vector<MemoryReportPart>& parts);

/// Writes it. Throws FileError.
void write_memory_report(const std::filesystem::path& path, const std::string& title, const std::vector<std::string>& notes,
                         const std::vector<MemoryReportPart>& parts);

}  // namespace tern::profile
