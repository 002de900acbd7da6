#pragma once
#include "tensor/tensor.h"

namespace tern {

/// @file
/// Reductions over the given dimensions, or over all if none is given; `keepdim` keeps each as size 1. 16-bit floats are reduced in
/// float32. Integers: sum, prod and cumsum of bool, u8 and i32 give i64, as in NumPy. All throw Error for a dimension that does not exist
/// or is given twice.

/// Sum; 0 over no elements.
Tensor sum(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// Mean, of floating dtypes; NaN over no elements.
Tensor mean(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// Variance: mean squared deviation from the mean, divided by (n - correction).
Tensor var(const Tensor& x, const Dims& dims = {}, std::int64_t correction = 1, bool keepdim = false);
/// Product; 1 over no elements. Its gradient is exact where elements are 0.
Tensor prod(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// @{
/// Largest or smallest element; equal ones share the gradient. Throw Error over no elements.
Tensor max(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor min(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// @}
/// log(sum(exp(x))), without overflow.
Tensor logsumexp(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// @{
/// True if any element, or each element, is not 0; the result is bool.
Tensor any(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor all(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// @}
/// @{
/// Index (i64) of the largest or smallest element along a dimension, the first among equals. Throw Error over no elements.
Tensor argmax(const Tensor& x, int dim = -1, bool keepdim = false);
Tensor argmin(const Tensor& x, int dim = -1, bool keepdim = false);
/// @}
/// Cumulative sum along a dimension.
Tensor cumsum(const Tensor& x, int dim);
/// Cumulative maximum along a dimension, of a numeric dtype; NaN propagates. The gradient goes to the last element so far that is it.
Tensor cummax(const Tensor& x, int dim);

// Reductions, cumulative products and counts that are composed of other ops. Those with `dims` reduce over all dimensions if none is
// given.

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

namespace detail {
/// x minus its mean over the dimensions (all if none is given), in ops. In f32 the mean is rounded, near 1e5 by up to 4e-3, an error that
/// every difference would have. The differences are small, so subtracting their own mean as well leaves only the rounding of x.
Tensor centered(const Tensor& x, const Dims& dims);
}  // namespace detail

}  // namespace tern
