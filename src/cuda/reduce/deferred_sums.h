#pragma once
#include <deque>
#include <vector>

#include "backend/partial_sums.h"
#include "cuda/runtime/allocator.h"
#include "tensor/view.h"

namespace tern::gpu {

/// `to` (N) = the sum of `count` parts of N elements each, `pitch` apart, or that added to it; in the order of the parts.
struct PartialSum {
  const void* parts;  ///< float, or double where `to` is
  void* to;
  std::int64_t pitch, stride;  ///< in elements: of parts, and of `to`
  unsigned count, columns;
  DType dtype;  ///< of `to`
  bool adds;
};

class DevicePartialSums final : public backend::PartialSums {
 public:
  explicit DevicePartialSums(Stream stream) : stream_(stream) {}
  Stream stream() const { return stream_; }
  /// Memory for parts, kept until they are added up.
  void* memory(std::size_t bytes);
  void add(const PartialSum& sum) { sums_.push_back(sum); }
  void finish() override;

 private:
  Stream stream_;
  std::vector<PartialSum> sums_;
  std::deque<Workspace> memory_;
  std::size_t bytes_ = 0;
};

/// What a kernel leaves its parts in: in `later`, where that is given and of the same stream, or by itself. Then `finish`, to be called
/// after the kernel, adds them up at once.
class Parts {
 public:
  Parts(backend::PartialSums* later, Stream stream) : own_(stream) {
    auto* const given = static_cast<DevicePartialSums*>(later);
    sums_ = given && given->stream().device == stream.device && given->stream().handle == stream.handle ? given : &own_;
  }
  DevicePartialSums* operator->() const { return sums_; }
  void finish() {
    if (sums_ == &own_) own_.finish();
  }

 private:
  DevicePartialSums own_;
  DevicePartialSums* sums_;
};

}  // namespace tern::gpu
