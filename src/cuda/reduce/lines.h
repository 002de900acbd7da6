#pragma once
#include <cstdint>

// How the lines of a reduction, an arg reduction or a cumulative sum are dealt out to threads.
namespace tern::gpu {

/// Threads that fill a GPU well enough: below that a reduction gives a line several lanes. It is an eighth of what an H200 holds, 132
/// multiprocessors of 2048. A fixed number, and not the device's own, since the order of a sum and so its last bits follow from it: they
/// are the same on every GPU. A smaller one is full earlier, and only makes a few threads more than it needs.
inline constexpr std::int64_t enough_threads = 32768;

/// Whether neighbouring lines lie side by side, so that a warp reads contiguous memory with a thread for each line: their elements are
/// closer together than those of one line. `step` is from line to line.
inline bool are_side_by_side(std::int64_t lines, std::int64_t step, std::int64_t step_within) {
  const auto magnitude = [](std::int64_t x) { return x < 0 ? -x : x; };
  return lines > 1 && magnitude(step) < magnitude(step_within);
}

}  // namespace tern::gpu
