#pragma once
#include "tensor/tensor.h"

namespace tern::train {

class Optimizer;

/// Norm of all gradients, and the factor that clips it, both f32 () on the device.
struct ClippedNorm {
  Tensor norm;    ///< root of the sum of the squares of all gradients
  Tensor factor;  ///< min(1, max_norm / (norm + 1e-6))
};
/// Computes both in one reduction over the gradients: `optimizer.step({.factor = clip_factor(parameters, 1).factor})` clips them within the
/// update. Parameters without a gradient are ignored. Throws Error unless max_norm > 0.
ClippedNorm clip_factor(const Tensors& parameters, double max_norm);
/// The same for an optimizer; if it is sharded, over the gradients of all processes, each of which has those of its own elements (Note
/// [Exchange]).
ClippedNorm clip_factor(Optimizer& optimizer, double max_norm);

/// Clips the gradients in place on the device, and returns their norm before, without waiting for it. A norm that is not finite (because a
/// gradient is not, or by overflow) gives NaN or zeros; with error_if_nonfinite it throws Error before anything is changed, which waits for
/// the norm.
Tensor clip_grad_norm(const Tensors& parameters, double max_norm, bool error_if_nonfinite = false);

}  // namespace tern::train
