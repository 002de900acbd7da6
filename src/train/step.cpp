#include "train/step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "autodiff/engine.h"
#include "nn/module.h"
#include "ops/factory.h"
#include "ops/kernels/optimizer.h"
#include "ops/normalize.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "train/optimizer.h"

namespace tern::train {

using detail::require;

Tensor r_drop_loss(const Tensor& logits, const Tensor& targets, double alpha, const CrossEntropyOptions& options) {
  if (!(alpha >= 0)) fail("r_drop_loss", fmt::format("expected alpha >= 0 but got {}", alpha));
  if (logits.dims() < 2 || logits.size(0) % 2 != 0)
    fail("r_drop_loss", fmt::format("expected logits (2 B, ..., V) but got {}", to_string(logits.shape())));
  if (options.reduction == Reduction::none) fail("r_drop_loss", "expected Reduction::mean or sum but got none");
  CrossEntropyOptions summed = options;
  summed.reduction = Reduction::sum;
  const Tensor loss = cross_entropy(logits, targets, summed);
  const DType dtype = loss.dtype();

  // KL(p || q) + KL(q || p) = sum (p - q) (log p - log q)
  const Tensor log_probabilities = log_softmax(cast(logits, dtype));
  const Tensor probabilities = exp(log_probabilities);
  const auto pass = [](const Tensor& x, std::int64_t number) { return slice(x, 0, number, x.size(0), 2); };
  const auto difference = [&](const Tensor& x) { return pass(x, 0) - pass(x, 1); };
  const Tensor divergence = sum(difference(probabilities) * difference(log_probabilities), {-1});
  Tensor weights = cast(ne(targets, static_cast<double>(options.ignore_index)), dtype);
  if (options.token_weights.defined()) weights = weights * cast(options.token_weights, dtype);
  const Tensor both = loss + sum(pass(weights, 0) * divergence) * (alpha / 2);
  if (options.reduction == Reduction::sum) return both;
  const Tensor total = sum(weights), is_empty = eq(total, 0);  // a mean over nothing is NaN with a gradient of 0, as cross_entropy's
  return where(is_empty, std::numeric_limits<double>::quiet_NaN(), both / where(is_empty, 1.0, total));
}

/// Gradients, merged into as few contiguous segments as possible.
static Tensors gradient_segments(const Tensors& parameters) {
  Tensors merged, segments;
  for (const Tensor& x : parameters) {
    const Tensor gradient = x.grad();
    if (gradient.defined()) (gradient.is_contiguous() ? merged : segments).push_back(gradient);
  }
  for (Tensor& segment : contiguous_segments(merged)) segments.push_back(std::move(segment));
  return segments;
}

/// Norm of the gradients without the loss scale, and the factor that divides by the loss scale and clips the norm. Updates the loss scale.
/// `shared` replaces this process's sums of squares by those of all processes.
static ClippedNorm norm_and_factor(const Tensors& segments, Device device, double max_norm, const kernels::LossScale& loss,
                                   const std::function<Tensor(const Tensor&)>& shared = {}) {
  const ClippedNorm result{empty({}, DType::f32, device), empty({}, DType::f32, device)};
  const backend::KernelScope observed("clip_factor");  // one op of several kernels
  const auto parts_of = [&](const Tensor& x) {
    return with_backend(device, [&](auto dev) { return kernels::square_sum_parts(dev, x.numel()); });
  };
  std::int64_t parts = 0;
  for (const Tensor& segment : segments) parts += parts_of(segment);
  const Tensor sums = empty({parts}, DType::f64, device);
  std::int64_t first = 0;
  for (const Tensor& segment : segments) {
    const Tensor own = sums.window({parts_of(segment)}, {1}, first);
    launch(device, kernels::SquareSums{contiguous(segment), own});
    first += own.numel();
  }
  launch(device, kernels::Clip{shared ? shared(sums) : sums, result.norm, result.factor, max_norm, loss});
  return result;
}

static void check_max_norm(const char* where, double max_norm) { require(where, max_norm > 0, "max_norm > 0", max_norm); }

static Device device_of(const Tensors& parameters) { return parameters.empty() ? cpu : parameters[0].device(); }

/// The same for an optimizer's parameters; if it is sharded, the norm is that of all processes' gradients.
static ClippedNorm norm_and_factor(Optimizer& optimizer, double max_norm, const kernels::LossScale& loss = {}) {
  if (!optimizer.is_sharded()) {
    const Tensors parameters = optimizer.parameters();
    return norm_and_factor(gradient_segments(parameters), device_of(parameters), max_norm, loss);
  }
  return norm_and_factor(optimizer.own_gradients(), optimizer.steps().device(), max_norm, loss, [&](const Tensor& sums) {
    const Tensor all = reshape(sum(sums), {1});
    optimizer.exchange()->sum(all);
    return all;
  });
}

ClippedNorm clip_factor(Optimizer& optimizer, double max_norm) {
  check_max_norm("clip_factor", max_norm);
  const NoGrad unrecorded;
  return norm_and_factor(optimizer, max_norm);
}

ClippedNorm clip_factor(const Tensors& parameters, double max_norm) {
  check_max_norm("clip_factor", max_norm);
  const NoGrad unrecorded;
  return norm_and_factor(gradient_segments(parameters), device_of(parameters), max_norm, {});
}

Tensor clip_grad_norm(const Tensors& parameters, double max_norm, bool error_if_nonfinite) {
  check_max_norm("clip_grad_norm", max_norm);
  const NoGrad unrecorded;
  const Tensors segments = gradient_segments(parameters);
  const ClippedNorm clip = norm_and_factor(segments, device_of(parameters), max_norm, {});
  if (error_if_nonfinite)
    if (const double norm = clip.norm.item<double>(); !std::isfinite(norm))
      fail("clip_grad_norm", fmt::format("expected gradients of a finite norm but got {}", norm));
  for (const Tensor& segment : segments) mul_(segment, cast(clip.factor, segment.dtype()));
  return clip.norm;
}

GradScaler::GradScaler(const GradScalerOptions& options, Device device) : options_(options) {
  require("GradScaler", options.scale >= 0x1p-126 && options.scale <= 0x1p126, "a scale in [2^-126, 2^126]", options.scale);
  require("GradScaler", options.growth >= 1, "growth >= 1", options.growth);
  require("GradScaler", options.backoff > 0 && options.backoff < 1, "0 < backoff < 1", options.backoff);
  require("GradScaler", options.interval > 0, "an interval > 0", static_cast<double>(options.interval));
  scale_ = full({}, options.scale, DType::f32, device);
  clean_steps_ = zeros({}, DType::f32, device);
}

Tensor GradScaler::scaled(const Tensor& loss) const { return cast(loss, DType::f32) * scale_; }

Tensor GradScaler::step(Optimizer& optimizer, double max_norm) {
  check_max_norm("GradScaler", max_norm);
  const NoGrad unrecorded;
  const Device device = scale_.device(), theirs = device_of(optimizer.parameters());
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
  const ClippedNorm clip = norm_and_factor(optimizer, max_norm, loss);
  optimizer.step({.factor = clip.factor, .advance = advance});
  return clip.norm;
}

Tensor update(const Tensor& loss, Optimizer& optimizer, const UpdateOptions& options) {
  check_max_norm("update", options.max_norm);
  optimizer.zero_grad();
  accumulate(loss, options);
  return apply(optimizer, options);
}

void accumulate(const Tensor& loss, const UpdateOptions& options) {
  if (options.scaler) options.scaler->scaled(loss).backward();
  else loss.backward();
}

Tensor apply(Optimizer& optimizer, const UpdateOptions& options) {
  check_max_norm("apply", options.max_norm);
  const bool reads_all = options.scaler || options.max_norm < std::numeric_limits<double>::infinity();
  if (options.synchronize && (reads_all || !optimizer.exchange())) {
    const backend::PassScope observed("communication");
    options.synchronize();
  }
  const backend::PassScope observed("optimizer");
  if (options.scaler) return options.scaler->step(optimizer, options.max_norm);
  if (options.max_norm == std::numeric_limits<double>::infinity()) {
    optimizer.step();
    return {};
  }
  const ClippedNorm clip = clip_factor(optimizer, options.max_norm);
  optimizer.step({.factor = clip.factor});
  return clip.norm;
}

}  // namespace tern::train
