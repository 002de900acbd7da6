#pragma once
#include <functional>
#include <limits>

#include "train/grad_scaler.h"
#include "train/optimizer.h"

namespace tern::train {

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
