#pragma once
#include "tensor/tensor.h"

namespace tern {

/// @file
/// Reductions, cumulative products and counts that are composed of other ops. Those with `dims` reduce over all dimensions if none is
/// given.

/// Standard deviation sqrt(var(x)), with the divisor n - correction; its derivative is 0 where it is 0. Floating dtypes.
Tensor stddev(const Tensor& x, const Dims& dims = {}, std::int64_t correction = 1, bool keepdim = false);
/// p-norm, (sum |x|^p)^(1/p); the largest |x| for p = infinity, the smallest for -infinity, and the number of nonzero elements for p = 0.
/// The gradient is 0 where an element is 0 or, for p > 0, the norm is. Floating dtypes.
Tensor norm(const Tensor& x, const Dims& dims = {}, double p = 2, bool keepdim = false);
/// Median along a dimension, the lower one of two; the gradient goes to that element. NaN if an element is NaN. Throws Error over no
/// elements. Sorts.
Tensor median(const Tensor& x, int dim = -1, bool keepdim = false);
/// Cumulative product along a dimension, exact with zeros; of integers and bool it is i64, and wraps. Costs log2(size) products of the
/// whole tensor.
Tensor cumprod(const Tensor& x, int dim);

/// The result of unique(): K different values in ascending order.
struct Unique {
  Tensor values;   ///< (K)
  Tensor inverse;  ///< i64, of x's shape: values[inverse] is x
  Tensor counts;   ///< (K) i64
};
/// Distinct elements of x; each NaN counts as distinct, at the end. No gradient. Sorts, and waits for the device to count them.
Unique unique(const Tensor& x);
/// Histogram of integers x (N), all >= 0: the number of times that each occurs, or the sum of its weights (N), to which gradients flow;
/// (max(x) + 1), or (least) if that is more. Waits for the device.
Tensor bincount(const Tensor& x, const Tensor& weights = {}, std::int64_t least = 0);
/// Draws `count` indices (..., count), i64, for each row of weights (..., V), which are >= 0 and need not sum to 1, from this thread's
/// generator. With replacement by inversion: V + count numbers of memory, log2(V) steps, and a class whose share is below 2^-52 is not
/// drawn. Without replacement by an exponential race, the Gumbel-max trick: V random numbers. Weights are summed in f64. Throws Error for
/// more draws than V without replacement, and on the CPU for a weight that is negative, NaN or infinite and for a row without a positive
/// weight or, without replacement, with fewer than `count` of them. On a GPU, where a check would wait for the device, the draws of such a
/// row are arbitrary.
Tensor multinomial(const Tensor& weights, std::int64_t count, bool replacement = false);

}  // namespace tern
