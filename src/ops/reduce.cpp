#include "ops/reduce.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "ops/factory.h"
#include "ops/index.h"
#include "ops/kernels/reduce.h"
#include "ops/op.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/view.h"

namespace tern {

using kernels::ReduceFunction;
using T = const Tensor&;

namespace {

/// Shapes of a reduction.
struct Plan {
  Shape full, kept, result;  ///< that of the operand; with the reduced dimensions as 1; and as the caller wants it
  Dims dims;
  std::int64_t count = 1;  ///< elements in each reduction

  /// A tensor of shape `kept` or `result`, broadcast back to the operand's.
  Tensor expanded(T y) const { return broadcast_to(reshape(y, kept), full); }
  /// A result's memory, as kernels see it.
  View view(T y) const {
    View view = y.view();
    view.shape = kept;
    view.strides = contiguous_strides(kept);
    return view;
  }
};

Plan plan(const char* op, T x, const Dims& dims, bool keepdim) {
  bool reduced[max_dims] = {};
  for (int dim : dims)
    if (std::exchange(reduced[normalize_dim(dim, x.dims(), op)], true))
      fail(op, fmt::format("expected each dimension once but got {}", to_string(dims)));
  Plan plan{x.shape(), {}, {}, dims};
  for (int i = 0; i < x.dims(); ++i) {
    const bool drop = reduced[i] || dims.empty();
    plan.kept.push_back(drop ? 1 : x.shape()[i]);
    if (!drop || keepdim) plan.result.push_back(plan.kept.back());
    if (drop) plan.count *= x.shape()[i];
  }
  return plan;
}

/// The plan of an op that chooses an element.
Plan choosing(const char* op, T x, const Dims& dims, bool keepdim, const char* hint = "") {
  if (x.dtype() == DType::boolean) fail(op, fmt::format("expected a numeric dtype but got bool{}", hint));
  const Plan p = plan(op, x, dims, keepdim);
  if (p.count == 0) fail(op, fmt::format("expected at least one element to choose from but got shape {}", to_string(x.shape())));
  return p;
}

/// Dtype of sums and products: kernels read narrow integers and bool as they are, and add up in i64.
DType summed_dtype(T x) { return is_floating(x.dtype()) ? x.dtype() : DType::i64; }

Tensor apply(ReduceFunction f, T x, const Plan& plan, DType dtype, double scale = 1) {
  const Tensor y = empty(plan.result, dtype, x.device());
  launch(x.device(), kernels::Reduce{f, x, plan.view(y), scale});
  return y;
}

struct ScaledSum {
  Op op;
  Plan plan;
  double scale;

  Result<Tensor> forward(T x) const { return {apply(ReduceFunction::sum, x, plan, summed_dtype(x), scale)}; }
  Tensors backward(const Backward& call) const {
    T g = call.grad();
    return {plan.expanded(scale == 1 ? g : g * scale)};
  }
};

/// prod in ops whose derivatives of any order are exact about zeros: halves are multiplied until one element is left.
Tensor composed_prod(T x, const Plan& p) {
  Tensor y = detail::widened(x);
  for (int dim = 0; dim < y.dims(); ++dim)
    while (p.kept[dim] == 1 && y.size(dim) > 1) {
      const std::int64_t half = y.size(dim) / 2;
      const Tensor halved = slice(y, dim, 0, half) * slice(y, dim, half, 2 * half);
      y = y.size(dim) % 2 ? cat({halved, slice(y, dim, 2 * half)}, dim) : halved;
    }
  return reshape(cast(y, x.dtype()), p.result);
}

/// A reduction whose derivative is not that of a sum.
struct Reduction {
  Op op;
  ReduceFunction f;
  Plan plan;
  Tensor (*gradient)(const Backward& call, const Plan& plan, T x, T y);  ///< that of x

  struct Kept {
    Tensor x, y;
  };
  Result<Tensor, Kept> forward(T x) const {
    const Tensor y = apply(f, x, plan, f == ReduceFunction::prod ? summed_dtype(x) : x.dtype());
    return {y, {x, f == ReduceFunction::prod ? Tensor() : y}};
  }
  Tensors backward(const Backward& call, const Kept& kept) const { return {gradient(call, plan, kept.x, kept.y)}; }
};

Tensor prod_gradient(const Backward& call, const Plan& plan, T x, T) {
  if (context().grad && x.numel() > 0) return vjp(call, {x}, [&](const Tensors& in) -> Tensors { return {composed_prod(in[0], plan)}; })[0];
  // The product of the other elements is that of all, divided by this one, unless some are zero. With a single zero, only its own
  // derivative is not 0; with more, every derivative is 0.
  const Tensor is_zero = eq(x, 0), safe = where(is_zero, 1, x), rest = prod(safe, plan.dims, true);
  const Tensor zeros_seen = sum(cast(is_zero, x.dtype()), plan.dims, true);
  const Tensor others = where(is_zero, where(eq(zeros_seen, 1), rest, 0.0), where(eq(zeros_seen, 0), rest / safe, 0.0));
  return reshape(call.grad(), plan.kept) * others;
}

Tensor extreme_gradient(const Backward& call, const Plan& plan, T x, T y) {
  const Tensor is_chosen = eq(x, reshape(y, plan.kept)), g = detail::widened(reshape(call.grad(), plan.kept));
  // The count of equal elements may exceed f16.
  return where(is_chosen, cast(g / sum(cast(is_chosen, g.dtype()), plan.dims, true), x.dtype()), 0);
}

Tensor logsumexp_gradient(const Backward& call, const Plan& plan, T x, T y) {
  // A total of 16 bits is too imprecise: its rounding would be the relative error of every exponential.
  const Tensor wide = detail::widened(x);
  const Tensor total = detail::is_narrow(y.dtype()) ? logsumexp(wide, plan.dims, true) : reshape(y, plan.kept);
  // exp(-inf - 0) = 0 is the gradient where a whole slice is -inf; exp(-inf + inf) would be NaN.
  const Tensor finite = where(eq(total, -std::numeric_limits<double>::infinity()), 0.0, total);
  return cast(exp(wide - finite) * detail::widened(reshape(call.grad(), plan.kept)), x.dtype());
}

struct Truth {
  Op op;
  ReduceFunction f;
  Plan plan;

  Result<Tensor> forward(T x) const { return {apply(f, x, plan, DType::boolean)}; }
};

struct ArgExtreme {
  Op op;
  bool largest;
  int dim;
  Plan plan;

  Result<Tensor> forward(T x) const {
    const Tensor y = empty(plan.result, DType::i64, x.device());
    launch(x.device(), kernels::ArgReduce{largest, x, plan.view(y), dim});
    return {y};
  }
};

struct CumulativeSum {
  static constexpr Op op{.name = "cumsum", .autocast = CastTo::f32, .tangent = Tangent::linear};
  int dim;
  bool reverse;

  Result<Tensor> forward(T x) const {
    const Tensor y = empty(x.shape(), summed_dtype(x), x.device());
    launch(x.device(), kernels::Cumulative{kernels::CumulativeFunction::sum, x, y, dim, reverse});
    return {y};
  }
  Tensors backward(const Backward& call) const { return {tern::call(CumulativeSum{dim, !reverse}, call.grad())}; }
};

struct CumulativeMax {
  static constexpr Op op{.name = "cummax", .tangent = Tangent::linear};
  int dim;

  struct Kept {
    Tensor x, y;
  };
  static Tensor running(T x, int dim) {
    const Tensor y = empty_like(x);
    launch(x.device(), kernels::Cumulative{kernels::CumulativeFunction::max, x, y, dim, false});
    return y;
  }
  /// For each element the last one so far that is the maximum: (i64).
  static Tensor places(const Kept& kept, int dim) {
    const NoGrad unrecorded;
    const auto& [x, y] = kept;
    Shape shape;
    for (int d = 0; d < x.dims(); ++d) shape.push_back(d == dim ? x.size(d) : 1);
    const Tensor own = reshape(arange(x.size(dim), DType::i64, x.device()), shape);
    return running(where(logical_or(eq(x, y), ne(x, x)), own, 0.0), dim);
  }
  Result<Tensor, Kept> forward(T x) const {
    const Tensor y = running(x, dim);
    return {y, {x, y}};
  }
  Tensors backward(const Backward& call, const Kept& kept) const {
    const Tensor g = call.grad();
    return {scatter_add(zeros(g.shape(), g.dtype(), g.device()), dim, places(kept, dim), g)};
  }
  Tensors tangents(const Tensors& t, const Kept& kept) const { return {gather(t[0], dim, places(kept, dim))}; }
};

Tensor extreme(const char* op, ReduceFunction f, T x, const Dims& dims, bool keepdim) {
  return call(Reduction{{op}, f, choosing(op, x, dims, keepdim, ": any and all take bool"), extreme_gradient}, x);
}
Tensor arg_extreme(const char* op, bool largest, T x, int dim, bool keepdim) {
  dim = normalize_dim(dim, x.dims(), op);
  return call(ArgExtreme{{op}, largest, dim, choosing(op, x, {dim}, keepdim)}, x);
}

Tensor scaled_sum(const Op& op, T x, const Plan& p, double divisor) {
  return call(ScaledSum{op, p, divisor > 0 ? 1 / divisor : std::numeric_limits<double>::quiet_NaN()}, x);
}

}  // namespace

Tensor sum(T x, const Dims& dims, bool keepdim) {
  const Plan p = plan("sum", x, dims, keepdim);
  return call(ScaledSum{{.name = "sum", .autocast = CastTo::f32, .tangent = Tangent::linear}, p, 1}, x);
}
Tensor mean(T x, const Dims& dims, bool keepdim) {
  const Plan p = plan("mean", x, dims, keepdim);
  return scaled_sum({.name = "mean", .takes = Takes::floating, .tangent = Tangent::linear}, x, p, static_cast<double>(p.count));
}

Tensor detail::centered(T x, const Dims& dims) {
  const Tensor deviation = x - mean(x, dims, true), rest = mean(deviation, dims, true);
  return context().grad ? deviation - rest : sub_(deviation, rest);
}

Tensor var(T x, const Dims& dims, std::int64_t correction, bool keepdim) {
  detail::check_floating("var", x);
  const Plan p = plan("var", x, dims, keepdim);
  const Tensor squares = square(detail::centered(detail::widened(x), dims));
  return cast(scaled_sum({.name = "var", .tangent = Tangent::linear}, squares, p, static_cast<double>(p.count - correction)), x.dtype());
}

Tensor prod(T x, const Dims& dims, bool keepdim) {
  const Plan p = plan("prod", x, dims, keepdim);
  return call(Reduction{{.name = "prod", .autocast = CastTo::f32}, ReduceFunction::prod, p, prod_gradient}, x);
}
Tensor max(T x, const Dims& dims, bool keepdim) { return extreme("max", ReduceFunction::max, x, dims, keepdim); }
Tensor min(T x, const Dims& dims, bool keepdim) { return extreme("min", ReduceFunction::min, x, dims, keepdim); }
Tensor logsumexp(T x, const Dims& dims, bool keepdim) {
  const Plan p = plan("logsumexp", x, dims, keepdim);
  return call(Reduction{{"logsumexp", CastTo::f32, Takes::floating}, ReduceFunction::logsumexp, p, logsumexp_gradient}, x);
}
Tensor any(T x, const Dims& dims, bool keepdim) { return call(Truth{{"any"}, ReduceFunction::any, plan("any", x, dims, keepdim)}, x); }
Tensor all(T x, const Dims& dims, bool keepdim) { return call(Truth{{"all"}, ReduceFunction::all, plan("all", x, dims, keepdim)}, x); }
Tensor argmax(T x, int dim, bool keepdim) { return arg_extreme("argmax", true, x, dim, keepdim); }
Tensor argmin(T x, int dim, bool keepdim) { return arg_extreme("argmin", false, x, dim, keepdim); }
Tensor cummax(T x, int dim) {
  if (x.dtype() == DType::boolean) fail("cummax", "expected a numeric dtype but got bool");
  return call(CumulativeMax{normalize_dim(dim, x.dims(), "cummax")}, x);
}
Tensor cumsum(T x, int dim) { return call(CumulativeSum{normalize_dim(dim, x.dims(), "cumsum"), false}, x); }

// Compositions.

/// Square root of x >= 0, with the derivative 0 at 0: an infinite one times 0 would be NaN.
static Tensor safe_sqrt(const Tensor& x) {
  const Tensor is_zero = eq(x, 0);
  return where(is_zero, 0.0, sqrt(where(is_zero, 1.0, x)));
}

Tensor stddev(const Tensor& x, const Dims& dims, std::int64_t correction, bool keepdim) {
  detail::check_floating("stddev", x);
  return cast(safe_sqrt(var(detail::widened(x), dims, correction, keepdim)), x.dtype());
}

Tensor norm(const Tensor& x_, const Dims& dims, double p, bool keepdim) {
  detail::check_floating("norm", x_);
  if (std::isnan(p)) fail("norm", "expected a number p but got NaN");
  const Tensor x = detail::widened(x_);
  Tensor y;
  if (p == 2) {
    y = safe_sqrt(sum(square(x), dims, keepdim));
  } else if (p == 0) {
    y = sum(cast(ne(x, 0), x.dtype()), dims, keepdim);
  } else if (p == 1) {
    y = sum(abs(x), dims, keepdim);
  } else if (std::isinf(p)) {
    y = p > 0 ? max(abs(x), dims, keepdim) : min(abs(x), dims, keepdim);
  } else {
    // Zero elements and zero sums are masked: the derivatives of both powers may be infinite there, and the gradient is 0.
    const Tensor size = abs(x), is_zero = eq(size, 0);
    const Tensor total = sum(where(is_zero, p > 0 ? 0.0 : INFINITY, pow(where(is_zero, 1.0, size), p)), dims, keepdim);
    const Tensor is_none = eq(total, 0);
    y = p > 0 ? where(is_none, 0.0, pow(where(is_none, 1.0, total), 1 / p)) : pow(total, 1 / p);
  }
  return cast(y, x_.dtype());
}

Tensor median(const Tensor& x, int dim, bool keepdim) {
  dim = normalize_dim(dim, x.dims(), "median");
  if (x.dtype() == DType::boolean) fail("median", "expected a numeric dtype but got bool");
  const std::int64_t size = x.shape()[dim];
  if (size == 0) fail("median", fmt::format("expected at least one element to choose from but got shape {}", to_string(x.shape())));
  const Tensor sorted = sort(x, dim).values;
  Tensor y = slice(sorted, dim, (size - 1) / 2, (size - 1) / 2 + 1);
  if (is_floating(x.dtype())) {
    // NaN counts as largest: if there is one, it is the last.
    const Tensor last = slice(sorted, dim, size - 1);
    y = where(ne(last, last), last, y);
  }
  return keepdim ? y : squeeze(y, dim);
}

Tensor cumprod(const Tensor& x_, int dim) {
  dim = normalize_dim(dim, x_.dims(), "cumprod");
  const Tensor x = is_floating(x_.dtype()) ? x_ : cast(x_, DType::i64);
  // Doubling scan: each pass multiplies by the product of `span` elements before, so that each result covers twice as many (Hillis &
  // Steele, 1986).
  Tensor y = detail::widened(x);
  const std::int64_t size = x.shape()[dim];
  for (std::int64_t span = 1; span < size; span *= 2) {
    const Tensor before = slice(y, dim, 0, size - span), head = slice(y, dim, 0, span), rest = slice(y, dim, span);
    y = cat({head, rest * before}, dim);
  }
  return cast(y, x.dtype());
}

Unique unique(const Tensor& x) {
  const NoGrad unrecorded;
  const std::int64_t n = x.numel();
  const Tensor flat = reshape(x, {n});
  if (n == 0) return {flat, zeros(x.shape(), DType::i64, x.device()), zeros({0}, DType::i64, x.device())};
  const Sorted sorted = sort(x.dtype() == DType::boolean ? cast(flat, DType::u8) : flat);
  // True for the first of equal values.
  const Tensor is_new = cat({full({1}, 1, DType::boolean, x.device()), ne(slice(sorted.values, 0, 1), slice(sorted.values, 0, 0, n - 1))});
  const Tensor inverse = empty({n}, DType::i64, x.device());
  index_copy_(inverse, 0, sorted.indices, cumsum(is_new, 0) - 1);
  const Tensor values = cast(masked_select(sorted.values, is_new), x.dtype());
  return {values, reshape(inverse, x.shape()), bincount(inverse, {}, values.numel())};
}

Tensor bincount(const Tensor& x_, const Tensor& weights, std::int64_t least) {
  check_one_device("bincount", {&x_, &weights});
  const Tensor x = x_.dtype() == DType::i32 || x_.dtype() == DType::u8 ? cast(x_, DType::i64) : x_;
  if (x.dims() != 1 || x.dtype() != DType::i64)
    fail("bincount", fmt::format("expected x (N) of i64 but got {} {}", name(x.dtype()), to_string(x.shape())));
  if (weights.defined() && (weights.shape() != x.shape() || !is_floating(weights.dtype())))
    fail("bincount", fmt::format("expected floating weights {} but got {} {}", to_string(x.shape()), name(weights.dtype()),
                                 to_string(weights.shape())));
  if (least < 0) fail("bincount", fmt::format("expected a least size >= 0 but got {}", least));
  std::int64_t size = least;
  if (x.numel() > 0) {
    const auto smallest = min(x).item<std::int64_t>();
    if (smallest < 0) fail("bincount", fmt::format("expected numbers >= 0 but got {}", smallest));
    size = std::max(size, checked_add("bincount", max(x).item<std::int64_t>(), 1));
  }
  const Tensor source = weights.defined() ? weights : broadcast_to(ones({1}, DType::i64, x.device()), x.shape());
  return index_add(zeros({size}, source.dtype(), x.device()), 0, x, source);
}

/// Checks weights on the CPU, where that needs no wait: each row (..., V) has `least` or more positive weights.
static void check_rates(const Tensor& rates, std::int64_t least) {
  if (rates.device() != cpu || rates.numel() == 0) return;
  if (const Tensor is_rate = logical_and(ge(rates, 0), isfinite(rates)); !all(is_rate).item<bool>())
    fail("multinomial", fmt::format("expected finite weights >= 0 but got {}",
                                    cast(masked_select(rates, logical_not(is_rate))[0], DType::f64).item<double>()));
  const auto drawable = min(sum(ne(rates, 0), {-1})).item<std::int64_t>();
  if (drawable < std::max<std::int64_t>(least, 1))
    fail("multinomial",
         fmt::format("expected {} or more weights beyond 0 in each row but got {}", std::max<std::int64_t>(least, 1), drawable));
}

/// Uniform numbers in (0, 1), f64: multiples of 2^-53.
static Tensor uniform_of_53_bits(const Shape& shape, Device device) {
  return cast(randint(1, std::int64_t(1) << 53, shape, DType::i64, device), DType::f64) * 0x1p-53;
}

/// Inversion: a draw is the first class at which the running sum of weights exceeds u times the total. Weights are whole numbers here, of
/// which a row has 2^52: their sums are exact in any order, so that a class of weight 0 is never drawn, and both devices agree.
static Tensor drawn_with_replacement(const Tensor& weights, std::int64_t count) {
  const std::int64_t classes = weights.size(-1);
  Tensor shares = cast(weights, DType::f64) / cast(max(weights, {-1}, true), DType::f64);  // no sum of them overflows
  mul_(shares, 0x1p52 / sum(shares, {-1}, true));
  const Tensor running = cumsum(cast(std::exchange(shares, {}), DType::i64), -1);
  const Tensor total = cast(slice(running, -1, classes - 1), DType::f64);
  Shape shape = weights.shape();
  shape[shape.size() - 1] = count;
  const Tensor at = cast(uniform_of_53_bits(shape, weights.device()) * total, DType::i64);
  // Bisection between the first and the last class that are still possible.
  Tensor first = zeros(shape, DType::i64, weights.device()), last = full_like(first, static_cast<double>(classes - 1));
  for (std::int64_t possible = classes; possible > 1; possible = ceil_div(possible, 2)) {
    const Tensor middle = floor_divide(first + last, 2), is_later = le(gather(running, -1, middle), at);
    first = where(is_later, middle + 1, first);
    last = where(is_later, last, middle);
  }
  return minimum(first, last);  // last is a class also if the weights are invalid
}

/// Exponential race: of exponential times with rates w, the smallest is that of i with probability w[i] / sum(w), and the next ones are
/// draws from the rest. The times' logarithms are compared, with 53 bits of u, of which no two are equal for millions of classes.
static Tensor drawn_without_replacement(const Tensor& weights, std::int64_t count) {
  const Tensor times = neg(log(uniform_of_53_bits(weights.shape(), weights.device())));
  return topk(log(cast(weights, DType::f64)) - log(times), count, -1).indices;
}

Tensor multinomial(const Tensor& weights, std::int64_t count, bool replacement) {
  detail::check_floating("multinomial", weights);
  if (weights.dims() < 1 || weights.size(-1) < 1)
    fail("multinomial", fmt::format("expected weights (..., V) with V >= 1 but got {}", to_string(weights.shape())));
  if (count < 0 || (!replacement && count > weights.size(-1)))
    fail("multinomial", fmt::format("expected a count in [0, {}] but got {}", weights.size(-1), count));
  const NoGrad unrecorded;
  check_rates(weights, replacement ? 1 : count);
  return replacement ? drawn_with_replacement(weights, count) : drawn_without_replacement(weights, count);
}

Tensor Tensor::sum(const Dims& dims, bool keepdim) const { return tern::sum(*this, dims, keepdim); }
Tensor Tensor::mean(const Dims& dims, bool keepdim) const { return tern::mean(*this, dims, keepdim); }

}  // namespace tern
