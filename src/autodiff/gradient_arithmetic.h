#pragma once
#include "tensor/tensor.h"

// The little arithmetic that a backward pass does itself, by kernels: the ops stand above. Nothing is recorded but sum_of_gradients.
namespace tern::detail {

/// Every element = value; marks the target as edited, as the next two do.
void fill_gradient(const Tensor& target, double value);
/// target = source, of one shape and dtype.
void copy_gradient(const Tensor& source, const Tensor& target);
/// target += source, of one shape and dtype.
void add_gradient(const Tensor& source, const Tensor& target);
/// A contiguous copy.
Tensor cloned(const Tensor& gradient);
/// a + b for two gradients of one tensor, recorded in grad mode: what arrives at the sum goes on to both.
Tensor sum_of_gradients(const Tensor& a, const Tensor& b);

}  // namespace tern::detail
