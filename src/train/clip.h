#pragma once
#include "tensor/tensor.h"

namespace tern::train {

class Optimizer;

/// The norm of gradients, and the factor that bounds it, both f32 () on the device.
struct ClippedNorm {
  Tensor norm;    ///< root of the sum of the squares of all gradients
  Tensor factor;  ///< min(1, max_norm / (norm + 1e-6))
};
/// One reduction over the gradients as they are: `optimizer.step({.factor = clip_factor(parameters, 1).factor})` clips them on their
/// way into the update. Parameters without a gradient do not count. Throws Error unless max_norm > 0.
ClippedNorm clip_factor(const Tensors& parameters, double max_norm);
/// Of all gradients of a model that several processes train, where each has those of its own elements alone (Note [Sharded optimizer]).
ClippedNorm clip_factor(Optimizer& optimizer, double max_norm);

/// Scales all gradients by that factor, in place on the device, and returns their norm before, without waiting for it. A norm that is not
/// finite (a gradient is not, or it is beyond float's range) gives NaN or zeros; with error_if_nonfinite it throws Error before anything
/// is changed, and waits for the norm.
Tensor clip_grad_norm(const Tensors& parameters, double max_norm, bool error_if_nonfinite = false);

}  // namespace tern::train
