#pragma once
#include <string>

#include "profile/memory_history.h"

namespace tern::profile {

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
