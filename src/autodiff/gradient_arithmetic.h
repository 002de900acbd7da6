#pragma once
#include "tensor/tensor.h"

// Arithmetic that a backward pass does by kernels itself, because ops are a higher layer. Only sum_of_gradients is recorded.
namespace tern::detail {

/// target = value for every element; marks the target as edited, as the next two functions do.
void fill_gradient(const Tensor& target, double value);
/// target = source, of one shape and dtype.
void copy_gradient(const Tensor& source, const Tensor& target);
/// target += source, of one shape and dtype.
void add_gradient(const Tensor& source, const Tensor& target);
/// target += source by Note [Sums in 16 bits], for a contiguous target; `exact` (target's shape, f32) is made from the target if it is
/// undefined.
void add_gradient_exactly(const Tensor& source, const Tensor& target, Tensor& exact);
/// True for dtypes in which a long sum loses its small parts.
inline bool needs_exact_sum(DType dtype) { return size_of(dtype) == 2; }
/// Contiguous copy of a gradient.
Tensor cloned(const Tensor& gradient);
/// a + b for two gradients of one tensor, recorded in grad mode; the gradient of the sum flows to both.
Tensor sum_of_gradients(const Tensor& a, const Tensor& b);

}  // namespace tern::detail
