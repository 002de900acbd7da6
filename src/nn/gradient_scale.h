#pragma once
#include "tensor/tensor.h"

namespace tern::nn {

/// What an optimizer's kernels do to the gradients on their way in. The numbers lie on the device, f32 (), so that no step waits for
/// them and no pass over the gradients applies them.
struct GradientScale {
  Tensor factor = {};   ///< gradients are multiplied by it; undefined for 1
  Tensor advance = {};  ///< 0 where the step changes nothing and does not count; undefined for 1
};

/// Scales all gradients by min(1, max_norm / (norm + 1e-6)), in place on the device, and returns their norm before, f32
/// (), without waiting for it. Parameters without a gradient do not count.
Tensor clip_grad_norm(const Tensors& parameters, double max_norm);

}  // namespace tern::nn
