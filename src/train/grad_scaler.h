#pragma once
#include <limits>

#include "tensor/tensor.h"

namespace tern::train {

class Optimizer;

/// Options of GradScaler. The defaults are PyTorch's.
struct GradScalerOptions {
  double scale = 65536;          ///< initial scale, in [2^-126, 2^126]
  double growth = 2;             ///< factor of the scale after `interval` clean steps, 1 or more
  double backoff = 0.5;          ///< factor of the scale after an overflow, in (0, 1)
  std::int64_t interval = 2000;  ///< number of steps without an overflow after which the scale grows
};

/// Dynamic loss scaling for gradients in float16, whose smallest number is 6e-8: the loss is multiplied by a scale, by which the update
/// divides the gradients. The scale grows until a gradient overflows; such a step is skipped, and the scale shrinks, but not below 1 or the
/// initial scale if that is less; it does not grow beyond 2^126. All of it happens on the device, so that a step can be captured.
/// Micikevicius et al., "Mixed Precision Training", 2018.
class GradScaler {
 public:
  /// Throws Error for options out of range.
  explicit GradScaler(const GradScalerOptions& options = {}, Device device = default_device());

  /// The loss times the scale, for backward().
  Tensor scaled(const Tensor& loss) const;
  /// Runs optimizer.step() with the gradients divided by the scale and clipped. Returns their norm, without the scale, f32 (); it is not
  /// finite if the step was skipped. Parameters without a gradient are ignored.
  Tensor step(Optimizer& optimizer, double max_norm = std::numeric_limits<double>::infinity());

  /// Current scale on the device, f32 (): part of a checkpoint's state.
  const Tensor& scale() const { return scale_; }
  const Tensor& clean_steps() const { return clean_steps_; }  ///< steps since the scale changed, f32 (): as scale()

 private:
  GradScalerOptions options_;
  Tensor scale_, clean_steps_;
};

}  // namespace tern::train
