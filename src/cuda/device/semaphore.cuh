#pragma once

// Order of a kernel's blocks, by completion counters and semaphores in device memory (runtime/allocator.h allocates them), and of a
// stream's kernels.
namespace tern::gpu {

/// Note [Last block]
/// A sum over more rows than a block reads has two stages: blocks leave partial sums, and those are added up. A second kernel for that
/// would take longer to launch than to add; so the last block of a group to finish adds up all partial sums, in their order and not in
/// order of arrival. A completion counter in device memory determines which block that is. The counters are zero between kernels: the last
/// block resets its group's counter, and kernels of one stream do not overlap here.

/// Returns true in all threads of the last of a group's `blocks` blocks to call it with the group's counter. Everything that the others
/// wrote to global memory before is then visible. `sync` synchronizes all threads of a block that call it, and is_last is in their shared
/// memory.
template <class Sync>
__device__ __forceinline__ bool is_last_block(unsigned* counter, unsigned blocks, bool& is_last, Sync sync) {
  sync();
  if (threadIdx.x == 0) {
    __threadfence();  // by one thread for the block: sync orders the others' writes before it
    is_last = atomicAdd(counter, 1) == blocks - 1;
    if (is_last) *counter = 0;
    __threadfence();
  }
  sync();
  return is_last;
}

/// Note [Ordered sums]
/// Atomic additions of floats give a different sum in each run, because their order changes. Where blocks add to the same location in
/// global memory, a semaphore orders them instead: it counts the blocks that have added, and a block waits for those before it. Blocks must
/// be numbered so that a block waits only for lower numbers, which the device has started earlier.

/// Waits until the semaphore equals `turn`, and then sees what the previous blocks wrote.
__device__ __forceinline__ void semaphore_wait(const int* semaphore, int turn) {
  int value;
  do asm volatile("ld.acquire.gpu.global.b32 %0, [%1];\n" : "=r"(value) : "l"(semaphore) : "memory");
  while (value != turn);
}
/// Passes the semaphore to the next block, which then sees what this thread wrote, and the writes that were visible to it.
__device__ __forceinline__ void semaphore_release(int* semaphore, int turn) {
  __threadfence();
  asm volatile("st.relaxed.gpu.global.b32 [%0], %1;\n" ::"l"(semaphore), "r"(turn) : "memory");
}

/// Adds to global memory without returning the old value (red).
__device__ __forceinline__ void red_add(float4* to, const float (&x)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"l"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
               : "memory");
#else
#pragma unroll
  for (int i = 0; i < 4; ++i) atomicAdd(reinterpret_cast<float*>(to) + i, x[i]);
#endif
}

// Programmatic dependent launch (sm_90): a kernel launched with LaunchConfig::overlaps_previous may start while the previous one on the
// stream is still running. On other devices kernels of a stream run one after the other, and both functions are empty.

/// Waits until the previous kernel has ended and its writes are visible.
__device__ __forceinline__ void grid_dependency_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Lets the next kernel start once all blocks of this one have called it or exited. The next kernel sees this one's writes only after
/// grid_dependency_wait.
__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

}  // namespace tern::gpu
