#pragma once
#include <filesystem>
#include <string>

#include "profile/memory_history.h"

namespace tern::profile {

/// The history as a snapshot of torch.cuda.memory._snapshot's form, a pickle, which the page pytorch.org/memory_viz draws and
/// torch/cuda/_memory_viz.py reads: `segments` as they are at the end, and `device_traces` with the actions alloc, free_requested,
/// free_completed, segment_alloc, segment_free and oom. Frames are the category, the op with its pass, and the module, as a stack has them:
/// the op innermost; and the C++ stack where the history has it. The CPU stands as device 0, and each of its blocks is a segment.
std::string memory_snapshot(const MemoryHistory& history);

/// Writes it. Throws FileError.
void write_snapshot(const MemoryHistory& history, const std::filesystem::path& path);

/// "name at library+0x1234", a line a frame, innermost first.
std::vector<std::string> stack_lines(const std::vector<void*>& stack);

}  // namespace tern::profile
