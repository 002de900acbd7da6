#pragma once
#include "ops/kernels/deferred_sums.h"

namespace tern::gpu {

/// Partial sums of one kernel: among those deferred to the end of the pass, if it was given some of the same stream, or its own, which
/// `finish`, to be called after the kernel, adds up at once.
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
