#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

#include "autodiff/node.h"
#include "ops/copy.h"
#include "ops/detail/autocast.h"
#include "ops/factory.h"
#include "ops/kernels/pointwise.h"
#include "ops/op.h"
#include "ops/pointwise.h"

// Functions of one tensor, each with its derivative.

namespace tern {

using kernels::Unary;

namespace {

enum class Keep { nothing, input, output };

/// A unary op. Backward is one kernel; if it is recorded itself, for a higher order, it is g * derivative(kept), in ops. `kept` is the
/// input or the output, whichever the derivative is a function of.
template <class F>
Tensor unary(const char* op, const Unary& f, const Tensor& x_, Keep keep, F derivative) {
  const Tensor x = detail::autocast(op, x_);
  if (!is_floating(x.dtype()) && (!kernels::takes_integers(f) || x.dtype() == DType::boolean))
    fail(op, fmt::format("expected {} dtype but got {}", kernels::takes_integers(f) ? "a numeric" : "a floating", name(x.dtype())));
  Tensor y = empty_like(x);
  on(x.device(), [&](auto dev) { kernels::unary(dev, f, x.view(), y.view()); });
  const auto backward = [=](const Backward& call) -> Tensors {
    const Tensor& g = call.grad();
    const Tensor kept = keep == Keep::nothing ? Tensor() : call.saved(0);
    if (context().grad || keep == Keep::nothing) return {derivative(g, kept)};
    Tensor dx = empty_like(g);
    on(g.device(), [&](auto dev) { kernels::unary_grad(dev, f, g.view(), kept.view(), kept.view(), dx.view()); });
    return {dx};
  };
  if (keep == Keep::nothing) return record(op, y, {x}, {}, Symmetric{}, backward);
  return record(op, y, {x}, {keep == Keep::input ? x : y}, Symmetric{}, backward);
}

/// Rounding to whole numbers; integers are returned as they are.
Tensor rounded(const char* op, const Unary& f, const Tensor& x) {
  if (!is_floating(x.dtype()) && x.dtype() != DType::boolean) return clone(x);
  return unary(op, f, x, Keep::nothing, [](const Tensor& g, const Tensor&) { return zeros_like(g); });
}

}  // namespace

using T = const Tensor&;

Tensor neg(T x) {
  return unary("neg", functors::Neg{}, x, Keep::nothing, [](T g, T) { return neg(g); });
}
Tensor abs(T x) {
  return unary("abs", functors::Abs{}, x, Keep::input, [](T g, T x_) { return g * sign(x_); });
}
Tensor sign(T x) {
  return unary("sign", functors::Sign{}, x, Keep::nothing, [](T g, T) { return zeros_like(g); });
}
Tensor exp(T x) {
  return unary("exp", functors::Exp{}, x, Keep::output, [](T g, T y) { return g * y; });
}
Tensor log(T x) {
  return unary("log", functors::Log{}, x, Keep::input, [](T g, T x_) { return g / x_; });
}
Tensor sqrt(T x) {
  return unary("sqrt", functors::Sqrt{}, x, Keep::output, [](T g, T y) { return g * 0.5 / y; });
}
Tensor rsqrt(T x) {
  return unary("rsqrt", functors::Rsqrt{}, x, Keep::output, [](T g, T y) { return g * (y * y * y * -0.5); });
}
Tensor reciprocal(T x) {
  return unary("reciprocal", functors::Reciprocal{}, x, Keep::output, [](T g, T y) { return neg(g * y * y); });
}
Tensor square(T x) {
  return unary("square", functors::Square{}, x, Keep::input, [](T g, T x_) { return g * (x_ * 2); });
}
Tensor sin(T x) {
  return unary("sin", functors::Sin{}, x, Keep::input, [](T g, T x_) { return g * cos(x_); });
}
Tensor cos(T x) {
  return unary("cos", functors::Cos{}, x, Keep::input, [](T g, T x_) { return neg(g * sin(x_)); });
}
Tensor tanh(T x) {
  return unary("tanh", functors::Tanh{}, x, Keep::output, [](T g, T y) { return g * (1 - square(y)); });
}
Tensor erf(T x) {
  return unary("erf", functors::Erf{}, x, Keep::input,
               [](T g, T x_) { return g * (exp(neg(square(x_))) * (2 * std::numbers::inv_sqrtpi)); });
}
Tensor sigmoid(T x) {
  return unary("sigmoid", functors::Sigmoid{}, x, Keep::output, [](T g, T y) { return g * (y * (1 - y)); });
}
Tensor relu(T x) {
  return unary("relu", functors::Relu{}, x, Keep::output, [](T g, T y) { return where(le(y, 0), 0, g); });
}
Tensor gelu(T x) {
  return unary("gelu", functors::Gelu{}, x, Keep::input, [](T g, T x_) {
    const Tensor cdf = 0.5 * (1 + erf(x_ * (1 / std::numbers::sqrt2)));
    return g * (cdf + x_ * exp(square(x_) * -0.5) * (std::numbers::inv_sqrtpi / std::numbers::sqrt2));
  });
}
Tensor gelu_tanh(T x) {
  return unary("gelu_tanh", functors::GeluTanh{}, x, Keep::input, [](T g, T kept) {
    const double scale = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
    const Tensor x_ = detail::widened(kept), t = tanh(scale * (x_ + 0.044715 * (square(x_) * x_)));
    return g * cast(0.5 * (1 + t) + 0.5 * x_ * (1 - square(t)) * (scale * (1 + 3 * 0.044715 * square(x_))), g.dtype());
  });
}
Tensor silu(T x) {
  return unary("silu", functors::Silu{}, x, Keep::input, [](T g, T x_) {
    const Tensor s = sigmoid(x_);
    return g * (s * (1 + x_ * (1 - s)));
  });
}
Tensor softplus(T x, double beta) {
  if (!(beta > 0) || !std::isfinite(beta)) fail("softplus", fmt::format("expected a finite beta > 0 but got {}", beta));
  return unary("softplus", functors::Softplus{beta}, x, Keep::input, [beta](T g, T x_) { return g * sigmoid(x_ * beta); });
}
Tensor log1p(T x) {
  return unary("log1p", functors::Log1p{}, x, Keep::input, [](T g, T x_) { return g / (1 + x_); });
}
Tensor expm1(T x) {
  return unary("expm1", functors::Expm1{}, x, Keep::output, [](T g, T y) { return g * (y + 1); });
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
  return unary("clamp", f, x, Keep::input, [f](T g, T x_) { return where(logical_and(ge(x_, f.low), le(x_, f.high)), g, 0); });
}

}  // namespace tern
