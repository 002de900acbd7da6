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

/// An SVG picture of a history: a stacked area chart of the bytes of each category over time, with the peak, and a band of the passes
/// below. Each column shows the maximum of its interval, so that no peak is lost. Suits light and dark pages.
std::string to_svg(const MemoryHistory& history, const std::string& title);

/// The history as a pickle in the format of torch.cuda.memory._snapshot, for the page pytorch.org/memory_viz and for
/// torch/cuda/_memory_viz.py: `segments` at the end of the history, and `device_traces` with the actions alloc, free_requested,
/// free_completed, segment_alloc, segment_free and oom. The frames of a block are its category, its op with the pass, and its module, with
/// the op innermost, followed by the recorded C++ stack. The CPU appears as device 0, with one segment for each block.
std::string memory_snapshot(const MemoryHistory& history);

/// Writes the memory_snapshot to a file. Throws FileError.
void write_snapshot(const MemoryHistory& history, const std::string& path);

/// A stack as text, one line "name at library+0x1234" for each frame, innermost first.
std::vector<std::string> stack_lines(const std::vector<void*>& stack);

}  // namespace tern::profile
