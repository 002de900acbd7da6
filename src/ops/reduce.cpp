#include "ops/reduce.h"

#include <fmt/format.h>

#include <limits>

#include "autodiff/node.h"
#include "autodiff/vjp.h"
#include "ops/copy.h"
#include "ops/detail/autocast.h"
#include "ops/detail/centered.h"
#include "ops/factory.h"
#include "ops/join.h"
#include "ops/kernels/reduce.h"
#include "ops/op.h"
#include "ops/pointwise.h"
#include "ops/view.h"

namespace tern {

using kernels::Reduce;

namespace {

/// Shapes of a reduction: with the reduced dimensions as 1, and as the caller wants it.
struct Plan {
  Shape kept, result;
  std::int64_t count = 1;  ///< elements in each reduction
};

Plan plan(const char* op, const Tensor& x, const Dims& dims, bool keepdim) {
  bool reduced[max_dims] = {};
  for (int dim : dims)
    if (std::exchange(reduced[normalize_dim(dim, x.dims(), op)], true))
      fail(op, fmt::format("expected each dimension once but got {}", to_string(dims)));
  Plan plan;
  for (int i = 0; i < x.dims(); ++i) {
    const bool drop = reduced[i] || dims.empty();
    plan.kept.push_back(drop ? 1 : x.shape()[i]);
    if (!drop || keepdim) plan.result.push_back(plan.kept.back());
    if (drop) plan.count *= x.shape()[i];
  }
  return plan;
}

/// Dtype of sums and products: kernels read narrow integers and bool as they are, and add up in i64.
DType summed_dtype(const Tensor& x) { return is_floating(x.dtype()) ? x.dtype() : DType::i64; }

Tensor apply(Reduce f, const Tensor& x, const Plan& plan, DType dtype, double scale = 1) {
  Tensor y = empty(plan.result, dtype, x.device());
  View view = y.view();
  view.shape = plan.kept;
  view.strides = contiguous_strides(plan.kept);
  on(x.device(), [&](auto dev) { kernels::reduce(dev, f, x.view(), view, scale); });
  return y;
}

/// The reduced tensor, broadcast back to x's shape.
Tensor broadcast_kept(const Tensor& y, const Shape& kept, const Shape& shape) { return broadcast_to(reshape(y, kept), shape); }

Tensor scaled_sum(const char* op, const Tensor& x, const Plan& p, double scale) {
  return record(op, apply(Reduce::sum, x, p, summed_dtype(x), scale), {x}, {},
                Linear{[&](const Tensors& t) -> Tensors { return {scaled_sum(op, t[0], p, scale)}; }},
                [kept = p.kept, shape = x.shape(), scale](const Backward& call) -> Tensors {
                  const Tensor& g = call.grad();
                  return {broadcast_kept(scale == 1 ? g : g * scale, kept, shape)};
                });
}

void check_some(const char* op, const Tensor& x, std::int64_t count) {
  if (count == 0) fail(op, fmt::format("expected at least one element to choose from but got shape {}", to_string(x.shape())));
}

}  // namespace

Tensor sum(const Tensor& x_, const Dims& dims, bool keepdim) {
  const Tensor x = detail::autocast("sum", x_);
  return scaled_sum("sum", x, plan("sum", x, dims, keepdim), 1);
}

Tensor mean(const Tensor& x, const Dims& dims, bool keepdim) {
  detail::check_floating("mean", x);
  const Plan p = plan("mean", x, dims, keepdim);
  return scaled_sum("mean", x, p, p.count ? 1.0 / static_cast<double>(p.count) : std::numeric_limits<double>::quiet_NaN());
}

Tensor detail::centered(const Tensor& x, const Dims& dims) {
  const Tensor deviation = x - mean(x, dims, true), rest = mean(deviation, dims, true);
  return context().grad ? deviation - rest : sub_(deviation, rest);
}

Tensor var(const Tensor& x, const Dims& dims, std::int64_t correction, bool keepdim) {
  detail::check_floating("var", x);
  const Plan p = plan("var", x, dims, keepdim);
  const double freedom = static_cast<double>(p.count - correction);
  const Tensor squares = square(detail::centered(detail::widened(x), dims));
  return cast(scaled_sum("var", squares, p, freedom > 0 ? 1 / freedom : std::numeric_limits<double>::quiet_NaN()), x.dtype());
}

/// prod in ops whose derivatives of any order are exact about zeros: halves are multiplied until one element is left.
static Tensor composed_prod(const Tensor& x, const Plan& p) {
  Tensor y = detail::widened(x);
  for (int dim = 0; dim < y.dims(); ++dim)
    while (p.kept[dim] == 1 && y.size(dim) > 1) {
      const std::int64_t half = y.size(dim) / 2;
      const Tensor halved = slice(y, dim, 0, half) * slice(y, dim, half, 2 * half);
      y = y.size(dim) % 2 ? cat({halved, slice(y, dim, 2 * half)}, dim) : halved;
    }
  return reshape(cast(y, x.dtype()), p.result);
}

Tensor prod(const Tensor& x_, const Dims& dims, bool keepdim) {
  const Tensor x = detail::autocast("prod", x_);
  const Plan p = plan("prod", x, dims, keepdim);
  return record("prod", apply(Reduce::prod, x, p, summed_dtype(x)), {x}, {x}, [dims, p](const Backward& call) -> Tensors {
    const Tensor in = call.saved(0), g = reshape(call.grad(), p.kept);
    if (context().grad && in.numel() > 0) return vjp(call, {in}, [&p](const Tensors& xs) -> Tensors { return {composed_prod(xs[0], p)}; });
    // The product of the other elements is that of all, divided by this one, unless some are zero. With a single zero, only its own
    // derivative is not 0; with more, every derivative is 0.
    const Tensor is_zero = eq(in, 0), safe = where(is_zero, 1, in), rest = prod(safe, dims, true);
    const Tensor zeros_seen = sum(cast(is_zero, in.dtype()), dims, true);
    const Tensor others = where(is_zero, where(eq(zeros_seen, 1), rest, 0.0), where(eq(zeros_seen, 0), rest / safe, 0.0));
    return {g * others};
  });
}

static Tensor extreme(const char* op, Reduce f, const Tensor& x, const Dims& dims, bool keepdim) {
  if (x.dtype() == DType::boolean) fail(op, "expected a numeric dtype but got bool: any and all take bool");
  const Plan p = plan(op, x, dims, keepdim);
  check_some(op, x, p.count);
  const Tensor y = apply(f, x, p, x.dtype());
  return record(op, y, {x}, {x, y}, [kept = p.kept, dims](const Backward& call) -> Tensors {
    const Tensor in = call.saved(0);
    const Tensor is_chosen = eq(in, reshape(call.saved(1), kept)), g = detail::widened(reshape(call.grad(), kept));
    // The count of equal elements may exceed f16.
    const Tensor share = cast(g / sum(cast(is_chosen, g.dtype()), dims, true), in.dtype());
    return {where(is_chosen, share, 0)};
  });
}
Tensor max(const Tensor& x, const Dims& dims, bool keepdim) { return extreme("max", Reduce::max, x, dims, keepdim); }
Tensor min(const Tensor& x, const Dims& dims, bool keepdim) { return extreme("min", Reduce::min, x, dims, keepdim); }

Tensor logsumexp(const Tensor& x_, const Dims& dims, bool keepdim) {
  const Tensor x = detail::autocast("logsumexp", x_);
  detail::check_floating("logsumexp", x);
  const Plan p = plan("logsumexp", x, dims, keepdim);
  const Tensor y = apply(Reduce::logsumexp, x, p, x.dtype());
  return record("logsumexp", y, {x}, {x, y}, [dims, kept = p.kept](const Backward& call) -> Tensors {
    // A total of 16 bits is too imprecise: its rounding would be the relative error of every exponential.
    const Tensor in = detail::widened(call.saved(0));
    const Tensor total = detail::is_narrow(call.saved(1).dtype()) ? logsumexp(in, dims, true) : reshape(call.saved(1), kept);
    // exp(-inf - 0) = 0 is the gradient where a whole slice is -inf; exp(-inf + inf) would be NaN.
    const Tensor finite = where(eq(total, -std::numeric_limits<double>::infinity()), 0.0, total);
    return {cast(exp(in - finite) * detail::widened(reshape(call.grad(), kept)), call.saved(0).dtype())};
  });
}

static Tensor truth(const char* op, Reduce f, const Tensor& x, const Dims& dims, bool keepdim) {
  return apply(f, x, plan(op, x, dims, keepdim), DType::boolean);
}
Tensor any(const Tensor& x, const Dims& dims, bool keepdim) { return truth("any", Reduce::any, x, dims, keepdim); }
Tensor all(const Tensor& x, const Dims& dims, bool keepdim) { return truth("all", Reduce::all, x, dims, keepdim); }

static Tensor arg_extreme(const char* op, bool largest, const Tensor& x, int dim, bool keepdim) {
  if (x.dtype() == DType::boolean) fail(op, "expected a numeric dtype but got bool");
  dim = normalize_dim(dim, x.dims(), op);
  const Plan p = plan(op, x, {dim}, keepdim);
  check_some(op, x, p.count);
  Tensor y = empty(p.result, DType::i64, x.device());
  View view = y.view();
  view.shape = p.kept;
  view.strides = contiguous_strides(p.kept);
  on(x.device(), [&](auto dev) { kernels::arg_reduce(dev, largest, x.view(), view, dim); }, "arg_reduce");
  return y;
}
Tensor argmax(const Tensor& x, int dim, bool keepdim) { return arg_extreme("argmax", true, x, dim, keepdim); }
Tensor argmin(const Tensor& x, int dim, bool keepdim) { return arg_extreme("argmin", false, x, dim, keepdim); }

static Tensor cumsum_towards(const Tensor& x, int dim, bool reverse) {
  Tensor y = empty(x.shape(), summed_dtype(x), x.device());
  on(x.device(), [&](auto dev) { kernels::cumsum(dev, x.view(), y.view(), dim, reverse); });
  return record("cumsum", y, {x}, {}, Linear{[&](const Tensors& t) -> Tensors { return {cumsum_towards(t[0], dim, reverse)}; }},
                [=](const Backward& call) -> Tensors { return {cumsum_towards(call.grad(), dim, !reverse)}; });
}

Tensor cumsum(const Tensor& x, int dim) {
  return cumsum_towards(detail::autocast("cumsum", x), normalize_dim(dim, x.dims(), "cumsum"), false);
}

}  // namespace tern
