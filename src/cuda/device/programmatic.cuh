#pragma once

// Programmatic dependent launch (sm_90): a kernel launched with LaunchConfig::overlaps_previous may start while the previous one on the
// stream is still running. On other devices kernels of a stream run one after the other, and both functions are empty.
namespace tern::gpu {

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
