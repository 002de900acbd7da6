#pragma once
#include "cuda/runtime/launch.h"

namespace tern::gpu {

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

}  // namespace tern::gpu
