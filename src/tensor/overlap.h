#pragma once
#include "tensor/tensor.h"

namespace tern {

/// Overlap of two sets of elements in memory.
enum class Overlap : std::uint8_t {
  none,
  whole,      ///< the same window: the same elements in the same order
  partial,    ///< some elements are shared, but not in the same order
  undecided,  ///< a bounded search found no answer
};

/// Overlap of a tensor's elements among themselves.
Overlap overlap(const Tensor& x);
/// Overlap of the elements of two tensors.
Overlap overlap(const Tensor& a, const Tensor& b);

}  // namespace tern
