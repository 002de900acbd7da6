#pragma once
#include <string>

#include "profile/memory_history.h"

namespace tern::profile {

/// A part of the report: a history, and the memory that is saved for its backward pass.
struct MemoryReportPart {
  std::string title;                       ///< "forward", "step"
  const MemoryHistory* history = nullptr;  ///< null if memory ran out before it began
  std::vector<SavedBytes> saved = {};      ///< saved_for_backward(loss)
  std::string failure = {};                ///< "out of memory"; "" if the work succeeded
};

/// A size as text: "1.250 GiB", "20.00 MiB", "1.5 KiB", "512".
std::string bytes_text(std::size_t bytes);

/// A report in Markdown: a table of peaks by category; then for each part the largest blocks at its peak, with category, op, module and
/// recorded stack, and the bytes saved for backward by module. `notes` are lines above the table.
std::string memory_report(const std::string& title, const std::vector<std::string>& notes, const std::vector<MemoryReportPart>& parts);

/// Writes the memory_report to a file. Throws FileError.
void write_memory_report(const std::string& path, const std::string& title, const std::vector<std::string>& notes,
                         const std::vector<MemoryReportPart>& parts);

}  // namespace tern::profile
