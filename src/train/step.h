#pragma once
#include <functional>
#include <limits>

#include "ops/loss.h"
#include "tensor/tensor.h"
#include "train/optimizer.h"

// The training step in its order: a loss for it, clipping, the scale of 16-bit gradients, the update.
namespace tern::train {

/// R-Drop loss: a batch goes through the model twice, with different dropout, and the divergence between the two predictions of a token is
/// penalized. Liang et al., "R-Drop: Regularized Dropout for Neural Networks", 2021, equation 4, halved so that alpha = 0 gives the mean of
/// the cross entropy:
///
///     1/2 (-log p(y) - log q(y)) + alpha/4 (KL(p || q) + KL(q || p))
///
/// for each token, weighted by options.token_weights and reduced as in cross_entropy over the tokens of both passes: the mean divides by
/// the sum of their weights, the sum counts both. logits (2 B, ..., V) and targets (2 B, ...) hold the batch twice, row by row, as from
/// repeat(x, 2, 0): rows 2 b and 2 b + 1 are the two passes of row b, with the same weights. So the rows of a part of the batch are
/// adjacent, and draw the same random numbers as within the whole (BatchRows). The divergence is computed in f32 (f64 for f64). Throws
/// Error for an odd number of rows, Reduction::none, or alpha < 0.
Tensor r_drop_loss(const Tensor& logits, const Tensor& targets, double alpha, const CrossEntropyOptions& options = {});

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

/// Options of update().
struct UpdateOptions {
  double max_norm = std::numeric_limits<double>::infinity();  ///< bound of the norm of all gradients together (clipping)
  GradScaler* scaler = nullptr;                               ///< loss scaling, for gradients in float16
  /// Called when all gradients are complete, before they are read: data parallel training averages them over all ranks here. Not called if
  /// the optimizer itself waits for gradients during the update (Note [Exchange]) and nothing else reads them.
  std::function<void()> synchronize = {};
};

/// Training step from the loss on: zero_grad, backward, clipping, the optimizer's update. Loss scale and clipping are applied within the
/// update. Nothing waits for the device, so a CapturedStep can capture it. Returns the norm of the gradients before clipping, f32 ();
/// undefined without max_norm and scaler. Throws Error unless max_norm > 0, before anything has changed.
Tensor update(const Tensor& loss, Optimizer& optimizer, const UpdateOptions& options = {});

/// Gradient accumulation, for a batch that is too large for one pass: optimizer.zero_grad(), then accumulate() of each part's contribution
/// to the loss, whose gradients add up, and then apply(), which returns and throws what update() does.
void accumulate(const Tensor& loss, const UpdateOptions& options = {});
/// Clips and updates from the current gradients: the part of update() after backward.
Tensor apply(Optimizer& optimizer, const UpdateOptions& options = {});

}  // namespace tern::train
