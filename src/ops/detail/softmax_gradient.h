#pragma once
#include "tensor/tensor.h"

namespace tern::detail {

/// The gradient of softmax over a dimension, from its result p and the gradient of that, in ops: p (g - sum(g p)).
Tensor softmax_gradient(const Tensor& p, const Tensor& g, int dim);

}  // namespace tern::detail
