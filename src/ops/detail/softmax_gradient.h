#pragma once
#include "tensor/tensor.h"

namespace tern::detail {

/// A slice that is -inf throughout: NaN, as the formula of softmax gives, or 0, as attention has it for a query that sees no key.
enum class Hidden { is_undefined, is_zero };
/// softmax of a floating x of at least one dimension, whose autocast is done.
Tensor softmax(const Tensor& x, int dim, Hidden hidden);
/// Gradient of softmax over a dimension, in ops, from its result p and the gradient g of that: p (g - sum(g p)).
Tensor softmax_gradient(const Tensor& p, const Tensor& g, int dim);

}  // namespace tern::detail
