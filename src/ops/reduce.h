#pragma once
#include "tensor/tensor.h"

namespace tern {

/// @file
/// Reductions over the given dimensions, all of them where none is named; `keepdim` leaves each as size 1. 16-bit floats are reduced
/// in float32. Integers: sum, prod and cumsum of bool, u8 and i32 give i64, as in NumPy. All throw Error for a dimension that does not
/// exist or is named twice.

/// The sum; 0 over nothing.
Tensor sum(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// Floating dtypes; NaN over nothing.
Tensor mean(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// Mean squared deviation from the mean, divided by (n - correction).
Tensor var(const Tensor& x, const Dims& dims = {}, std::int64_t correction = 1, bool keepdim = false);
/// The product; 1 over nothing. Its gradient is exact where elements are 0.
Tensor prod(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// @{
/// Equal extremes share the gradient. Throw Error over no elements.
Tensor max(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor min(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// @}
/// log(sum(exp(x))), without overflow.
Tensor logsumexp(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// @{
/// Bool.
Tensor any(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor all(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
/// @}
/// @{
/// The index (i64) of the extreme along a dimension, the first among equals. Throw Error over no elements.
Tensor argmax(const Tensor& x, int dim = -1, bool keepdim = false);
Tensor argmin(const Tensor& x, int dim = -1, bool keepdim = false);
/// @}
/// Running sums along a dimension.
Tensor cumsum(const Tensor& x, int dim);

}  // namespace tern
