#pragma once
#include "tensor/tensor.h"

namespace tern::detail {

/// Gradient of softmax over a dimension, in ops, from its result p and the gradient g of that: p (g - sum(g p)).
Tensor softmax_gradient(const Tensor& p, const Tensor& g, int dim);

}  // namespace tern::detail
