#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <utility>

#include "backend/device.h"

namespace tern::gpu {

/// Throws Error, `[cuda] what: the runtime's words`.
[[noreturn]] void fail_call(cudaError_t code, const char* what);
inline void check(cudaError_t code, const char* what) {
  if (code != cudaSuccess) [[unlikely]]
    fail_call(code, what);
}

inline cudaStream_t handle(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

inline int attribute(cudaDeviceAttr which, Device device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device.index), "cudaDeviceGetAttribute");
  return value;
}

/// Makes the stream's device the current one of this thread, as every call of the runtime needs.
inline void use(Stream stream) { check(cudaSetDevice(stream.device.index), "cudaSetDevice"); }

/// The one place where kernels start. Arguments are converted to the kernel's parameter types.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared, Stream stream, Arguments&&... arguments) {
  use(stream);
  [&](Parameters... values) {
    void* pointers[] = {const_cast<void*>(static_cast<const void*>(&values))...};
    check(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, pointers, shared, handle(stream)), "launch");
  }(std::forward<Arguments>(arguments)...);
}

/// As launch, with every `cluster` blocks, a power of two up to 8, side by side on the device and in reach of each other's
/// shared memory. Needs compute capability 9.
template <class... Parameters, class... Arguments>
void launch_clusters(void (*kernel)(Parameters...), dim3 grid, dim3 block, unsigned cluster, std::size_t shared, Stream stream,
                     Arguments&&... arguments) {
  use(stream);
  [&](Parameters... values) {
    void* pointers[] = {const_cast<void*>(static_cast<const void*>(&values))...};
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {cluster, 1, 1};
    const cudaLaunchConfig_t config{grid, block, shared, handle(stream), &attribute, 1};
    check(cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), pointers), "launch");
  }(std::forward<Arguments>(arguments)...);
}

/// Threads of a block where nothing asks for another number.
inline constexpr int block_size = 256;

/// ceil(count / size), as a grid's first dimension.
inline unsigned blocks_for(std::int64_t count, std::int64_t size = block_size) {
  const std::int64_t blocks = (count + size - 1) / size;
  if (blocks > 0x7fffffff) fail("cuda", "expected work for at most 2^31 - 1 blocks");
  return static_cast<unsigned>(std::max<std::int64_t>(blocks, 1));
}

}  // namespace tern::gpu
