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

}  // namespace tern
