#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <utility>

#include "backend/device.h"
#include "tensor/sizes.h"

// Calls of the CUDA runtime: errors, streams, and the launch of kernels.
namespace tern::gpu {

/// Throws Error, `[cuda] what: the runtime's message`.
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

/// Makes the stream's device current in this thread, as every call of the runtime requires.
inline void use(Stream stream) { check(cudaSetDevice(stream.device.index), "cudaSetDevice"); }

/// Stream priority: blocks of a high-priority stream are scheduled first when kernels of several streams wait for resources.
enum class Priority : bool { normal, high };

/// Separate stream, which does not wait for the default stream. Its memory pool outlives it.
class OwnedStream {
 public:
  explicit OwnedStream(Device device, Priority priority = Priority::normal) {
    stream_.device = device;
    use(stream_);
    cudaStream_t created = nullptr;
    int lowest = 0, highest = 0;
    check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "cudaDeviceGetStreamPriorityRange");
    check(cudaStreamCreateWithPriority(&created, cudaStreamNonBlocking, priority == Priority::high ? highest : lowest), "cudaStreamCreate");
    stream_.handle = created;
  }
  ~OwnedStream() { cudaStreamDestroy(handle(stream_)); }
  OwnedStream(const OwnedStream&) = delete;
  OwnedStream& operator=(const OwnedStream&) = delete;

  Stream get() const { return stream_; }

 private:
  Stream stream_;
};

/// Raises a kernel's limit of dynamic shared memory to `bytes`. Needed above 48 KB minus the kernel's static arrays; skipped below 40 KB,
/// where it would lower the limit of later launches.
inline void allow_shared(const void* kernel, std::size_t bytes) {
  if (constexpr std::size_t without_asking = 40 << 10; bytes > without_asking)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)), "cudaFuncSetAttribute");
}

/// Launch configuration of a kernel.
struct LaunchConfig {
  dim3 grid, block;
  std::size_t shared = 0;  ///< bytes of dynamic shared memory
  Stream stream;
  /// Blocks of a thread block cluster, a power of two up to 8, which access each other's shared memory. More than one needs compute
  /// capability 9.
  unsigned cluster = 1;
  /// Programmatic dependent launch: the kernel may start before the previous one ends, and calls grid_dependency_wait before it reads what
  /// that wrote. Ignored before compute capability 9.
  bool overlaps_previous = false;
};

/// The only function that launches kernels. Arguments are converted to the kernel's parameter types.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), const LaunchConfig& config, Arguments&&... arguments) {
  use(config.stream);
  const void* const function = reinterpret_cast<const void*>(kernel);
  allow_shared(function, config.shared);
  [&](Parameters... values) {
    void* pointers[] = {const_cast<void*>(static_cast<const void*>(&values))...};
    cudaLaunchAttribute attributes[2]{};
    unsigned count = 0;
    if (config.cluster > 1) {
      attributes[count].id = cudaLaunchAttributeClusterDimension;
      attributes[count++].val.clusterDim = {config.cluster, 1, 1};
    }
    if (config.overlaps_previous && attribute(cudaDevAttrComputeCapabilityMajor, config.stream.device) >= 9) {
      attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    }
    const cudaLaunchConfig_t launched{config.grid, config.block, config.shared, handle(config.stream), attributes, count};
    check(cudaLaunchKernelExC(&launched, function, pointers), "launch");
  }(std::forward<Arguments>(arguments)...);
}
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared, Stream stream, Arguments&&... arguments) {
  launch(kernel, LaunchConfig{.grid = grid, .block = block, .shared = shared, .stream = stream}, std::forward<Arguments>(arguments)...);
}

/// Default number of threads in a block.
inline constexpr int block_size = 256;

/// Number of blocks for `count` elements, as a grid's first dimension.
inline unsigned blocks_for(std::int64_t count, std::int64_t size = block_size) {
  const std::int64_t blocks = ceil_div(count, size);
  if (blocks > 0x7fffffff) fail("cuda", "expected work for at most 2^31 - 1 blocks");
  return static_cast<unsigned>(std::max<std::int64_t>(blocks, 1));
}

/// Number of thread block clusters, of `cluster` blocks each, that a kernel can run at the same time on the stream's device; number of
/// blocks if `cluster` is 1. Clusters are confined to parts of the chip (GPCs), whose multiprocessors need not be a multiple of the cluster
/// size. Queried once for each kernel, shape and device.
unsigned clusters_at_once(const void* kernel, unsigned cluster, unsigned block, std::size_t shared, Stream stream);
template <class... Parameters>
unsigned clusters_at_once(void (*kernel)(Parameters...), unsigned cluster, unsigned block, std::size_t shared, Stream stream) {
  return clusters_at_once(reinterpret_cast<const void*>(kernel), cluster, block, shared, stream);
}

}  // namespace tern::gpu
