#pragma once
#include <functional>

#include "autodiff/node.h"

namespace tern {

/// Vector-Jacobian product of a fused op's plain reference: the gradients of the op's inputs, from those in `call`. A fused op's backward
/// returns it if its result is to be differentiated again, so that no fused op needs a second derivation by hand. `reference` computes the
/// op's outputs from its inputs, in their order, with ops; `inputs` are the saved ones, with their history. An input in which the outputs
/// are linear may be replaced by zeros of its shape. Undefined for inputs that need no gradient, or are undefined.
Tensors vjp(const Backward& call, const Tensors& inputs, const std::function<Tensors(const Tensors&)>& reference);

}  // namespace tern
