#pragma once
#include "tensor/tensor.h"

namespace tern {

/// Whether elements share memory.
enum class Overlap : std::uint8_t {
  none,
  whole,      ///< the same window: the same elements in the same places
  partial,    ///< some element is another one's, or the same in another place
  undecided,  ///< the windows interlock so that a bounded search found no answer
};

/// Of an element of the tensor with another one of it.
Overlap overlap(const Tensor& x);
/// Of the elements of two tensors.
Overlap overlap(const Tensor& a, const Tensor& b);

}  // namespace tern
