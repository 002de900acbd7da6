#pragma once
#include <functional>
#include <limits>

#include "train/grad_scaler.h"
#include "train/optimizer.h"

namespace tern::train {

/// Options of update().
struct UpdateOptions {
  double max_norm = std::numeric_limits<double>::infinity();  ///< of all gradients together: longer ones are scaled down to it
  GradScaler* scaler = nullptr;                               ///< scales the loss, as gradients in float16 need it
  /// Called when all gradients are there, before anybody looks at them: data parallel training makes them the mean of all ranks' here. Not
  /// called where the optimizer itself waits for gradients, as it updates (Note [Gradients that arrive]), and nothing else reads them.
  std::function<void()> synchronize = {};
};

/// The training step once the loss is known: zero_grad, backward, clipping, the optimizer's update. The loss scale and the clip are
/// taken out of the gradients within the update. Nothing waits for the device, so that a CapturedStep can record it.
/// Returns the norm of the gradients before they were clipped, f32 (); undefined where neither max_norm nor a scaler asks for it.
/// Throws Error unless max_norm > 0, before anything has changed.
Tensor update(const Tensor& loss, Optimizer& optimizer, const UpdateOptions& options = {});

/// The parts of update(), for a batch too large to go through at once: optimizer.zero_grad(), accumulate() of each part's share of the
/// loss, whose gradients add up, and apply(), which returns and throws what update() does.
void accumulate(const Tensor& loss, const UpdateOptions& options = {});
/// Clips and updates from the gradients that are there: what update() does behind backward.
Tensor apply(Optimizer& optimizer, const UpdateOptions& options = {});

}  // namespace tern::train
