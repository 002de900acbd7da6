#pragma once
#include "ops/kernels/optimizer.h"
#include "train/clip.h"

namespace tern::train::detail {

/// Throws Error unless max_norm > 0.
void check_max_norm(const char* where, double max_norm);

/// Norm of the parameters' gradients without the loss scale, and the factor that divides by the loss scale and clips the norm. Updates the
/// loss scale.
ClippedNorm norm_and_factor(const Tensors& parameters, double max_norm, const kernels::LossScale& loss = {});
/// The same for an optimizer's parameters; if it is sharded, the norm is that of all processes' gradients.
ClippedNorm norm_and_factor(Optimizer& optimizer, double max_norm, const kernels::LossScale& loss = {});

/// Device of the parameters; the CPU if there are none.
Device device_of(const Tensors& parameters);

}  // namespace tern::train::detail
