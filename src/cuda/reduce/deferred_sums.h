#pragma once
#include "ops/kernels/deferred_sums.h"

namespace tern::gpu {

/// Where a kernel leaves the parts of its sums: in those that are deferred to the end of the pass, where it was given some of the same
/// stream, or in its own, which `finish`, to be called after the kernel, adds up at once.
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
