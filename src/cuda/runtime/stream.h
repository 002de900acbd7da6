#pragma once
#include "cuda/runtime/launch.h"

namespace tern::gpu {

/// A stream of its own, which does not wait for the default stream. Its memory pool stays when it goes.
class OwnedStream {
 public:
  explicit OwnedStream(Device device) {
    stream_.device = device;
    use(stream_);
    cudaStream_t created = nullptr;
    check(cudaStreamCreateWithFlags(&created, cudaStreamNonBlocking), "cudaStreamCreate");
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
