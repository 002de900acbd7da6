#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "autodiff/node.h"
#include "ops/copy.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/join.h"
#include "ops/op.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "tensor/ceil_div.h"
#include "tensor/checked.h"

namespace tern {

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

}  // namespace tern
