#pragma once
#include "ops/kernels/deferred_sums.h"

namespace tern::gpu {

/// Partial sums of a kernel: they are added to the backward pass's deferred sums, if there are any on the same stream; otherwise finish(),
/// called after the kernel, adds them up at once.
class PartialSums {
 public:
  PartialSums(kernels::DeferredSums* deferred, Stream stream) : own_(stream), sums_(&own_) {
    if (deferred && deferred->stream().device == stream.device && deferred->stream().handle == stream.handle) sums_ = deferred;
  }
  PartialSums(const PartialSums&) = delete;
  PartialSums& operator=(const PartialSums&) = delete;
  kernels::DeferredSums* operator->() const { return sums_; }
  void finish() { own_.finish(); }

 private:
  kernels::DeferredSums own_;
  kernels::DeferredSums* sums_;
};

}  // namespace tern::gpu
