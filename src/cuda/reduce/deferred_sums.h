#pragma once
#include "ops/kernels/deferred_sums.h"

namespace tern::gpu {

/// Where a kernel leaves its partial sums: with the pass's deferred sums, where there are some of the same stream, and else in sums of its
/// own. finish(), called after the kernel, adds up the latter at once.
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
