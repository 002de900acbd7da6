#pragma once
#include "train/optimizer.h"

namespace tern::train::detail {

/// Throws Error that names the optimizer for options out of range.
template <class Options>
void check(const Options& options);

/// One-dimensional tensors of equal length, as in Optimizer::SegmentViews.
struct AdamTensors {
  Tensor parameter, gradient, master, m, v;
};
/// AdamOf's update of a segment, one kernel; also for optimizers that update some parameters by AdamW, as Muon does.
template <class Options>
void adam_step(const Options& options, const AdamTensors& segment, const Tensor& lr, const Tensor& steps, const GradientScale& scale);

}  // namespace tern::train::detail
