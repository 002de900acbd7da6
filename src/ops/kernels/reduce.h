#pragma once
#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "tensor/kernel.h"
#include "tensor/storage.h"

namespace tern::kernels {

enum class ReduceFunction : std::uint8_t { sum, prod, max, min, logsumexp, any, all };

/// y = scale * reduction of x over the dimensions in which y has size 1 and x has not; x and y have the same number of dimensions, any
/// strides. `scale` applies to sum only, in f64, so that the mean of equal numbers is that number. Dtypes: sum, prod: y has x's floating
/// dtype, or i64 for integers and bool; max, min: x's numeric dtype; logsumexp: a floating one; any, all: x of any dtype, y bool. 16-bit
/// floats are reduced in float32. Over no elements: sum 0, prod 1, logsumexp -inf, any false, all true (max and min of nothing are refused
/// by the op). NaN propagates. Sums are pairwise or tree-shaped, and deterministic.
struct Reduce {
  ReduceFunction f;
  In x;
  Out y;
  double scale;
  void run(Cpu) const;
  void run(Cuda) const;
};

/// y (i64) = the index of the largest (or smallest) element along `dim`, the first among equals; NaN counts as largest
/// (smallest). y has size 1 in that dimension.
struct ArgReduce {
  bool largest;
  In x;
  Out y;
  int dim;
  void run(Cpu) const;
  void run(Cuda) const;
};

enum class CumulativeFunction : std::uint8_t { sum, max };

/// y = cumulative sum or maximum of x along `dim`, from the end if `reverse`; same shape, any strides. y has x's floating dtype; of
/// integers and bool a sum is i64, and a maximum has x's dtype. NaN propagates.
struct Cumulative {
  CumulativeFunction f;
  In x;
  Out y;
  int dim;
  bool reverse;
  void run(Cpu) const;
  void run(Cuda) const;
};

/// Sum over partial results: `to` (N) = the sum of `count` parts of N elements each, in their order, or that sum added to it.
struct PartialSum {
  const void* parts;  ///< float, or double where `to` is
  void* to;
  std::int64_t pitch, stride;  ///< in elements: from part to part, and of `to`
  unsigned count, columns;
  DType dtype;  ///< dtype of `to`
  bool adds;
};

/// Computes all of the sums; one launch adds up to 64 of similar length. Their order in the span may change. CPU kernels leave no partial
/// sums.
struct AddPartialSums {
  std::span<PartialSum> sums;
  Stream stream;
  void run(Cuda) const;
};

/// Deferred (batched) reductions of a backward pass. Gradients of norms and biases are sums over rows, which kernels leave as partial sums,
/// one part for some rows each. There are two dozen and more of them in a pass, of a few KB each: little work, but many kernels. A kernel
/// that gets a DeferredSums may leave its partial sums here, and `finish` adds up all of them in one kernel. Kernels of another stream, and
/// those of the CPU, add up at once.
class DeferredSums {
 public:
  explicit DeferredSums(Stream stream = {cpu}) : stream_(stream) {}
  Stream stream() const { return stream_; }
  /// Place for the sums of a kernel on this one's stream: `given`, if that is of the same stream, or this one, for finish() after the
  /// kernel.
  DeferredSums& or_given(DeferredSums* given) {
    return given && given->stream_.device == stream_.device && given->stream_.handle == stream_.handle ? *given : *this;
  }

  /// Memory for partial sums, kept until they are added up, which happens here once they would take more than 16 MiB.
  void* memory(std::size_t bytes) {
    constexpr std::size_t max_bytes = std::size_t(16) << 20;  // so that they are still in the L2 cache (H200: 50 MB)
    if (bytes_ + bytes > max_bytes) finish();
    bytes_ += bytes;
    return memory_.emplace_back(make_ref<Storage>(std::max<std::size_t>(bytes, 1), stream_))->data();
  }
  void add(const PartialSum& sum) { sums_.push_back(sum); }
  /// Queues the additions. Results are valid only after this.
  void finish() {
    std::vector<PartialSum> sums = std::exchange(sums_, {});
    if (!sums.empty()) launch(Cuda{}, AddPartialSums{sums, stream_}, "sum_gradients");
    memory_.clear();
    bytes_ = 0;
  }

  bool is_empty() const { return sums_.empty(); }  ///< no sum is pending
  /// True if a pending sum goes to the memory of x, which is contiguous.
  bool has_sum_to(const View& x) const {
    const auto* const begin = static_cast<const std::byte*>(x.data);
    const std::size_t bytes = static_cast<std::size_t>(x.numel()) * size_of(x.dtype);
    return std::any_of(sums_.begin(), sums_.end(), [=](const PartialSum& sum) { return sum.to >= begin && sum.to < begin + bytes; });
  }

 private:
  Stream stream_;
  std::vector<PartialSum> sums_;
  std::vector<Ref<Storage>> memory_;
  std::size_t bytes_ = 0;
};

}  // namespace tern::kernels
