#pragma once
#include "tensor/tensor.h"

namespace tern {

/// @file
/// Reductions, running products and counts that are composed of other ops. Those over dimensions reduce all where none is named.

/// sqrt(var(x)): the standard deviation, divided by n - correction; its derivative where it is 0 is 0. Floating dtypes.
Tensor stddev(const Tensor& x, const Dims& dims = {}, std::int64_t correction = 1, bool keepdim = false);
/// (sum |x|^p)^(1/p); the largest |x| for p = infinity, the smallest for -infinity, and the number of elements other than 0 for p = 0. The
/// gradient is 0 where an element is 0 or, for p > 0, the norm is. Floating dtypes.
Tensor norm(const Tensor& x, const Dims& dims = {}, double p = 2, bool keepdim = false);
/// The middle element along a dimension, the lower one of two; the gradient goes to it. NaN if an element is NaN. Throws Error over no
/// elements. A sort.
Tensor median(const Tensor& x, int dim = -1, bool keepdim = false);
/// Running products along a dimension, zeros included; those of integers and bool are i64, and wrap. log2(size) products of the whole
/// tensor.
Tensor cumprod(const Tensor& x, int dim);

/// The result of unique(): K different values in ascending order.
struct Unique {
  Tensor values;   ///< (K)
  Tensor inverse;  ///< i64 in x's shape: values[inverse] is x
  Tensor counts;   ///< (K) i64
};
/// The different elements of x; each NaN is one of its own, in the end. No gradient. A sort; waits for the device to count them.
Unique unique(const Tensor& x);
/// (max(x) + 1 or `least`, if that is more): how often each number occurs in x (N), integers >= 0, or the sum of its weights (N), to which
/// gradients flow. Waits for the device.
Tensor bincount(const Tensor& x, const Tensor& weights = {}, std::int64_t least = 0);
/// `count` indices (..., count), i64, drawn for each row of weights (..., V), which are >= 0 and need no sum of 1, with replacement or
/// without: with the Gumbel-max trick, by the exponential form p / -log(u), that takes count V random numbers or V. From this thread's
/// generator. Throws Error for more draws than V without replacement, and on the CPU for a weight that is negative, NaN or infinite and for
/// a row with no weight beyond 0 or, without replacement, fewer than `count` of them; on a GPU, where looking would have to wait, such a
/// row's draws are any.
Tensor multinomial(const Tensor& weights, std::int64_t count, bool replacement = false);

}  // namespace tern
