#include "train/grad_scale.h"

#include <fmt/format.h>

#include <algorithm>

#include "nn/parameter_buffer.h"
#include "ops/copy.h"
#include "ops/factory.h"
#include "ops/kernels/gradient_scale.h"
#include "ops/pointwise.h"
#include "train/optimizer.h"

namespace tern::train {

using namespace nn;  // parameters and their buffers

/// The gradients, merged into as few contiguous windows as possible.
static Tensors gradient_runs(const Tensors& parameters) {
  Tensors merged, runs;
  for (const Tensor& x : parameters) {
    const Tensor gradient = x.grad();
    if (gradient.defined()) (gradient.is_contiguous() ? merged : runs).push_back(gradient);
  }
  for (Tensor& run : contiguous_runs(std::move(merged))) runs.push_back(std::move(run));
  return runs;
}

/// The norm of the runs, and the factor that takes a loss scale out and bounds it.
static ClippedNorm norm_and_factor(const Tensors& runs, Device device, double max_norm, const kernels::LossScale& loss = {}) {
  // As many parts as an H200 runs blocks of 256 threads at once, and fewer where a block would have little to read.
  static constexpr std::int64_t most_parts = 1024, part_elements = 4096;
  const auto parts_of = [](const Tensor& run) { return std::clamp<std::int64_t>(run.numel() / part_elements, 1, most_parts); };
  std::int64_t parts = 0;
  for (const Tensor& run : runs) parts += parts_of(run);
  const Tensor sums = empty({parts}, DType::f64, device);
  const ClippedNorm result{empty({}, DType::f32, device), empty({}, DType::f32, device)};
  on(device, [&](auto dev) {
    std::int64_t first = 0;
    for (const Tensor& run : runs) {
      const Tensor own = sums.as_strided({parts_of(run)}, {1}, first);
      kernels::square_sums(dev, contiguous(run).view(), own.view());
      first += own.numel();
    }
    kernels::gradient_factor(dev, {sums.view(), result.norm.view(), result.factor.view(), max_norm, loss});
  });
  return result;
}

static void check_bound(const char* where, double max_norm) {
  if (!(max_norm > 0)) fail(where, fmt::format("expected max_norm > 0 but got {}", max_norm));
}

static Device device_of(const Tensors& parameters) { return parameters.empty() ? cpu : parameters[0].device(); }

ClippedNorm clip_factor(const Tensors& parameters, double max_norm) {
  check_bound("clip_factor", max_norm);
  const NoGrad unrecorded;
  return norm_and_factor(gradient_runs(parameters), device_of(parameters), max_norm);
}

Tensor clip_grad_norm(const Tensors& parameters, double max_norm) {
  check_bound("clip_grad_norm", max_norm);
  const NoGrad unrecorded;
  const Tensors runs = gradient_runs(parameters);
  const ClippedNorm clip = norm_and_factor(runs, device_of(parameters), max_norm);
  for (const Tensor& run : runs) mul_(run, cast(clip.factor, run.dtype()));
  return clip.norm;
}

GradScaler::GradScaler(const GradScalerOptions& options, Device device) : options_(options) {
  const auto require = [](bool holds, const char* what, double value) {
    if (!holds) fail("GradScaler", fmt::format("expected {} but got {}", what, value));
  };
  require(options.scale > 0 && options.scale < 3e38, "a scale > 0", options.scale);
  require(options.growth >= 1, "growth >= 1", options.growth);
  require(options.backoff > 0 && options.backoff < 1, "0 < backoff < 1", options.backoff);
  require(options.interval > 0, "an interval > 0", static_cast<double>(options.interval));
  scale_ = full({}, options.scale, DType::f32, device);
  clean_steps_ = zeros({}, DType::f32, device);
}

Tensor GradScaler::scaled(const Tensor& loss) const { return cast(loss, DType::f32) * scale_; }

Tensor GradScaler::step(Optimizer& optimizer, double max_norm) {
  check_bound("GradScaler", max_norm);
  const NoGrad unrecorded;
  const Tensors parameters = optimizer.parameters();
  const Device device = scale_.device();
  if (device_of(parameters) != device)
    fail("GradScaler", fmt::format("expected parameters on {} but got them on {}", to_string(device), to_string(device_of(parameters))));
  const Tensor advance = empty({}, DType::f32, device);
  begin_in_place("GradScaler", scale_);
  begin_in_place("GradScaler", clean_steps_);
  const kernels::LossScale loss{scale_.view(),   clean_steps_.view(), advance.view(),
                                options_.growth, options_.backoff,    static_cast<double>(options_.interval)};
  const ClippedNorm clip = norm_and_factor(gradient_runs(parameters), device, max_norm, loss);
  optimizer.step({.factor = clip.factor, .advance = advance});
  return clip.norm;
}

}  // namespace tern::train
