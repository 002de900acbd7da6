#include "ops/normalize.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/factory.h"
#include "ops/kernels/normalize.h"
#include "ops/op.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"

namespace tern {

// Plain compositions: the forward runs unrecorded, and backward is the closed form of the derivative, in ops. So a step keeps one or two
// tensors for each call, not every intermediate. Fused kernels are an op's other way, for forward and backward; they take the composition's
// gradient if that is to be differentiated again (vjp). Kernels: softmax has none itself, only attention softmax does
// (composed_attention.cpp); those of layer_norm and rms_norm are in ops/cpu/layer_norm.cpp and cuda/rows/layer_norm.cu.

Tensor detail::softmax_gradient(const Tensor& p, const Tensor& g, int dim) {
  const Tensor weighted = g * p;
  return weighted - p * sum(weighted, {dim}, true);
}

namespace {

struct Softmax {
  static constexpr Op op{.name = "softmax", .autocast = CastTo::f32, .takes = Takes::floating, .tangent = Tangent::symmetric};
  int dim;
  detail::Hidden hidden;

  struct Kept {
    Tensor y;
  };
  Result<Tensor, Kept> forward(const Tensor& x) const {
    const NoGrad unrecorded;
    if (x.numel() == 0) return {empty_like(x), {x}};
    const Tensor wide = detail::widened(x);
    Tensor top = max(wide, {dim}, true);
    if (hidden == detail::Hidden::is_zero) top = where(eq(top, -std::numeric_limits<double>::infinity()), 0.0, top);
    const Tensor exponentials = exp(wide - top);
    Tensor total = sum(exponentials, {dim}, true);
    if (hidden == detail::Hidden::is_zero) total = where(eq(total, 0), 1.0, total);
    const Tensor y = cast(exponentials / total, x.dtype());
    return {y, {y}};
  }
  Tensors backward(const Backward& call, const Kept& kept) const { return {detail::softmax_gradient(kept.y, call.grad(), dim)}; }
};

struct LogSoftmax {
  static constexpr Op op{.name = "log_softmax", .autocast = CastTo::f32, .takes = Takes::floating, .tangent = Tangent::linear};
  int dim;

  struct Kept {
    Tensor y;
  };
  Result<Tensor, Kept> forward(const Tensor& x) const {
    const NoGrad unrecorded;
    const Tensor wide = detail::widened(x), total = logsumexp(wide, {dim}, true);
    // total - total is 0, or NaN for an infinite total: softmax of a row with inf is NaN, but x - inf = -inf would be a probability of 0.
    const Tensor y = cast(wide - (total + (total - total)), x.dtype());
    return {y, {y}};
  }
  Tensors backward(const Backward& call, const Kept& kept) const {
    const Tensor g = detail::widened(call.grad());
    return {cast(g - exp(detail::widened(kept.y)) * sum(g, {dim}, true), call.grad().dtype())};
  }
  Tensors tangents(const Tensors& t, const Kept& kept) const {
    return {t[0] - cast(sum(exp(detail::widened(kept.y)) * t[0], {dim}, true), kept.y.dtype())};
  }
};

}  // namespace

Tensor detail::softmax(const Tensor& x, int dim, Hidden hidden) { return call(Softmax{dim, hidden}, x); }

Tensor softmax(const Tensor& x, int dim) {
  dim = normalize_dim(dim, std::max(x.dims(), 1), "softmax");
  if (x.dims() == 0) return reshape(softmax(reshape(x, {1}), 0), {});
  return detail::softmax(x, dim, detail::Hidden::is_undefined);
}

Tensor log_softmax(const Tensor& x, int dim) {
  dim = normalize_dim(dim, std::max(x.dims(), 1), "log_softmax");
  if (x.dims() == 0) return reshape(log_softmax(reshape(x, {1}), 0), {});
  return call(LogSoftmax{dim}, x);
}

namespace {

/// Kind of norm.
struct Kind {
  bool centered;
  double eps;
};

constexpr Op norm_op(const char* name, Tangent tangent = Tangent::transposed) {
  return {.name = name, .autocast = CastTo::f32, .tangent = tangent};
}

void check_norm(const char* op, double eps, const Tensor& x, std::initializer_list<const Tensor*> parameters) {
  if (!(eps > 0) || !std::isfinite(eps)) fail(op, fmt::format("expected a finite eps > 0 but got {}", eps));
  detail::check_floating(op, x);
  for (const Tensor* parameter : parameters) {
    check_one_device(op, {&x, parameter});
    if (x.dims() == 0 || (parameter->defined() && parameter->shape() != Shape{x.size(-1)}))
      fail(op, fmt::format("expected x (..., N) and parameters (N) but got {} and {}", to_string(x.shape()),
                           detail::shape_or_none(*parameter)));
    if (parameter->defined() && parameter->dtype() != x.dtype())
      fail(op, fmt::format("expected parameters of x's dtype {} but got {}", name(x.dtype()), name(parameter->dtype())));
  }
}

struct Normalized {
  Tensor x_hat, rstd;  ///< the normalized rows, and 1 / deviation; both widened
};

Normalized normalized(const Tensor& given, const Kind& norm) {
  const Tensor x = detail::widened(given), deviation = norm.centered ? detail::centered(x, {-1}) : x;
  const Tensor rstd = rsqrt(mean(square(deviation), {-1}, true) + norm.eps);
  const bool is_own = !deviation.is_same(given);
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
NormGradients closed_form(const Kind& norm, const Normalized& rows, const Tensor& gamma, const Tensor& g, Wanted wanted) {
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

struct PlainNorm {
  Op op;
  Kind norm;

  struct Kept {
    Tensor x, gamma, x_hat, rstd;
  };
  Result<Tensor, Kept> forward(const Tensor& x, const Tensor& gamma, const Tensor& beta) const {
    check_norm(op.name, norm.eps, x, {&gamma, &beta});
    const NoGrad unrecorded;
    const auto [x_hat, rstd] = normalized(x, norm);
    return {cast(affine(x_hat, detail::widened(gamma), detail::widened(beta)), x.dtype()), {x, gamma, cast(x_hat, x.dtype()), rstd}};
  }
  Tensors backward(const Backward& call, const Kept& kept) const {
    NormGradients d = closed_form(norm, rows(kept), detail::widened(kept.gamma), detail::widened(call.grad()),
                                  {call.needs(0), call.needs(1), call.needs(2)});
    for (Tensor* gradient : {&d.x, &d.gamma, &d.beta})
      if (gradient->defined()) *gradient = cast(*gradient, call.grad().dtype());
    return {d.x, d.gamma, d.beta};
  }
  Tensors tangents(const Tensors& t, const Kept& kept) const {  // the derivative of x_hat is symmetric
    const Normalized made = rows(kept);
    Tensor along = closed_form(norm, made, {}, detail::widened(t[0]), {}).x;
    if (kept.gamma.defined()) along = along * detail::widened(kept.gamma) + made.x_hat * detail::widened(t[1]);
    return {cast(t[2].defined() ? along + detail::widened(t[2]) : along, kept.x.dtype())};
  }

 private:
  /// For a higher order, the kept statistics must depend on x: they are computed again, recorded.
  Normalized rows(const Kept& kept) const {
    return context().grad ? normalized(kept.x, norm) : Normalized{detail::widened(kept.x_hat), kept.rstd};
  }
};

Tensor plain_norm(const char* op, const Kind& norm, const Tensor& x, const Tensor& gamma, const Tensor& beta) {
  return call(PlainNorm{norm_op(op, Tangent::linear), norm}, x, gamma, beta);
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
Statistics empty_statistics(const Kind& norm, const Tensor& x) {
  const DType dtype = x.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const Shape rows = {rows_of(x).shape[0]};
  return {norm.centered ? empty(rows, dtype, x.device()) : Tensor(), empty(rows, dtype, x.device())};
}

/// Normalizes rows like those of x by the kernel, whose arguments lack the kind of norm and the statistics; gives these.
Statistics run_kernel(const Kind& norm, const Tensor& x, kernels::LayerNorm arguments) {
  const Statistics kept = empty_statistics(norm, x);
  arguments.eps = norm.eps, arguments.centered = norm.centered;
  arguments.mean = view_of(kept.mean), arguments.rstd = view_of(kept.rstd);
  launch(x.device(), arguments);
  return kept;
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
FusedGradients kernel_gradients(const Kind& norm, const Tensor& s, const Tensor& gamma, const Statistics& kept, const Tensor& g,
                                const Tensor& g_sum, const DropoutState& dropout, const ParameterTargets& to) {
  const Tensor rows = contiguous(s), dy = contiguous(g), dsum = detail::contiguous_or_none(g_sum);
  FusedGradients d{empty_like(rows), {}, {}, {}, {}};
  d.branch = dropout.p > 0 ? empty_like(rows) : d.x;
  launch(s.device(), kernels::LayerNormGrad{.s = rows_of(rows),
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
  d.gamma = to.gamma.result(), d.beta = to.beta.result(), d.bias = to.bias.result();
  return d;
}

struct FusedNorm {
  Op op;
  Kind norm;

  struct Kept {
    Tensor x, gamma, mean, rstd;
  };
  Tensor plain(const Tensor& x, const Tensor& gamma, const Tensor& beta) const { return plain_norm(op.name, norm, x, gamma, beta); }
  Result<Tensor, Kept> forward(const Tensor& x, const Tensor& gamma, const Tensor& beta) const {
    check_norm(op.name, norm.eps, x, {&gamma, &beta});
    const Tensor source = contiguous(x), scale = detail::contiguous_or_none(gamma), shift = detail::contiguous_or_none(beta),
                 y = empty_like(source);
    const Statistics kept = run_kernel(norm, x, {.x = rows_of(source), .gamma = view_of(scale), .beta = view_of(shift), .y = rows_of(y)});
    return {y, {source, scale, kept.mean, kept.rstd}};
  }
  Tensors backward(const Backward& call, const Kept& kept) const {
    const auto& [x, gamma, mean, rstd] = kept;
    if (context().grad)  // linear in beta, so zeros take its place
      return vjp(call, {x, gamma, call.needs(2) ? zeros({x.size(-1)}, x.dtype(), x.device()) : Tensor()},
                 [&](const Tensors& in) -> Tensors { return {plain(in[0], in[1], in[2])}; });
    FusedGradients d = kernel_gradients(norm, x, gamma, {mean, rstd}, call.grad(), {}, {}, ParameterTargets::of(call, 1, false, x));
    return {d.x, d.gamma, d.beta};
  }
};

void check_branch(const char* op, const Tensor& x, const Tensor& residual, const BranchOptions& branch) {
  check_one_device(op, {&x, &residual});
  if (residual.shape() != x.shape() || residual.dtype() != x.dtype())
    fail(op, fmt::format("expected a residual like x, {} {}, but got {} {}", name(x.dtype()), to_string(x.shape()), name(residual.dtype()),
                         to_string(residual.shape())));
  if (!(branch.dropout >= 0 && branch.dropout < 1))
    fail(op, fmt::format("expected a dropout probability in [0, 1) but got {}", branch.dropout));
}

struct FusedResidualNorm {
  Op op;
  Kind norm;
  BranchOptions branch;

  struct Kept {
    Tensor sum, gamma, mean, rstd;
    DropoutState dropout;
  };
  Tensors plain(const Tensor& x, const Tensor& residual, const Tensor& gamma, const Tensor& beta, const Tensor& bias) const {
    check_norm(op.name, norm.eps, x, {&gamma, &beta, &bias});
    check_branch(op.name, x, residual, branch);
    const Tensor sum = residual + dropout(bias.defined() ? x + bias : x, branch.dropout, branch.training);
    return {sum, plain_norm(op.name, norm, sum, gamma, beta)};
  }
  Result<Tensors, Kept> forward(const Tensor& x, const Tensor& residual, const Tensor& gamma, const Tensor& beta,
                                const Tensor& bias) const {
    check_norm(op.name, norm.eps, x, {&gamma, &beta, &bias});
    check_branch(op.name, x, residual, branch);
    const Tensor source = contiguous(x), stream = contiguous(residual), scale = detail::contiguous_or_none(gamma),
                 shift = detail::contiguous_or_none(beta), added = detail::contiguous_or_none(bias);
    DropoutState dropout;
    if (branch.training && branch.dropout > 0) dropout = {branch.dropout, context().generator.reserve(x.numel())};
    const Tensor sum = empty_like(source), y = empty_like(source);
    const Statistics kept = run_kernel(norm, x,
                                       {.x = rows_of(source),
                                        .gamma = view_of(scale),
                                        .beta = view_of(shift),
                                        .residual = rows_of(stream),
                                        .bias = view_of(added),
                                        .p = dropout.p,
                                        .draws = dropout.state,
                                        .sum = rows_of(sum),
                                        .y = rows_of(y)});
    return {{sum, y}, {sum, scale, kept.mean, kept.rstd, dropout}};
  }
  Tensors backward(const Backward& call, const Kept& kept) const {
    const Tensor &g_sum = call.grad(0), &g = call.grad(1);
    if (!g.defined()) return sum_gradients(call, g_sum, kept.dropout);
    if (context().grad) return gradients_in_ops(call, kept);
    FusedGradients d = kernel_gradients(norm, kept.sum, kept.gamma, {kept.mean, kept.rstd}, g, g_sum, kept.dropout,
                                        ParameterTargets::of(call, 2, true, kept.sum));
    return {d.branch, d.x, d.gamma, d.beta, d.bias};
  }

 private:
  /// For a higher order, from the sum s. That is linear in x, residual and bias, so zeros take the place of x and bias, and s that of the
  /// residual.
  Tensors gradients_in_ops(const Backward& call, const Kept& kept) const {
    const Tensor& s = kept.sum;
    const auto stand_in = [&](std::size_t input) { return call.needs(input) ? zeros({s.size(-1)}, s.dtype(), s.device()) : Tensor(); };
    return vjp(call, {zeros_like(s), s, kept.gamma, stand_in(3), stand_in(4)}, [&](const Tensors& in) -> Tensors {
      Tensor added = in[4].defined() ? in[0] + in[4] : in[0];
      if (kept.dropout.p > 0) added = detail::dropout_at(added, kept.dropout.p, kept.dropout.state);
      const Tensor sum = in[1] + added;
      return {sum, plain_norm(op.name, norm, sum, in[2], in[3])};
    });
  }
  /// If only the sum was used, in ops.
  static Tensors sum_gradients(const Backward& call, const Tensor& g, const DropoutState& dropout) {
    const Tensor added = dropout.p > 0 ? detail::dropout_at(g, dropout.p, dropout.state) : g;
    const auto none = [&](std::size_t input) { return call.needs(input) ? zeros({g.size(-1)}, g.dtype(), g.device()) : Tensor(); };
    return {added, g, none(2), none(3), call.needs(4) ? sum_to(added, {g.size(-1)}) : Tensor()};
  }
};

struct GroupNorm {
  Op op;
  std::int64_t groups;
  double eps;

  Tensor forward(const Tensor& x, const Tensor& gamma, const Tensor& beta) const {
    detail::check_floating(op.name, x);
    if (x.dims() < 2 || groups < 1 || x.size(1) % groups != 0)
      fail(op.name, fmt::format("expected x (B, C, ...) and groups that divide C but got {} and {}", to_string(x.shape()), groups));
    check_norm(op.name, eps, transpose(x, 1, -1), {&gamma, &beta});  // compares (C) with the last dimension
    std::int64_t width = x.size(1) / groups;
    for (int d = 2; d < x.dims(); ++d) width *= x.size(d);
    Shape by_channel = Shape::filled(x.dims(), 1);
    by_channel[1] = x.size(1);
    const auto per_channel = [&](const Tensor& parameter) { return parameter.defined() ? reshape(parameter, by_channel) : parameter; };
    const Tensor x_hat = plain_norm(op.name, {true, eps}, reshape(detail::widened(x), {x.size(0), groups, width}), {}, {});
    return cast(affine(reshape(x_hat, x.shape()), per_channel(detail::widened(gamma)), per_channel(detail::widened(beta))), x.dtype());
  }
};

ResidualNorm residual_norm(const char* op, const Kind& norm, const Tensor& x, const Tensor& residual, const Tensor& gamma,
                           const Tensor& beta, const BranchOptions& branch) {
  const Tensors results = call(FusedResidualNorm{norm_op(op), norm, branch}, x, residual, gamma, beta, branch.bias);
  return {results[0], results[1]};
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& gamma, const Tensor& beta, double eps) {
  return call(FusedNorm{norm_op("layer_norm"), {true, eps}}, x, gamma, beta);
}
Tensor group_norm(const Tensor& x, std::int64_t groups, const Tensor& gamma, const Tensor& beta, double eps) {
  return call(GroupNorm{norm_op("group_norm"), groups, eps}, x, gamma, beta);
}
Tensor instance_norm(const Tensor& x, const Tensor& gamma, const Tensor& beta, double eps) {
  const Op op = norm_op("instance_norm");
  if (x.dims() < 3 || x.size(1) < 1) fail(op.name, fmt::format("expected x (B, C, ...) with positions but got {}", to_string(x.shape())));
  return call(GroupNorm{op, x.size(1), eps}, x, gamma, beta);
}
Tensor rms_norm(const Tensor& x, const Tensor& gamma, double eps) {
  return call(FusedNorm{norm_op("rms_norm"), {false, eps}}, x, gamma, Tensor());
}

ResidualNorm residual_layer_norm(const Tensor& x, const Tensor& residual, const Tensor& gamma, const Tensor& beta, double eps,
                                 const BranchOptions& branch) {
  return residual_norm("residual_layer_norm", {true, eps}, x, residual, gamma, beta, branch);
}
ResidualNorm residual_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& gamma, double eps, const BranchOptions& branch) {
  return residual_norm("residual_rms_norm", {false, eps}, x, residual, gamma, {}, branch);
}

}  // namespace tern
