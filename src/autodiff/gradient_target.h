#pragma once
#include <initializer_list>

#include "tensor/tensor.h"

namespace tern {

namespace kernels {
class DeferredSums;
}

/// Destination of a kernel for the gradient of an op's input.
struct GradientTarget {
  Tensor gradient;                            ///< contiguous; undefined if there is none
  Write write = Write::overwrite;             ///< accumulate: the kernel adds to what is there
  kernels::DeferredSums* deferred = nullptr;  ///< if given, the gradient, a sum, may be left there as partial sums
  bool is_new = false;                        ///< new memory of this call, not a leaf's gradient

  /// True if there is memory to write to.
  explicit operator bool() const { return gradient.defined(); }
  View view() const { return gradient.defined() ? gradient.view() : View{}; }  ///< for a kernel; without data if there is none
  /// Result of backward for the input: undefined if the leaf has it already.
  Tensor result() const { return is_new ? gradient : Tensor(); }
};

/// For kernels that only add: fills the targets that are to be overwritten with zeros, with one fill for those that are adjacent in memory.
void start_from_zeros(std::initializer_list<GradientTarget*> targets);

}  // namespace tern
