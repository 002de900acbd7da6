#pragma once
#include <limits>

#include "tensor/tensor.h"

namespace tern::train {

class Optimizer;

/// What an optimizer's kernels do to the gradients on their way in. The numbers lie on the device, f32 (), so that no step waits for
/// them and no pass over the gradients applies them.
struct GradientScale {
  Tensor factor = {};   ///< gradients are multiplied by it; undefined for 1
  Tensor advance = {};  ///< 0 where the step changes nothing and does not count; undefined for 1
};

/// The norm of gradients, and what bounds it, both f32 () on the device.
struct ClippedNorm {
  Tensor norm;
  Tensor factor;  ///< min(1, max_norm / (norm + 1e-6))
};
/// One reduction over the gradients as they are: `optimizer.step({.factor = clip_factor(parameters, 1).factor})` clips them on their
/// way into the update. Parameters without a gradient do not count. Throws Error unless max_norm > 0.
ClippedNorm clip_factor(const Tensors& parameters, double max_norm);

/// Scales all gradients by that factor, in place on the device, and returns their norm before, without waiting for it.
Tensor clip_grad_norm(const Tensors& parameters, double max_norm);

struct GradScalerOptions {
  double scale = 65536;  ///< the first one
  double growth = 2, backoff = 0.5;
  std::int64_t interval = 2000;  ///< steps without an overflow, after which the scale grows
};

/// Dynamic loss scaling for gradients in float16, whose smallest number is 6e-8: the loss is multiplied by a scale, which the update
/// takes out again, and which grows until a gradient overflows; a step with such a gradient changes nothing, and the scale shrinks.
/// All of it happens on the device, so that a step can be captured. Micikevicius et al., "Mixed Precision Training", 2018.
class GradScaler {
 public:
  /// Throws Error for options out of range.
  explicit GradScaler(const GradScalerOptions& options = {}, Device device = cpu);

  /// The loss times the scale, for backward().
  Tensor scaled(const Tensor& loss) const;
  /// optimizer.step() with the scale taken out of the gradients and their norm bounded. Returns the norm, without the scale, f32 ();
  /// it is not finite where the step was skipped. Parameters without a gradient do not count.
  Tensor step(Optimizer& optimizer, double max_norm = std::numeric_limits<double>::infinity());

  /// On the device, f32 (): what a checkpoint keeps.
  const Tensor& scale() const { return scale_; }
  const Tensor& clean_steps() const { return clean_steps_; }

 private:
  GradScalerOptions options_;
  Tensor scale_, clean_steps_;
};

}  // namespace tern::train
