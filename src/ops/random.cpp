#include "ops/random.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "ops/factory.h"
#include "ops/kernels/random.h"
#include "ops/op.h"

namespace tern {

static double largest_finite(DType dtype) {
  switch (dtype) {
    case DType::f16: return 65504;
    case DType::bf16: return 0x1.fep127;
    case DType::f64: return std::numeric_limits<double>::max();
    default: return std::numeric_limits<float>::max();
  }
}

static void check_bounds(const char* op, DType dtype, double low, double high) {
  if (!(low <= high) || !std::isfinite(low) || !std::isfinite(high))
    fail(op, fmt::format("expected finite bounds low <= high but got {} and {}", low, high));
  const double most = largest_finite(dtype), widest = largest_finite(dtype == DType::f64 ? DType::f64 : DType::f32);
  if (std::max(-low, high) > most || high - low > widest)
    fail(op, fmt::format("expected bounds and a width that are finite in {} but got {} and {}", name(dtype), low, high));
}
static void check_deviation(const char* op, double mean, double deviation) {
  if (!(deviation >= 0) || !std::isfinite(mean) || !std::isfinite(deviation))
    fail(op, fmt::format("expected a finite mean and a deviation >= 0 but got {} and {}", mean, deviation));
}

/// Fills y by the kernel kernel_of(state), which draws `count` words.
template <class F>
static Tensor drawn(const char* op, const Tensor& y, std::int64_t count, F kernel_of) {
  launch(y.device(), kernel_of(context().generator.reserve(count)), op);
  return y;
}
static Tensor draw_uniform(const Tensor& y, double low, double high) {
  return drawn("uniform", y, y.numel(), [&](PhiloxState state) { return kernels::Uniform{y, low, high, state}; });
}
static Tensor draw_normal(const Tensor& y, double mean, double deviation) {
  return drawn("normal", y, y.numel(), [&](PhiloxState state) { return kernels::Normal{y, mean, deviation, state}; });
}

Tensor rand(const Shape& shape, double low, double high, DType dtype, Device device) {
  detail::check_floating("rand", dtype);
  check_bounds("rand", dtype, low, high);
  return draw_uniform(empty(shape, dtype, device), low, high);
}

Tensor randn(const Shape& shape, double mean, double deviation, DType dtype, Device device) {
  detail::check_floating("randn", dtype);
  check_deviation("randn", mean, deviation);
  return draw_normal(empty(shape, dtype, device), mean, deviation);
}

Tensor bernoulli(const Shape& shape, double probability, DType dtype, Device device) {
  if (!(probability >= 0 && probability <= 1)) fail("bernoulli", fmt::format("expected a probability in [0, 1] but got {}", probability));
  const Tensor y = empty(shape, dtype, device);
  return drawn("bernoulli", y, y.numel(), [&](PhiloxState state) { return kernels::Bernoulli{y, probability, state}; });
}

Tensor randint(std::int64_t low, std::int64_t high, const Shape& shape, DType dtype, Device device) {
  constexpr const char* op = "randint";
  if (is_floating(dtype) || dtype == DType::boolean) fail(op, fmt::format("expected an integer dtype but got {}", name(dtype)));
  if (low >= high) fail(op, fmt::format("expected bounds low < high but got {} and {}", low, high));
  const std::int64_t least = dtype == DType::u8 ? 0 : dtype == DType::i32 ? INT32_MIN : INT64_MIN;
  const std::int64_t most = dtype == DType::u8 ? UINT8_MAX : dtype == DType::i32 ? INT32_MAX : INT64_MAX;
  if (low < least || high - 1 > most) fail(op, fmt::format("expected numbers that {} holds but got {} to {}", name(dtype), low, high - 1));
  const Tensor y = empty(shape, dtype, device);
  const std::uint64_t span = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low);
  return drawn(op, y, y.numel(), [&](PhiloxState state) { return kernels::Randint{y, low, span, state}; });
}

Tensor randperm(std::int64_t n, Device device) {
  if (n < 0) fail("randperm", fmt::format("expected n >= 0 but got {}", n));
  const Tensor y = empty({n}, DType::i64, device);
  // A key takes two words of a block, so each element uses a whole block.
  return drawn("permutation", y, checked_mul("randperm", 4, n), [&](PhiloxState state) { return kernels::Permutation{y, state}; });
}

static void check_in_place(const char* op, const Tensor& x) {
  detail::check_floating(op, x.dtype());
  if (!x.is_contiguous()) fail(op, fmt::format("expected a contiguous tensor but got strides {}", to_string(x.strides())));
  begin_in_place(op, x);
}

Tensor uniform_(const Tensor& x, double low, double high) {
  check_in_place("uniform_", x);
  check_bounds("uniform_", x.dtype(), low, high);
  return draw_uniform(x, low, high);
}

Tensor normal_(const Tensor& x, double mean, double deviation) {
  check_deviation("normal_", mean, deviation);
  check_in_place("normal_", x);
  return draw_normal(x, mean, deviation);
}

namespace {

struct Dropout {
  static constexpr Op op{.name = "dropout", .tangent = Tangent::symmetric};
  double p;
  PhiloxState draws;

  Result<Tensor> forward(const Tensor& x) const {
    const Tensor source = contiguous(x), y = empty_like(source);
    launch(x.device(), kernels::Dropout{source, y, p, draws});
    return {y};
  }
  Tensors backward(const Backward& call) const { return {detail::dropout_at(call.grad(), p, draws)}; }
};

}  // namespace

Tensor detail::dropout_at(const Tensor& x, double p, PhiloxState draws) { return call(Dropout{p, draws}, x); }

Tensor dropout(const Tensor& x, double p, bool training) {
  detail::check_probability("dropout", p);
  detail::check_floating("dropout", x.dtype());
  if (!training || p == 0) return x;
  return detail::dropout_at(x, p, context().generator.reserve(x.numel()));
}

}  // namespace tern
