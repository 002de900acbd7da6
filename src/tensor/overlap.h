#pragma once
#include <optional>

#include "tensor/tensor.h"

namespace tern {

/// First element and one past the last that a window covers, relative to the window's first element.
struct Extent {
  std::int64_t low = 0, high = 0;
};
/// Extent of a window; none if it is invalid: sizes and strides that do not match, a negative size, or numbers beyond 64 bits.
std::optional<Extent> extent_of(const Shape& shape, const Strides& strides);

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
