#pragma once
#include <cstdint>

// Distribution of the lines of a reduction, an arg reduction or a cumulative sum over threads.
namespace tern::gpu {

/// Number of threads that fills a GPU well enough: with fewer lines, a reduction gives a line several lanes. It is an eighth of what an
/// H200 holds, 132 multiprocessors of 2048 threads. A fixed number, not the device's own, because the order of a sum and so its last bits
/// depend on it: they are the same on every GPU. A smaller GPU is full earlier, and only gets a few threads more than it needs.
inline constexpr std::int64_t enough_threads = 32768;

/// True if adjacent lines are side by side in memory, so that a warp with one thread per line reads contiguous memory: the elements of
/// adjacent lines are closer together than those of one line. `step` is the stride from line to line.
inline bool are_side_by_side(std::int64_t lines, std::int64_t step, std::int64_t step_within) {
  const auto magnitude = [](std::int64_t x) { return x < 0 ? -x : x; };
  return lines > 1 && magnitude(step) < magnitude(step_within);
}

}  // namespace tern::gpu
