#pragma once

// Programmatic dependent launch (sm_90): a kernel that was launched with LaunchConfig::overlaps_previous may start while the one before it
// on the stream still runs. Elsewhere kernels of a stream follow each other, and both functions are empty.
namespace tern::gpu {

/// Waits until the kernel before has ended, and its writes can be read.
__device__ __forceinline__ void grid_dependency_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Lets the next kernel start as soon as all blocks of this one have called it or ended. The next kernel sees this one's writes only after
/// grid_dependency_wait.
__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

}  // namespace tern::gpu
