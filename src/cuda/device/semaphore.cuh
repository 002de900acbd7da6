#pragma once
#include "cuda/runtime/semaphore.h"

namespace tern::gpu {

/// Note [Last block]
/// A sum over more rows than a block reads has two stages: blocks leave partial sums, and something adds those. A second kernel for that
/// costs a launch and a start, more than the addition itself; so the last block of a group to leave its part adds them all, in the order of
/// the parts and not of arrival. Blocks find out by counting arrivals in device memory. The counters are zero between kernels: the last
/// block sets its group's back, and kernels of one stream do not overlap in this.

/// True in all threads of the last of a group's `blocks` blocks to call it with the group's counter. What the others had written to global
/// memory before is then there to be read. `sync` waits for all threads of a block that call it, and is_last is shared by them.
template <class Sync>
__device__ __forceinline__ bool is_last_block(unsigned* counter, unsigned blocks, bool& is_last, Sync sync) {
  sync();
  if (threadIdx.x == 0) {
    __threadfence();  // of one thread, for all: what the others wrote came before their sync
    is_last = atomicAdd(counter, 1) == blocks - 1;
    if (is_last) *counter = 0;
    __threadfence();
  }
  sync();
  return is_last;
}

}  // namespace tern::gpu
