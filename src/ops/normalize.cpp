#include "ops/normalize.h"

#include <fmt/format.h>

#include <algorithm>

#include "autodiff/engine.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"

namespace tern {

// Plain compositions: the forward runs unrecorded, and backward is the closed form of the derivative, in ops. So a step
// keeps one or two tensors for each call, not every intermediate.

static void check_floating(const char* op, const Tensor& x) {
  if (!is_floating(x.dtype())) fail(op, fmt::format("expected a floating dtype but got {}", name(x.dtype())));
}

Tensor softmax(const Tensor& x, int dim) {
  check_floating("softmax", x);
  dim = normalize_dim(dim, std::max(x.dims(), 1), "softmax");
  if (x.dims() == 0) return reshape(softmax(reshape(x, {1}), 0), {});
  Tensor y;
  {
    const NoGrad unrecorded;
    if (x.numel() == 0) {
      y = empty_like(x);
    } else {
      const Tensor shifted = exp(x - max(x, {dim}, true));
      y = shifted / sum(shifted, {dim}, true);
    }
  }
  return record("softmax", y, {x}, {y}, [dim](const Backward& call) -> Tensors {
    const Tensor p = call.saved(0), weighted = call.grad() * p;
    return {weighted - p * sum(weighted, {dim}, true)};
  });
}

Tensor log_softmax(const Tensor& x, int dim) {
  check_floating("log_softmax", x);
  dim = normalize_dim(dim, std::max(x.dims(), 1), "log_softmax");
  if (x.dims() == 0) return reshape(log_softmax(reshape(x, {1}), 0), {});
  Tensor y;
  {
    const NoGrad unrecorded;
    y = x - logsumexp(x, {dim}, true);
  }
  return record("log_softmax", y, {x}, {y}, [dim](const Backward& call) -> Tensors {
    return {call.grad() - exp(call.saved(0)) * sum(call.grad(), {dim}, true)};
  });
}

namespace {

void check_norm(const char* op, const Tensor& x, const Tensor& gamma, const Tensor& beta) {
  check_floating(op, x);
  const auto fits = [&](const Tensor& scale) { return !scale.defined() || (x.dims() > 0 && scale.shape() == Shape{x.size(-1)}); };
  if (x.dims() == 0 || !fits(gamma) || !fits(beta))
    fail(op, fmt::format("expected x (..., N) and parameters (N) but got {}, {} and {}", to_string(x.shape()),
                         gamma.defined() ? to_string(gamma.shape()) : "none", beta.defined() ? to_string(beta.shape()) : "none"));
  for (const Tensor* scale : {&gamma, &beta})
    if (scale->defined() && (scale->dtype() != x.dtype() || scale->device() != x.device()))
      fail(op, fmt::format("expected parameters like x, {} on {}, but got {} on {}", name(x.dtype()), to_string(x.device()),
                           name(scale->dtype()), to_string(scale->device())));
}

struct Normalized {
  Tensor unit, rstd;  ///< the normalized rows, and one over the deviation
};

Normalized normalized(const Tensor& x, bool centered, double eps) {
  const Tensor deviation = centered ? x - mean(x, {-1}, true) : x;
  const Tensor rstd = rsqrt(mean(square(deviation), {-1}, true) + eps);
  return {deviation * rstd, rstd};
}

Tensor affine(Tensor unit, const Tensor& gamma, const Tensor& beta) {
  if (gamma.defined()) unit = unit * gamma;
  if (beta.defined()) unit = unit + beta;
  return unit;
}

Tensor norm(const char* op, bool centered, const Tensor& x, const Tensor& gamma, const Tensor& beta, double eps) {
  check_norm(op, x, gamma, beta);
  Normalized rows;
  Tensor y;
  {
    const NoGrad unrecorded;
    rows = normalized(x, centered, eps);
    y = affine(rows.unit, gamma, beta);
  }
  return record(op, y, {x, gamma, beta}, {x, gamma, rows.unit, rows.rstd}, [centered, eps](const Backward& call) -> Tensors {
    const Tensor &g = call.grad(), scale = call.saved(1);
    Tensor unit = call.saved(2), rstd = call.saved(3);
    if (context().grad) {
      // For a higher order what was kept must depend on x: make it again, recorded.
      Normalized again = normalized(call.saved(0), centered, eps);
      unit = again.unit;
      rstd = again.rstd;
    }
    Tensor gx, ggamma, gbeta;
    if (call.needs(0)) {
      const Tensor gu = scale.defined() ? g * scale : g;
      const Tensor along = unit * mean(gu * unit, {-1}, true);
      gx = (centered ? gu - mean(gu, {-1}, true) - along : gu - along) * rstd;
    }
    if (call.needs(1)) ggamma = sum_to(g * unit, scale.shape());
    if (call.needs(2)) gbeta = sum_to(g, {g.size(-1)});
    return {gx, ggamma, gbeta};
  });
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& gamma, const Tensor& beta, double eps) {
  return norm("layer_norm", true, x, gamma, beta, eps);
}

Tensor rms_norm(const Tensor& x, const Tensor& gamma, double eps) { return norm("rms_norm", false, x, gamma, {}, eps); }

}  // namespace tern
