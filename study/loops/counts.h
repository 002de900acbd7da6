#pragma once
#include "program.h"

namespace study::loops {

/// Features of a scheduled program for a model of its time, by arithmetic on its loops.
namespace feature {
enum Feature : std::size_t {
  // As log2 of how many there are for each statement of the kernel without a schedule.
  statements,
  steps,           ///< statements, a vector as one
  steps_a_thread,  ///< those of the busiest thread, one after the other
  arithmetic,
  slow_functions,
  choices,  ///< of the larger of two elements
  contiguous_reads,
  uniform_reads,  ///< the same element in all steps of the innermost loop
  strided_reads,
  stores,
  scattered_stores,
  guards,
  loop_steps,       ///< with a counter and a branch
  chain,            ///< steps of reductions that wait for the one before
  lines_beyond_l1,  ///< of memory
  lines_beyond_l2,
  uncoalesced,  ///< accesses of neighbouring threads that lie apart
  barriers,
  by_compiler,  ///< statements that compilers make vectors of
  cycles,       ///< of a processor, roughly, from those above
  // Means over steps, as log2.
  vector_width,
  inner_extent,
  // As log2 of their number and one more.
  code,  ///< statements, as often as they stand in the code
  register_bytes,
  shared_bytes,
  threads,
  blocks_or_cores,
  nests,
  bytes,
  count
};
}  // namespace feature

/// Their values, in order. `work`: the statements of the kernel without a schedule.
std::vector<double> features(const Program& program, double work);

}  // namespace study::loops
