#include "ops/normalize.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "autodiff/vjp.h"
#include "ops/copy.h"
#include "ops/detail/autocast.h"
#include "ops/detail/centered.h"
#include "ops/detail/check_floating.h"
#include "ops/detail/dropout_at.h"
#include "ops/detail/softmax_gradient.h"
#include "ops/detail/widened.h"
#include "ops/factory.h"
#include "ops/kernels/layer_norm.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "tensor/view_of.h"

namespace tern {

// Plain compositions: the forward runs unrecorded, and backward is the closed form of the derivative, in ops. So a step keeps one or two
// tensors for each call, not every intermediate. A fused op has kernels for both, and uses the plain op's gradient if that is to be
// differentiated again (vjp). Kernels: softmax has none itself, only attention softmax does (attention_softmax.cpp); those of layer_norm
// and rms_norm are in ops/cpu/layer_norm.cpp and cuda/rows/layer_norm.cu.

Tensor detail::softmax_gradient(const Tensor& p, const Tensor& g, int dim) {
  const Tensor weighted = g * p;
  return weighted - p * sum(weighted, {dim}, true);
}

Tensor softmax(const Tensor& x_, int dim) {
  const Tensor x = detail::autocast("softmax", x_);
  detail::check_floating("softmax", x);
  dim = normalize_dim(dim, std::max(x.dims(), 1), "softmax");
  if (x.dims() == 0) return reshape(softmax(reshape(x, {1}), 0), {});
  return detail::softmax(x, dim, detail::Hidden::is_undefined);
}

Tensor detail::softmax(const Tensor& x, int dim, Hidden hidden) {
  Tensor y;
  {
    const NoGrad unrecorded;
    if (x.numel() == 0) {
      y = empty_like(x);
    } else {
      const Tensor wide = detail::widened(x);
      Tensor top = max(wide, {dim}, true);
      if (hidden == Hidden::is_zero) top = where(eq(top, -std::numeric_limits<double>::infinity()), 0.0, top);
      const Tensor exponentials = exp(wide - top);
      Tensor total = sum(exponentials, {dim}, true);
      if (hidden == Hidden::is_zero) total = where(eq(total, 0), 1.0, total);
      y = cast(exponentials / total, x.dtype());
    }
  }
  return record("softmax", y, {x}, {y}, Symmetric{},
                [dim](const Backward& call) -> Tensors { return {detail::softmax_gradient(call.saved(0), call.grad(), dim)}; });
}

Tensor log_softmax(const Tensor& x_, int dim) {
  const Tensor x = detail::autocast("log_softmax", x_);
  detail::check_floating("log_softmax", x);
  dim = normalize_dim(dim, std::max(x.dims(), 1), "log_softmax");
  if (x.dims() == 0) return reshape(log_softmax(reshape(x, {1}), 0), {});
  Tensor y;
  {
    const NoGrad unrecorded;
    const Tensor wide = detail::widened(x), total = logsumexp(wide, {dim}, true);
    // total - total is 0, or NaN for an infinite total: softmax of a row with inf is NaN, but x - inf = -inf would be a probability of 0.
    y = cast(wide - (total + (total - total)), x.dtype());
  }
  return record("log_softmax", y, {x}, {y}, Linear{[&](const Tensors& t) -> Tensors {
                  return {t[0] - cast(sum(exp(detail::widened(y)) * t[0], {dim}, true), y.dtype())};
                }},
                [dim](const Backward& call) -> Tensors {
                  const Tensor g = detail::widened(call.grad());
                  return {cast(g - exp(detail::widened(call.saved(0))) * sum(g, {dim}, true), call.grad().dtype())};
                });
}

namespace {

/// Kind of norm, and the op's name in errors.
struct Norm {
  const char* op;
  bool centered;
  double eps;

  /// x cast as this thread's autocast asks.
  Tensor operand(const Tensor& x) const { return detail::autocast(centered ? "layer_norm" : "rms_norm", x); }
};

void check_norm(const char* op, double eps, const Tensor& x, std::initializer_list<const Tensor*> parameters) {
  if (!(eps > 0) || !std::isfinite(eps)) fail(op, fmt::format("expected a finite eps > 0 but got {}", eps));
  detail::check_floating(op, x);
  for (const Tensor* parameter : parameters) {
    check_one_device(op, {&x, parameter});
    if (x.dims() == 0 || (parameter->defined() && parameter->shape() != Shape{x.size(-1)}))
      fail(op, fmt::format("expected x (..., N) and parameters (N) but got {} and {}", to_string(x.shape()),
                           parameter->defined() ? to_string(parameter->shape()) : "none"));
    if (parameter->defined() && parameter->dtype() != x.dtype())
      fail(op, fmt::format("expected parameters of x's dtype {} but got {}", name(x.dtype()), name(parameter->dtype())));
  }
}

struct Normalized {
  Tensor x_hat, rstd;  ///< the normalized rows, and 1 / deviation; both widened
};

Normalized normalized(const Tensor& x_, const Norm& norm) {
  const Tensor x = detail::widened(x_), deviation = norm.centered ? detail::centered(x, {-1}) : x;
  const Tensor rstd = rsqrt(mean(square(deviation), {-1}, true) + norm.eps);
  const bool is_own = !deviation.is_same(x_);
  return {is_own && !context().grad ? mul_(deviation, rstd) : deviation * rstd, rstd};
}

Tensor affine(const Tensor& x_hat, const Tensor& gamma, const Tensor& beta) {
  const Tensor scaled = gamma.defined() ? x_hat * gamma : x_hat;
  if (!beta.defined()) return scaled;
  const bool is_own = gamma.defined() && !context().grad && scaled.dtype() == beta.dtype();
  return is_own ? add_(scaled, beta) : scaled + beta;
}

struct NormGradients {
  Tensor x, gamma, beta;
};

/// Gradients of affine(normalized(x)) that are needed: each costs ops.
struct Wanted {
  bool x = true, gamma = false, beta = false;
};
NormGradients closed_form(const Norm& norm, const Normalized& rows, const Tensor& gamma, const Tensor& g, Wanted wanted) {
  NormGradients result;
  if (wanted.x) {
    const Tensor h = gamma.defined() ? g * gamma : g;
    const Tensor along = rows.x_hat * mean(h * rows.x_hat, {-1}, true);
    result.x = (norm.centered ? h - mean(h, {-1}, true) - along : h - along) * rows.rstd;
  }
  if (wanted.gamma) result.gamma = sum_to(g * rows.x_hat, {g.size(-1)});
  if (wanted.beta) result.beta = sum_to(g, {g.size(-1)});
  return result;
}

Tensor plain_norm(const Norm& norm, const Tensor& x_, const Tensor& gamma_, const Tensor& beta_) {
  const Tensor x = norm.operand(x_), gamma = norm.operand(gamma_), beta = norm.operand(beta_);
  check_norm(norm.op, norm.eps, x, {&gamma, &beta});
  Normalized rows;
  Tensor y;
  {
    const NoGrad unrecorded;
    rows = normalized(x, norm);
    y = cast(affine(rows.x_hat, detail::widened(gamma), detail::widened(beta)), x.dtype());
    rows.x_hat = cast(rows.x_hat, x.dtype());
  }
  const Linear tangent{[&](const Tensors& t) -> Tensors {  // the derivative of x_hat is symmetric
    const Normalized made = context().grad ? normalized(x, norm) : Normalized{detail::widened(rows.x_hat), rows.rstd};
    Tensor along = closed_form(norm, made, {}, detail::widened(t[0]), {}).x;
    if (gamma.defined()) along = along * detail::widened(gamma) + made.x_hat * detail::widened(t[1]);
    return {cast(beta.defined() ? along + detail::widened(t[2]) : along, y.dtype())};
  }};
  return record(norm.op, y, {x, gamma, beta}, {x, gamma, rows.x_hat, rows.rstd}, tangent, [norm](const Backward& call) -> Tensors {
    // For a higher order, the saved statistics must depend on x: compute them again, recorded.
    const Normalized made = context().grad ? normalized(call.saved(0), norm) : Normalized{detail::widened(call.saved(2)), call.saved(3)};
    NormGradients d = closed_form(norm, made, detail::widened(call.saved(1)), detail::widened(call.grad()),
                                  {call.needs(0), call.needs(1), call.needs(2)});
    for (Tensor* gradient : {&d.x, &d.gamma, &d.beta})
      if (gradient->defined()) *gradient = cast(*gradient, call.grad().dtype());
    return {d.x, d.gamma, d.beta};
  });
}

// Fused norms.

/// x (..., N) as (R, N), for a kernel; for an undefined tensor, a view without data.
View rows_of(const Tensor& x) {
  if (!x.defined()) return {};
  View view = x.view();
  const std::int64_t columns = x.size(-1);
  std::int64_t rows = 1;
  for (int d = 0; d + 1 < x.dims(); ++d) rows *= x.size(d);
  view.shape = {rows, columns};
  view.strides = {columns, 1};
  return view;
}
struct Statistics {
  Tensor mean, rstd;  ///< (R); see Note [Shifted rows]
};
Statistics empty_statistics(const Norm& norm, const Tensor& x) {
  const DType dtype = x.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const Shape rows = {rows_of(x).shape[0]};
  return {norm.centered ? empty(rows, dtype, x.device()) : Tensor(), empty(rows, dtype, x.device())};
}

/// Dropout of a branch: the state from which backward draws the same mask again.
struct DropoutState {
  double p = 0;
  PhiloxState state = {};
};

struct FusedGradients {
  Tensor x, branch, gamma, beta, bias;  ///< branch: x itself if there is no dropout
};

/// Outputs of the kernel for the gradients of parameters, with one write mode for all.
struct ParameterTargets {
  GradientTarget gamma, beta, bias;
  Write write = Write::overwrite;
  kernels::DeferredSums* deferred = nullptr;  ///< null if any output is a new tensor, which is used at once

  /// Targets of the parameters that are inputs first, first + 1, ... of the call.
  static ParameterTargets of(const Backward& call, std::size_t first, bool with_bias, const Tensor& s) {
    const Shape shape = {s.size(-1)};
    ParameterTargets d{call.sink(first, shape, s), call.sink(first + 1, shape, s), {}};
    if (with_bias) d.bias = call.sink(first + 2, shape, s);
    bool has_elements = false, has_new = false;
    for (const GradientTarget* to : {&d.gamma, &d.beta, &d.bias}) {
      has_elements = has_elements || (*to && to->write == Write::accumulate);
      has_new = has_new || to->is_new;
      if (to->deferred) d.deferred = to->deferred;
    }
    if (has_new) d.deferred = nullptr;
    if (has_elements) start_from_zeros({&d.gamma, &d.beta, &d.bias});
    if (has_elements) d.write = Write::accumulate;
    return d;
  }
};

/// Gradients by the kernel; g and g_sum as autograd gives them, g_sum may be undefined.
FusedGradients kernel_gradients(const Norm& norm, const Tensor& s, const Tensor& gamma, const Statistics& kept, const Tensor& g,
                                const Tensor& g_sum, const DropoutState& dropout, const ParameterTargets& to) {
  const Tensor rows = contiguous(s), dy = contiguous(g), dsum = g_sum.defined() ? contiguous(g_sum) : Tensor();
  FusedGradients d{empty_like(rows), {}, {}, {}, {}};
  d.branch = dropout.p > 0 ? empty_like(rows) : d.x;
  on(s.device(), [&](auto dev) {
    kernels::layer_norm_grad(dev, {.s = rows_of(rows),
                                   .gamma = view_of(gamma),
                                   .mean = view_of(kept.mean),
                                   .rstd = view_of(kept.rstd),
                                   .centered = norm.centered,
                                   .g = rows_of(dy),
                                   .g_sum = rows_of(dsum),
                                   .p = dropout.p,
                                   .draws = dropout.state,
                                   .dx = rows_of(d.x),
                                   .dbranch = dropout.p > 0 ? rows_of(d.branch) : View{},
                                   .dgamma = to.gamma.view(),
                                   .dbeta = to.beta.view(),
                                   .dbias = to.bias.view(),
                                   .write = to.write,
                                   .deferred = to.deferred});
  });
  d.gamma = to.gamma.result(), d.beta = to.beta.result(), d.bias = to.bias.result();
  return d;
}

Tensor fused_norm(const Norm& norm, const Tensor& x_, const Tensor& gamma_, const Tensor& beta_) {
  const Tensor x = norm.operand(x_), gamma = norm.operand(gamma_), beta = norm.operand(beta_);
  check_norm(norm.op, norm.eps, x, {&gamma, &beta});
  const Tensor source = contiguous(x), scale = gamma.defined() ? contiguous(gamma) : gamma,
               shift = beta.defined() ? contiguous(beta) : beta;
  const Statistics kept = empty_statistics(norm, x);
  const Tensor y = empty_like(source);
  on(x.device(), [&](auto dev) {
    kernels::layer_norm(dev, {.x = rows_of(source),
                              .gamma = view_of(scale),
                              .beta = view_of(shift),
                              .eps = norm.eps,
                              .centered = norm.centered,
                              .y = rows_of(y),
                              .mean = view_of(kept.mean),
                              .rstd = view_of(kept.rstd)});
  });
  return record(norm.op, y, {source, scale, shift}, {source, scale, kept.mean, kept.rstd}, [norm](const Backward& call) -> Tensors {
    const Tensor s = call.saved(0), weight = call.saved(1);
    if (context().grad)  // linear in beta, so zeros take its place
      return vjp(call, {s, weight, call.needs(2) ? zeros({s.size(-1)}, s.dtype(), s.device()) : Tensor()},
                 [&](const Tensors& in) -> Tensors { return {plain_norm(norm, in[0], in[1], in[2])}; });
    FusedGradients d =
        kernel_gradients(norm, s, weight, {call.saved(2), call.saved(3)}, call.grad(), {}, {}, ParameterTargets::of(call, 1, false, s));
    return {d.x, d.gamma, d.beta};
  });
}

void check_branch(const char* op, const Tensor& x, const Tensor& residual, const BranchOptions& branch) {
  check_one_device(op, {&x, &residual});
  if (residual.shape() != x.shape() || residual.dtype() != x.dtype())
    fail(op, fmt::format("expected a residual like x, {} {}, but got {} {}", name(x.dtype()), to_string(x.shape()), name(residual.dtype()),
                         to_string(residual.shape())));
  if (!(branch.dropout >= 0 && branch.dropout < 1))
    fail(op, fmt::format("expected a dropout probability in [0, 1) but got {}", branch.dropout));
}

ResidualNorm plain_residual_norm(const Norm& norm, const Tensor& x_, const Tensor& residual_, const Tensor& gamma_, const Tensor& beta_,
                                 BranchOptions branch) {
  const Tensor x = norm.operand(x_), residual = norm.operand(residual_), gamma = norm.operand(gamma_), beta = norm.operand(beta_);
  branch.bias = norm.operand(branch.bias);
  check_norm(norm.op, norm.eps, x, {&gamma, &beta, &branch.bias});
  check_branch(norm.op, x, residual, branch);
  const Tensor sum = residual + dropout(branch.bias.defined() ? x + branch.bias : x, branch.dropout, branch.training);
  return {sum, plain_norm(norm, sum, gamma, beta)};
}

/// Gradients of residual_norm for a higher order, from its sum s. That is linear in x, residual and bias, so zeros take the place of x and
/// bias, and s that of the residual.
Tensors residual_norm_gradients(const Backward& call, const Norm& norm, const Tensor& s, const Tensor& gamma, const DropoutState& dropout) {
  const auto stand_in = [&](std::size_t input) { return call.needs(input) ? zeros({s.size(-1)}, s.dtype(), s.device()) : Tensor(); };
  return vjp(call, {zeros_like(s), s, gamma, stand_in(3), stand_in(4)}, [&](const Tensors& in) -> Tensors {
    Tensor branch = in[4].defined() ? in[0] + in[4] : in[0];
    if (dropout.p > 0) branch = detail::dropout_at(branch, dropout.p, dropout.state);
    const Tensor sum = in[1] + branch;
    return {sum, plain_norm(norm, sum, in[2], in[3])};
  });
}

/// Gradients if only the sum was used, in ops.
Tensors sum_gradients(const Backward& call, const Tensor& g, const DropoutState& dropout) {
  const Tensor branch = dropout.p > 0 ? detail::dropout_at(g, dropout.p, dropout.state) : g;
  const auto none = [&](std::size_t input) { return call.needs(input) ? zeros({g.size(-1)}, g.dtype(), g.device()) : Tensor(); };
  return {branch, g, none(2), none(3), call.needs(4) ? sum_to(branch, {g.size(-1)}) : Tensor()};
}

ResidualNorm fused_residual_norm(const Norm& norm, const Tensor& x_, const Tensor& residual_, const Tensor& gamma_, const Tensor& beta_,
                                 BranchOptions branch) {
  const Tensor x = norm.operand(x_), residual = norm.operand(residual_), gamma = norm.operand(gamma_), beta = norm.operand(beta_);
  branch.bias = norm.operand(branch.bias);
  check_norm(norm.op, norm.eps, x, {&gamma, &beta, &branch.bias});
  check_branch(norm.op, x, residual, branch);
  const auto packed = [](const Tensor& t) { return t.defined() ? contiguous(t) : t; };
  const Tensor source = contiguous(x), stream = contiguous(residual), scale = packed(gamma), shift = packed(beta),
               bias = packed(branch.bias);
  DropoutState dropout;
  if (branch.training && branch.dropout > 0) dropout = {branch.dropout, context().generator.reserve(x.numel())};
  const Statistics kept = empty_statistics(norm, x);
  const Tensor sum = empty_like(source), y = empty_like(source);
  on(x.device(), [&](auto dev) {
    kernels::layer_norm(dev, {.x = rows_of(source),
                              .gamma = view_of(scale),
                              .beta = view_of(shift),
                              .eps = norm.eps,
                              .centered = norm.centered,
                              .residual = rows_of(stream),
                              .bias = view_of(bias),
                              .p = dropout.p,
                              .draws = dropout.state,
                              .sum = rows_of(sum),
                              .y = rows_of(y),
                              .mean = view_of(kept.mean),
                              .rstd = view_of(kept.rstd)});
  });
  const Tensors outputs = record_all(norm.op, {sum, y}, {source, stream, scale, shift, bias}, {sum, scale, kept.mean, kept.rstd},
                                     [norm, dropout](const Backward& call) -> Tensors {
                                       const Tensor s = call.saved(0), weight = call.saved(1), &g_sum = call.grad(0), &g = call.grad(1);
                                       if (!g.defined()) return sum_gradients(call, g_sum, dropout);
                                       if (context().grad) return residual_norm_gradients(call, norm, s, weight, dropout);
                                       FusedGradients d = kernel_gradients(norm, s, weight, {call.saved(2), call.saved(3)}, g, g_sum,
                                                                           dropout, ParameterTargets::of(call, 2, true, s));
                                       return {d.branch, d.x, d.gamma, d.beta, d.bias};
                                     });
  return {outputs[0], outputs[1]};
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& gamma, const Tensor& beta, double eps) {
  return plain_norm({"layer_norm", true, eps}, x, gamma, beta);
}
Tensor fused_layer_norm(const Tensor& x, const Tensor& gamma, const Tensor& beta, double eps) {
  return fused_norm({"fused_layer_norm", true, eps}, x, gamma, beta);
}
Tensor group_norm(const Tensor& x_, std::int64_t groups, const Tensor& gamma_, const Tensor& beta_, double eps) {
  const Norm norm{"group_norm", true, eps};
  const Tensor x = norm.operand(x_), gamma = norm.operand(gamma_), beta = norm.operand(beta_);
  check_one_device("group_norm", {&x, &gamma, &beta});
  detail::check_floating("group_norm", x);
  if (x.dims() < 2 || groups < 1 || x.size(1) % groups != 0)
    fail("group_norm", fmt::format("expected x (B, C, ...) and groups that divide C but got {} and {}", to_string(x.shape()), groups));
  check_norm("group_norm", eps, transpose(x, 1, -1), {&gamma, &beta});  // compares (C) with the last dimension
  std::int64_t width = x.size(1) / groups;
  for (int d = 2; d < x.dims(); ++d) width *= x.size(d);
  Shape by_channel = Shape::filled(x.dims(), 1);
  by_channel[1] = x.size(1);
  const auto per_channel = [&](const Tensor& parameter) { return parameter.defined() ? reshape(parameter, by_channel) : parameter; };
  const Tensor x_hat = plain_norm(norm, reshape(detail::widened(x), {x.size(0), groups, width}), {}, {});
  return cast(affine(reshape(x_hat, x.shape()), per_channel(detail::widened(gamma)), per_channel(detail::widened(beta))), x.dtype());
}
Tensor rms_norm(const Tensor& x, const Tensor& gamma, double eps) { return plain_norm({"rms_norm", false, eps}, x, gamma, {}); }
Tensor fused_rms_norm(const Tensor& x, const Tensor& gamma, double eps) { return fused_norm({"fused_rms_norm", false, eps}, x, gamma, {}); }

ResidualNorm residual_layer_norm(const Tensor& x, const Tensor& residual, const Tensor& gamma, const Tensor& beta, double eps,
                                 const BranchOptions& branch) {
  return plain_residual_norm({"residual_layer_norm", true, eps}, x, residual, gamma, beta, branch);
}
ResidualNorm fused_residual_layer_norm(const Tensor& x, const Tensor& residual, const Tensor& gamma, const Tensor& beta, double eps,
                                       const BranchOptions& branch) {
  return fused_residual_norm({"fused_residual_layer_norm", true, eps}, x, residual, gamma, beta, branch);
}
ResidualNorm residual_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& gamma, double eps, const BranchOptions& branch) {
  return plain_residual_norm({"residual_rms_norm", false, eps}, x, residual, gamma, {}, branch);
}
ResidualNorm fused_residual_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& gamma, double eps,
                                     const BranchOptions& branch) {
  return fused_residual_norm({"fused_residual_rms_norm", false, eps}, x, residual, gamma, {}, branch);
}

}  // namespace tern
