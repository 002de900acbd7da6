#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <utility>

#include "ops/factory.h"
#include "ops/kernels/pointwise.h"
#include "ops/op.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"

// Functions of one tensor, each with its derivative, and compositions of them.

namespace tern {

using kernels::UnaryFunction;
using T = const Tensor&;

namespace {

enum class Keep { nothing, input, output };

/// A unary op. Backward is one kernel; if it is recorded itself, for a higher order, it is the derivative in ops.
struct Elementwise {
  Op op;
  UnaryFunction f;
  Keep keep;                               ///< what the derivative is a function of
  std::function<Tensor(T, T)> derivative;  ///< the gradient of x from that of y, and what is kept

  struct Kept {
    Tensor value;
  };
  Result<Tensor, Kept> forward(T x) const {
    const bool takes_integers = kernels::takes_integers(f);
    if (!is_floating(x.dtype()) && (!takes_integers || x.dtype() == DType::boolean))
      fail(op.name, fmt::format("expected {} dtype but got {}", takes_integers ? "a numeric" : "a floating", name(x.dtype())));
    const Tensor y = empty_like(x);
    launch(x.device(), kernels::Unary{f, x, y});
    return {y, {keep == Keep::input ? x : keep == Keep::output ? y : Tensor()}};
  }
  Tensors backward(const Backward& call, const Kept& kept) const {
    T g = call.grad();
    if (context().grad || keep == Keep::nothing) return {derivative(g, kept.value)};
    const Tensor dx = empty_like(g);
    launch(g.device(), kernels::UnaryGrad{f, g, kept.value, kept.value, dx});
    return {dx};
  }
};

Tensor unary(Op op, const UnaryFunction& f, T x, Keep keep, std::function<Tensor(T, T)> derivative) {
  op.tangent = Tangent::symmetric;
  return call(Elementwise{op, f, keep, std::move(derivative)}, x);
}

Tensor zero(T g, T) { return zeros_like(g); }

/// Rounding to whole numbers; integers are returned as they are.
Tensor rounded(const char* op, const UnaryFunction& f, T x) {
  return is_floating(x.dtype()) || x.dtype() == DType::boolean ? unary({op}, f, x, Keep::nothing, zero) : clone(x);
}

}  // namespace

Tensor neg(T x) {
  return unary({"neg"}, functors::Neg{}, x, Keep::nothing, [](T g, T) { return neg(g); });
}
Tensor abs(T x) {
  return unary({"abs"}, functors::Abs{}, x, Keep::input, [](T g, T x_) { return g * sign(x_); });
}
Tensor sign(T x) { return unary({"sign"}, functors::Sign{}, x, Keep::nothing, zero); }
Tensor exp(T x) {
  return unary({"exp", CastTo::f32}, functors::Exp{}, x, Keep::output, [](T g, T y) { return g * y; });
}
Tensor log(T x) {
  return unary({"log", CastTo::f32}, functors::Log{}, x, Keep::input, [](T g, T x_) { return g / x_; });
}
Tensor sqrt(T x) {
  return unary({"sqrt"}, functors::Sqrt{}, x, Keep::output, [](T g, T y) { return g * 0.5 / y; });
}
Tensor rsqrt(T x) {
  return unary({"rsqrt", CastTo::f32}, functors::Rsqrt{}, x, Keep::output, [](T g, T y) { return g * (y * y * y * -0.5); });
}
Tensor reciprocal(T x) {
  return unary({"reciprocal", CastTo::f32}, functors::Reciprocal{}, x, Keep::output, [](T g, T y) { return neg(g * y * y); });
}
Tensor square(T x) {
  return unary({"square"}, functors::Square{}, x, Keep::input, [](T g, T x_) { return g * (x_ * 2); });
}
Tensor sin(T x) {
  return unary({"sin"}, functors::Sin{}, x, Keep::input, [](T g, T x_) { return g * cos(x_); });
}
Tensor cos(T x) {
  return unary({"cos"}, functors::Cos{}, x, Keep::input, [](T g, T x_) { return neg(g * sin(x_)); });
}
Tensor tanh(T x) {
  return unary({"tanh"}, functors::Tanh{}, x, Keep::output, [](T g, T y) { return g * (1 - square(y)); });
}
Tensor erf(T x) {
  return unary({"erf"}, functors::Erf{}, x, Keep::input,
               [](T g, T x_) { return g * (exp(neg(square(x_))) * (2 * std::numbers::inv_sqrtpi)); });
}
Tensor sigmoid(T x) {
  return unary({"sigmoid"}, functors::Sigmoid{}, x, Keep::output, [](T g, T y) { return g * (y * (1 - y)); });
}
Tensor relu(T x) {
  return unary({"relu"}, functors::Relu{}, x, Keep::output, [](T g, T y) { return where(le(y, 0), 0, g); });
}
Tensor gelu(T x) {
  return unary({"gelu"}, functors::Gelu{}, x, Keep::input, [](T g, T x_) {
    const Tensor cdf = 0.5 * (1 + erf(x_ * (1 / std::numbers::sqrt2)));
    return g * (cdf + x_ * exp(square(x_) * -0.5) * (std::numbers::inv_sqrtpi / std::numbers::sqrt2));
  });
}
Tensor gelu_tanh(T x) {
  return unary({"gelu_tanh"}, functors::GeluTanh{}, x, Keep::input, [](T g, T kept) {
    const double scale = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
    const Tensor x_ = detail::widened(kept), t = tanh(scale * (x_ + 0.044715 * (square(x_) * x_)));
    return g * cast(0.5 * (1 + t) + 0.5 * x_ * (1 - square(t)) * (scale * (1 + 3 * 0.044715 * square(x_))), g.dtype());
  });
}
Tensor silu(T x) {
  return unary({"silu"}, functors::Silu{}, x, Keep::input, [](T g, T x_) {
    const Tensor s = sigmoid(x_);
    return g * (s * (1 + x_ * (1 - s)));
  });
}
Tensor hardswish(T x) {
  return unary({"hardswish"}, functors::Hardswish{}, x, Keep::input,
               [](T g, T x_) { return g * where(le(x_, -3), 0, where(ge(x_, 3), 1, x_ * (1.0 / 3) + 0.5)); });
}
Tensor softplus(T x, double beta) {
  if (!(beta > 0) || !std::isfinite(beta)) fail("softplus", fmt::format("expected a finite beta > 0 but got {}", beta));
  return unary({"softplus"}, functors::Softplus{beta}, x, Keep::input, [beta](T g, T x_) { return g * sigmoid(x_ * beta); });
}
Tensor log1p(T x) {
  return unary({"log1p", CastTo::f32}, functors::Log1p{}, x, Keep::input, [](T g, T x_) { return g / (1 + x_); });
}
Tensor expm1(T x) {
  return unary({"expm1", CastTo::f32}, functors::Expm1{}, x, Keep::output, [](T g, T y) { return g * (y + 1); });
}
Tensor floor(T x) { return rounded("floor", functors::Floor{}, x); }
Tensor ceil(T x) { return rounded("ceil", functors::Ceil{}, x); }
Tensor round(T x) { return rounded("round", functors::Round{}, x); }
/// Smallest and largest number of an integer dtype.
static std::pair<std::int64_t, std::int64_t> range_of(DType dtype) {
  const auto range = []<class N>(N) {
    return std::pair<std::int64_t, std::int64_t>(std::numeric_limits<N>::min(), std::numeric_limits<N>::max());
  };
  return dtype == DType::u8 ? range(std::uint8_t()) : dtype == DType::i32 ? range(std::int32_t()) : range(std::int64_t());
}
Tensor clamp(T x, Bound low, Bound high) {
  functors::Clamp f{low.value, high.value};
  if (!(f.low <= f.high) || low.whole > high.whole) fail("clamp", fmt::format("expected low <= high but got {} and {}", f.low, f.high));
  if (!is_floating(x.dtype()) && x.dtype() != DType::boolean) {
    // A bound that is not an integer is not of x's dtype: the result is f32, as for every such number.
    const auto is_between = [](double bound) { return std::isfinite(bound) && bound != std::floor(bound); };
    if (is_between(f.low) || is_between(f.high)) return clamp(cast(x, DType::f32), low, high);
    const auto [smallest, largest] = range_of(x.dtype());
    if (low.whole > largest || high.whole < smallest)
      fail("clamp", fmt::format("expected bounds between which {} has a number but got {} and {}", name(x.dtype()), f.low, f.high));
    f.whole_low = std::max(low.whole, smallest), f.whole_high = std::min(high.whole, largest);
  }
  return unary({"clamp"}, f, x, Keep::input, [f](T g, T x_) { return where(logical_and(ge(x_, f.low), le(x_, f.high)), g, 0); });
}

// Compositions.

static constexpr double infinity = std::numeric_limits<double>::infinity();

Tensor tan(const Tensor& x) {
  detail::check_floating("tan", x);
  // In 16 bits the quotient of a rounded sine and a rounded cosine would have both rounding errors.
  if (size_of(x.dtype()) == 2) return cast(tan(cast(x, DType::f32)), x.dtype());
  return sin(x) / cos(x);
}

Tensor leaky_relu(const Tensor& x, double slope) {
  detail::check_floating("leaky_relu", x);
  return where(gt(x, 0), x, x * slope);
}

Tensor elu(const Tensor& x, double alpha) {
  detail::check_floating("elu", x);
  // The exponential of a large x is not selected, but it would overflow, and its gradient would be 0 times infinity.
  return where(gt(x, 0), x, expm1(clamp(x, -infinity, 0)) * alpha);
}

Tensor isnan(const Tensor& x) { return ne(x, x); }
Tensor isinf(const Tensor& x) { return is_floating(x.dtype()) ? eq(abs(x), infinity) : full(x.shape(), 0, DType::boolean, x.device()); }
Tensor isfinite(const Tensor& x) { return is_floating(x.dtype()) ? lt(abs(x), infinity) : full(x.shape(), 1, DType::boolean, x.device()); }

Tensor isclose(const Tensor& a_, const Tensor& b_, double relative, double absolute, bool equal_nan) {
  check_one_device("isclose", {&a_, &b_});
  if (!(relative >= 0) || !(absolute >= 0)) fail("isclose", fmt::format("expected tolerances >= 0 but got {} and {}", relative, absolute));
  broadcast_shapes(a_.shape(), b_.shape(), "isclose");
  const NoGrad unrecorded;
  const Tensor a = cast(a_, DType::f64), b = cast(b_, DType::f64);
  // Equal elements are close, also infinities, whose difference is NaN; a finite number is never close to an infinity.
  const Tensor is_near = logical_and(le(abs(a - b), abs(b) * relative + absolute), isfinite(b));
  const Tensor close = logical_or(eq(a, b), is_near);
  return equal_nan ? logical_or(close, logical_and(isnan(a), isnan(b))) : close;
}

bool allclose(const Tensor& a, const Tensor& b, double relative, double absolute, bool equal_nan) {
  check_one_device("allclose", {&a, &b});
  return all(isclose(a, b, relative, absolute, equal_nan)).item<bool>();
}

}  // namespace tern
