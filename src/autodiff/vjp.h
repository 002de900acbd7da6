#pragma once
#include <functional>

#include "autodiff/node.h"

namespace tern {

/// The vector-Jacobian product of a fused op's plain reference: the gradients of the op's inputs, from those that arrived at `call`. It is
/// what backward returns where its result is to be differentiated again, so that no fused op needs a second derivation by hand.
/// `reference` computes the op's outputs from its inputs, in their order, by ops; `inputs` are those that were saved, with their history.
/// Zeros of its shape do as well for an input in which the outputs are linear. Undefined for inputs that are not needed, or undefined.
Tensors vjp(const Backward& call, const Tensors& inputs, const std::function<Tensors(const Tensors&)>& reference);

}  // namespace tern
