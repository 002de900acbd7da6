#include "train/grad_scaler.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/factory.h"
#include "ops/pointwise.h"
#include "train/detail/grad_norm.h"
#include "train/detail/require.h"
#include "train/optimizer.h"

namespace tern::train {

GradScaler::GradScaler(const GradScalerOptions& options, Device device) : options_(options) {
  using detail::require;
  require("GradScaler", options.scale >= 0x1p-126 && options.scale <= 0x1p126, "a scale in [2^-126, 2^126]", options.scale);
  require("GradScaler", options.growth >= 1, "growth >= 1", options.growth);
  require("GradScaler", options.backoff > 0 && options.backoff < 1, "0 < backoff < 1", options.backoff);
  require("GradScaler", options.interval > 0, "an interval > 0", static_cast<double>(options.interval));
  scale_ = full({}, options.scale, DType::f32, device);
  clean_steps_ = zeros({}, DType::f32, device);
}

Tensor GradScaler::scaled(const Tensor& loss) const { return cast(loss, DType::f32) * scale_; }

Tensor GradScaler::step(Optimizer& optimizer, double max_norm) {
  detail::check_max_norm("GradScaler", max_norm);
  const NoGrad unrecorded;
  const Device device = scale_.device(), theirs = detail::device_of(optimizer.parameters());
  if (theirs != device)
    fail("GradScaler", fmt::format("expected parameters on {} but got them on {}", to_string(device), to_string(theirs)));
  const Tensor advance = empty({}, DType::f32, device);
  begin_in_place("GradScaler", scale_);
  begin_in_place("GradScaler", clean_steps_);
  const kernels::LossScale loss{scale_.view(),
                                clean_steps_.view(),
                                advance.view(),
                                options_.growth,
                                options_.backoff,
                                static_cast<double>(options_.interval),
                                std::min(options_.scale, 1.0)};
  const ClippedNorm clip = detail::norm_and_factor(optimizer, max_norm, loss);
  optimizer.step({.factor = clip.factor, .advance = advance});
  return clip.norm;
}

}  // namespace tern::train
