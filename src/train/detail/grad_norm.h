#pragma once
#include "ops/kernels/grad_norm.h"
#include "train/clip.h"

namespace tern::train::detail {

/// Throws Error unless max_norm > 0.
void check_max_norm(const char* where, double max_norm);

/// The norm of the parameters' gradients without the loss scale, and the factor that takes this scale out and bounds the norm. The
/// loss scale is moved on.
ClippedNorm norm_and_factor(const Tensors& parameters, double max_norm, const kernels::LossScale& loss = {});
/// Likewise of an optimizer's parameters; of a sharded one the norm is that of all processes' gradients.
ClippedNorm norm_and_factor(Optimizer& optimizer, double max_norm, const kernels::LossScale& loss = {});

/// The parameters' device; the CPU for none.
Device device_of(const Tensors& parameters);

}  // namespace tern::train::detail
