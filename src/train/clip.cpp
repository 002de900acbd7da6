#include "train/clip.h"

#include <fmt/format.h>

#include <cmath>
#include <functional>

#include "nn/module.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "train/detail/grad_norm.h"
#include "train/detail/require.h"
#include "train/optimizer.h"

namespace tern::train {

using namespace nn;  // parameters and their buffers

/// Gradients, merged into as few contiguous segments as possible.
static Tensors gradient_segments(const Tensors& parameters) {
  Tensors merged, segments;
  for (const Tensor& x : parameters) {
    const Tensor gradient = x.grad();
    if (gradient.defined()) (gradient.is_contiguous() ? merged : segments).push_back(gradient);
  }
  for (Tensor& segment : contiguous_segments(std::move(merged))) segments.push_back(std::move(segment));
  return segments;
}

/// `shared` replaces this process's sums of squares by those of all processes.
static ClippedNorm norm_and_factor_of(const Tensors& segments, Device device, double max_norm, const kernels::LossScale& loss,
                                      const std::function<Tensor(const Tensor&)>& shared = {}) {
  const ClippedNorm result{empty({}, DType::f32, device), empty({}, DType::f32, device)};
  on(
      device,
      [&](auto dev) {
        std::int64_t parts = 0;
        for (const Tensor& segment : segments) parts += kernels::square_sum_parts(dev, segment.numel());
        const Tensor sums = empty({parts}, DType::f64, device);
        std::int64_t first = 0;
        for (const Tensor& segment : segments) {
          const Tensor own = sums.window({kernels::square_sum_parts(dev, segment.numel())}, {1}, first);
          kernels::square_sums(dev, contiguous(segment).view(), own.view());
          first += own.numel();
        }
        const Tensor all = shared ? shared(sums) : sums;
        kernels::clip_factor(dev, {all.view(), result.norm.view(), result.factor.view(), max_norm, loss});
      },
      "clip_factor");
  return result;
}

void detail::check_max_norm(const char* where, double max_norm) { require(where, max_norm > 0, "max_norm > 0", max_norm); }

Device detail::device_of(const Tensors& parameters) { return parameters.empty() ? cpu : parameters[0].device(); }

ClippedNorm detail::norm_and_factor(const Tensors& parameters, double max_norm, const kernels::LossScale& loss) {
  return norm_and_factor_of(gradient_segments(parameters), device_of(parameters), max_norm, loss);
}

ClippedNorm detail::norm_and_factor(Optimizer& optimizer, double max_norm, const kernels::LossScale& loss) {
  if (!optimizer.is_sharded()) return norm_and_factor(optimizer.parameters(), max_norm, loss);
  Tensors segments;
  for (const Optimizer::Gradient& gradient : optimizer.own_gradients())
    if (gradient.is_counted) segments.push_back(gradient.segment);
  return norm_and_factor_of(segments, optimizer.steps().device(), max_norm, loss, [&](const Tensor& sums) {
    const Tensor all = reshape(sum(sums), {1});
    optimizer.exchange()->sum(all);
    return all;
  });
}

ClippedNorm clip_factor(Optimizer& optimizer, double max_norm) {
  detail::check_max_norm("clip_factor", max_norm);
  const NoGrad unrecorded;
  return detail::norm_and_factor(optimizer, max_norm);
}

ClippedNorm clip_factor(const Tensors& parameters, double max_norm) {
  detail::check_max_norm("clip_factor", max_norm);
  const NoGrad unrecorded;
  return detail::norm_and_factor(parameters, max_norm);
}

Tensor clip_grad_norm(const Tensors& parameters, double max_norm, bool error_if_nonfinite) {
  detail::check_max_norm("clip_grad_norm", max_norm);
  const NoGrad unrecorded;
  const Tensors segments = gradient_segments(parameters);
  const ClippedNorm clip = norm_and_factor_of(segments, detail::device_of(parameters), max_norm, {});
  if (error_if_nonfinite)
    if (const double norm = clip.norm.item<double>(); !std::isfinite(norm))
      fail("clip_grad_norm", fmt::format("expected gradients of a finite norm but got {}", norm));
  for (const Tensor& segment : segments) mul_(segment, cast(clip.factor, segment.dtype()));
  return clip.norm;
}

}  // namespace tern::train
