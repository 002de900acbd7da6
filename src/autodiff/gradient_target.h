#pragma once
#include <initializer_list>

#include "tensor/tensor.h"

namespace tern {

namespace kernels {
class DeferredSums;
}

/// The memory that a kernel puts the gradient of an op's input in.
struct GradientTarget {
  Tensor gradient;                            ///< contiguous; undefined where there is none
  Write write = Write::overwrite;             ///< accumulate: the kernel adds to what is there
  kernels::DeferredSums* deferred = nullptr;  ///< where the gradient, a sum, may be left in parts
  bool is_new = false;                        ///< memory made for this call, and not a leaf's gradient

  /// True where there is memory to write to.
  explicit operator bool() const { return gradient.defined(); }
  View view() const { return gradient.defined() ? gradient.view() : View{}; }  ///< for a kernel; without memory where there is none
  /// The result of backward for the input: nothing where the leaf has it already.
  Tensor result() const { return is_new ? gradient : Tensor(); }
};

/// For kernels that only add: fills those targets with zeros that would be overwritten, in one fill for neighbours in memory.
void start_from_zeros(std::initializer_list<GradientTarget*> targets);

}  // namespace tern
