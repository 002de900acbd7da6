#include <fmt/format.h>

#include <cmath>

#include "ops/factory.h"
#include "ops/kernels/normalize.h"
#include "ops/normalize.h"
#include "ops/op.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"

namespace tern {

namespace {

void check(const Tensor& x, double eps, std::initializer_list<const Tensor*> parameters, std::initializer_list<const Tensor*> statistics) {
  if (!(eps > 0) || !std::isfinite(eps)) fail("batch_norm", fmt::format("expected a finite eps > 0 but got {}", eps));
  detail::check_floating("batch_norm", x);
  if (x.dims() < 2) fail("batch_norm", fmt::format("expected x (B, C, ...) but got {}", to_string(x.shape())));
  const auto check_shape = [&](const Tensor& t) {
    if (t.shape() != Shape{x.size(1)})
      fail("batch_norm", fmt::format("expected parameters and statistics ({},) for x {} but got {}", x.size(1), to_string(x.shape()),
                                     to_string(t.shape())));
  };
  for (const Tensor* parameter : parameters) {
    if (!parameter->defined()) continue;
    check_shape(*parameter);
    const bool is_wide = detail::is_narrow(x.dtype()) && parameter->dtype() == DType::f32;
    if (parameter->dtype() != x.dtype() && !is_wide)
      fail("batch_norm", fmt::format("expected parameters of x's dtype {} but got {}", name(x.dtype()), name(parameter->dtype())));
  }
  for (const Tensor* given : statistics) {
    if (!given->defined()) fail("batch_norm", "expected a mean and a variance but one is undefined");
    check_shape(*given);
    detail::check_floating("batch_norm", *given);
  }
}

/// All dimensions but that of the channels.
Dims reduced_dims(const Tensor& x) {
  Dims dims;
  for (int d = 0; d < x.dims(); ++d)
    if (d != 1) dims.push_back(d);
  return dims;
}

/// Reshapes (C) to (1, C, 1, ...) of x's dtype; an undefined tensor stays undefined.
Tensor by_channel(const Tensor& parameter, const Tensor& x) {
  if (!parameter.defined()) return parameter;
  Shape shape = Shape::filled(x.dims(), 1);
  shape[1] = x.size(1);
  return cast(reshape(parameter, shape), x.dtype());
}

/// deviation * rstd * gamma + beta, two passes over x.
Tensor scaled(const Tensor& deviation, const Tensor& rstd, const Tensor& gamma, const Tensor& beta) {
  const Tensor scale = gamma.defined() ? rstd * gamma : rstd;
  const bool is_own = !context().grad;
  const Tensor y = is_own ? mul_(deviation, scale) : deviation * scale;
  if (!beta.defined()) return y;
  return is_own ? add_(y, beta) : y + beta;
}

/// x as (B, C, L), contiguous.
Tensor in_rows(const Tensor& x) { return reshape(contiguous(x), {x.size(0), x.size(1), x.numel() / (x.size(0) * x.size(1))}); }

/// True if the CPU's kernels take x. Rows of few elements are too short for vectors: those of (B, C) all are.
bool has_kernel(const Tensor& x, const Tensor& gamma, const Tensor& beta) {
  const auto fits = [&](const Tensor& parameter) { return !parameter.defined() || parameter.dtype() == x.dtype(); };
  return detail::has_cpu_kernel(x) && fits(gamma) && fits(beta) && x.numel() >= 4 * x.size(0) * x.size(1) && x.numel() > 0;
}

struct BatchNorm {
  static constexpr Op op{.name = "batch_norm"};
  double eps;

  struct Kept {
    Tensor x, gamma, mean, rstd;  ///< the last two (1, C, 1, ...)
    DType beta;                   ///< its dtype; x's if there is none
  };
  Result<Tensors, Kept> forward(const Tensor& x, const Tensor& gamma, const Tensor& beta) const {
    check(x, eps, {&gamma, &beta}, {});
    if (x.size(1) > 0 && x.numel() == 0)
      fail(op.name, fmt::format("expected one element or more in each channel but got {}", to_string(x.shape())));
    const NoGrad unrecorded;
    const DType beta_dtype = beta.defined() ? beta.dtype() : x.dtype();
    const Shape channels = {x.size(1)};
    if (has_kernel(x, gamma, beta)) {
      const Tensor rows = in_rows(x), y = empty_like(rows), weight = detail::contiguous_or_none(gamma),
                   shift = detail::contiguous_or_none(beta);
      const Tensor mean = empty(channels, x.dtype(), x.device()), variance = empty_like(mean), rstd = empty_like(mean);
      // Views before the kernel, which belongs to the op that ends next.
      const Tensor result = reshape(y, x.shape()), shaped_mean = by_channel(mean, x), shaped_rstd = by_channel(rstd, x);
      launch(Cpu{}, kernels::BatchNorm{rows, view_of(weight), view_of(shift), eps, y, mean, variance, rstd});
      return {{result, mean, variance}, {x, gamma, shaped_mean, shaped_rstd, beta_dtype}};
    }
    const Dims dims = reduced_dims(x);
    const Tensor wide = detail::widened(x), deviation = detail::centered(wide, dims), mean = tern::mean(wide, dims, true);
    const Tensor variance = tern::mean(square(deviation), dims, true), rstd = rsqrt(variance + eps);
    const Tensor y = cast(scaled(deviation, rstd, by_channel(gamma, wide), by_channel(beta, wide)), x.dtype());
    return {{y, reshape(mean, channels), reshape(variance, channels)}, {x, gamma, mean, rstd, beta_dtype}};
  }
  Tensors backward(const Backward& call, const Kept& kept) const {
    const auto& [x, gamma, mean, rstd, beta_dtype] = kept;
    const bool higher = context().grad, is_of_y_alone = !call.grad(1).defined() && !call.grad(2).defined();
    if (!higher && is_of_y_alone && beta_dtype == x.dtype() && has_kernel(x, gamma, {})) return kernel_gradients(call, kept);
    // The deviations are recomputed: that costs one pass, while keeping them would take another tensor of x's size. Recorded for a higher
    // order.
    const Dims dims = reduced_dims(x);
    const Tensor wide = detail::widened(x), scale = by_channel(gamma, wide);
    const Tensor deviation = higher ? detail::centered(wide, dims) : wide - mean;
    const Tensor one_over = higher ? rsqrt(tern::mean(square(deviation), dims, true) + eps) : rstd;
    const Tensor unit = deviation * one_over;
    Tensors d(3);
    if (call.grad(0).defined()) {
      const Tensor g = detail::widened(call.grad(0));
      if (call.needs(0)) {
        const Tensor inner = g - tern::mean(g, dims, true) - unit * tern::mean(g * unit, dims, true);
        d[0] = inner * (scale.defined() ? one_over * scale : one_over);
      }
      if (call.needs(1)) d[1] = cast(sum(g * unit, dims), gamma.dtype());
      if (call.needs(2)) d[2] = cast(sum(g, dims), beta_dtype);
    }
    if (!call.needs(0)) return d;
    const auto add = [&](const Tensor& gradient) { d[0] = d[0].defined() ? d[0] + gradient : broadcast_to(gradient, kept.x.shape()); };
    const double share = static_cast<double>(x.size(1)) / static_cast<double>(x.numel());
    if (call.grad(1).defined()) add(by_channel(call.grad(1), wide) * share);
    if (call.grad(2).defined()) add(by_channel(call.grad(2), wide) * deviation * (2 * share));
    if (d[0].defined()) d[0] = cast(d[0], x.dtype());
    return d;
  }

 private:
  static Tensors kernel_gradients(const Backward& call, const Kept& kept) {
    const Tensor rows = in_rows(kept.x), g = in_rows(call.grad()), weight = detail::contiguous_or_none(kept.gamma);
    const auto wanted = [&](std::size_t input) {
      return call.needs(input) ? empty({kept.x.size(1)}, kept.x.dtype(), kept.x.device()) : Tensor();
    };
    const Tensor dx = call.needs(0) ? empty_like(rows) : Tensor(), d_gamma = wanted(1), d_beta = wanted(2);
    launch(Cpu{}, kernels::BatchNormGrad{rows, view_of(weight), kept.mean, kept.rstd, g, view_of(dx), view_of(d_gamma), view_of(d_beta)});
    return {dx.defined() ? reshape(dx, kept.x.shape()) : dx, d_gamma, d_beta};
  }
};

}  // namespace

BatchNormResult batch_norm(const Tensor& x, const Tensor& gamma, const Tensor& beta, double eps) {
  const Tensors results = call(BatchNorm{eps}, x, gamma, beta);
  return {results[0], results[1], results[2]};
}

Tensor batch_norm(const Tensor& x, const Tensor& mean, const Tensor& variance, const Tensor& gamma, const Tensor& beta, double eps) {
  check_one_device("batch_norm", {&x, &mean, &variance, &gamma, &beta});
  check(x, eps, {&gamma, &beta}, {&mean, &variance});
  const Tensor wide = detail::widened(x), scale = by_channel(gamma, wide);
  const Tensor rstd = rsqrt(by_channel(variance, wide) + eps), factor = scale.defined() ? rstd * scale : rstd;
  const Tensor y = (wide - by_channel(mean, wide)) * factor;
  return cast(beta.defined() ? y + by_channel(beta, wide) : y, x.dtype());
}

}  // namespace tern
