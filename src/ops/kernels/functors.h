#pragma once
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "ops/kernels/math.h"
#include "tensor/dtype.h"

namespace tern::functors {

/// Note [Functors]: a pointwise function is written once, for one element, and serves both devices. T is the type of the arithmetic:
/// float, double or an integer. A function's parameters are its functor's members.
///
/// A unary functor has `operator()`, the function; `grad(x, y)`, its derivative, given x and y = f(x), or `passes(x, y)` where the gradient
/// is passed on or not; and two traits:
///   integral        integers are valid operands too (a functor without it is compiled for floats alone);
///   transcendental  an element costs tens of instructions, so that a second thread on the CPU pays off sooner.
/// A binary functor has `operator()` and the trait transcendental; all take integers. exp, log and similar functions come from
/// ops/kernels/math.h, which has a form that vectorizes. All functions are listed in UnaryFunction, BinaryFunction and CompareFunction in
/// ops/kernels/pointwise.h.

/// Unsigned type in which integers are added, subtracted and multiplied: results beyond the range wrap, as on every processor, while C++
/// leaves overflow of signed types undefined. Types shorter than int are promoted to it, and cannot overflow there.
template <class T, bool = std::is_integral_v<T> && sizeof(T) >= sizeof(int)>
struct Wrapping {
  using type = T;
};
template <class T>
struct Wrapping<T, true> {
  using type = std::make_unsigned_t<T>;
};
template <class T>
using wrapping_t = typename Wrapping<T>::type;

struct Neg {
  static constexpr bool integral = true, transcendental = false;
  template <class T> TERN_HOST_DEVICE T operator()(T x) const {
    if constexpr (std::is_integral_v<T>) return T(wrapping_t<T>(0) - wrapping_t<T>(x));
    else return -x;
  }
  template <class T> TERN_HOST_DEVICE T grad(T, T) const { return T(-1); }
};
struct Abs {
  static constexpr bool integral = true, transcendental = false;
  template <class T> TERN_HOST_DEVICE T operator()(T x) const {
    if constexpr (std::is_integral_v<T>) return x < T(0) ? Neg{}(x) : x;
    else return std::fabs(x);  // also for -0, whose sign a comparison would keep
  }
  template <class T> TERN_HOST_DEVICE T grad(T x, T) const { return x > T(0) ? T(1) : x < T(0) ? T(-1) : x * T(0); }
};
struct Sign {
  static constexpr bool integral = true, transcendental = false;
  template <class T> TERN_HOST_DEVICE T operator()(T x) const {
    return x > T(0) ? T(1) : x < T(0) ? T(-1) : T(x * T(0) + T(0));
  }  // 0 of -0
  template <class T> TERN_HOST_DEVICE T grad(T, T) const { return T(0); }
};
struct Exp {
  static constexpr bool integral = false, transcendental = true;
  template <class T> TERN_HOST_DEVICE T operator()(T x) const { return math::exp(x); }
  template <class T> TERN_HOST_DEVICE T grad(T, T y) const { return y; }
};
struct Log {
  static constexpr bool integral = false, transcendental = true;
  template <class T> TERN_HOST_DEVICE T operator()(T x) const { return math::log(x); }
  template <class T> TERN_HOST_DEVICE T grad(T x, T) const { return T(1) / x; }
};
struct Sqrt {
  static constexpr bool integral = false, transcendental = false;
  template <class T> TERN_HOST_DEVICE T operator()(T x) const { return std::sqrt(x); }
  template <class T> TERN_HOST_DEVICE T grad(T, T y) const { return T(0.5) / y; }
};
struct Rsqrt {
  static constexpr bool integral = false, transcendental = false;
  template <class T> TERN_HOST_DEVICE T operator()(T x) const { return T(1) / std::sqrt(x); }
  template <class T> TERN_HOST_DEVICE T grad(T, T y) const { return T(-0.5) * y * y * y; }
};
struct Reciprocal {
  static constexpr bool integral = false, transcendental = false;
  template <class T> TERN_HOST_DEVICE T operator()(T x) const { return T(1) / x; }
  template <class T> TERN_HOST_DEVICE T grad(T, T y) const { return -y * y; }
};
struct Square {
  static constexpr bool integral = true, transcendental = false;
  template <class T> TERN_HOST_DEVICE T operator()(T x) const { return T(wrapping_t<T>(x) * wrapping_t<T>(x)); }
  template <class T> TERN_HOST_DEVICE T grad(T x, T) const { return T(2) * x; }
};
struct Sin {
  static constexpr bool integral = false, transcendental = true;
  template <class T> TERN_HOST_DEVICE T operator()(T x) const { return math::sin(x); }
  template <class T> TERN_HOST_DEVICE T grad(T x, T) const { return math::cos(x); }
};
struct Cos {
  static constexpr bool integral = false, transcendental = true;
  template <class T> TERN_HOST_DEVICE T operator()(T x) const { return math::cos(x); }
  template <class T> TERN_HOST_DEVICE T grad(T x, T) const { return -math::sin(x); }
};
struct Tanh {
  static constexpr bool integral = false, transcendental = true;
  template <class T> TERN_HOST_DEVICE T operator()(T x) const { return math::tanh(x); }
  template <class T> TERN_HOST_DEVICE T grad(T, T y) const { return T(1) - y * y; }
};
struct Erf {
  static constexpr bool integral = false, transcendental = true;
  template <class T> TERN_HOST_DEVICE T operator()(T x) const { return math::erf(x); }
  template <class T> TERN_HOST_DEVICE T grad(T x, T) const { return T(1.12837916709551257390) * math::exp(-x * x); }
};
struct Sigmoid {
  static constexpr bool integral = false, transcendental = true;
  template <class T> TERN_HOST_DEVICE T operator()(T x) const { return math::sigmoid(x); }
  template <class T> TERN_HOST_DEVICE T grad(T, T y) const { return y * (T(1) - y); }
};
struct Relu {
  static constexpr bool integral = true, transcendental = false;
  template <class T> TERN_HOST_DEVICE T operator()(T x) const { return x < T(0) ? T(0) : x; }
  template <class T> TERN_HOST_DEVICE bool passes(T, T y) const { return !(y <= T(0)); }
};
/// x * Phi(x), Hendrycks & Gimpel 2016.
struct Gelu {
  static constexpr bool integral = false, transcendental = true;
  template <class T> TERN_HOST_DEVICE T operator()(T x) const { return x * math::normal_cdf(x); }
  template <class T> TERN_HOST_DEVICE T grad(T x, T) const {
    return math::normal_cdf(x) + x * T(0.39894228040143267794) * math::exp(T(-0.5) * x * x);
  }
};
/// 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
struct GeluTanh {
  static constexpr bool integral = false, transcendental = true;
  template <class T> TERN_HOST_DEVICE static T inner(T x) { return T(0.79788456080286535588) * (x + T(0.044715) * x * x * x); }
  template <class T> TERN_HOST_DEVICE T operator()(T x) const { return T(0.5) * x * (T(1) + math::tanh(inner(x))); }
  template <class T> TERN_HOST_DEVICE T grad(T x, T) const {
    const T t = math::tanh(inner(x));
    return T(0.5) * (T(1) + t) + T(0.5) * x * (T(1) - t * t) * T(0.79788456080286535588) * (T(1) + T(3 * 0.044715) * x * x);
  }
};
struct Silu {
  static constexpr bool integral = false, transcendental = true;
  template <class T> TERN_HOST_DEVICE T operator()(T x) const { return x * math::sigmoid(x); }
  template <class T> TERN_HOST_DEVICE T grad(T x, T) const {
    const T s = math::sigmoid(x);
    return s * (T(1) + x * (T(1) - s));
  }
};
/// x min(max(x / 6 + 1 / 2, 0), 1). The derivative at -3 and 3 is that of outside, 0 and 1.
struct Hardswish {
  static constexpr bool integral = false, transcendental = false;
  template <class T> TERN_HOST_DEVICE T operator()(T x) const { return x <= T(-3) ? T(0) : x >= T(3) ? x : x * (x * T(1.0 / 6) + T(0.5)); }
  template <class T> TERN_HOST_DEVICE T grad(T x, T) const { return x <= T(-3) ? T(0) : x >= T(3) ? T(1) : x * T(1.0 / 3) + T(0.5); }
};
/// log(1 + exp(beta x)) / beta, split at 0 so that neither branch overflows or loses a small result to rounding.
struct Softplus {
  static constexpr bool integral = false, transcendental = true;
  double beta = 1;
  template <class T> TERN_HOST_DEVICE T operator()(T x) const {
    const T z = T(beta) * x;
    return (z > T(0) ? x : T(0)) + math::log1p(math::exp(z > T(0) ? -z : z)) / T(beta);
  }
  template <class T> TERN_HOST_DEVICE T grad(T x, T) const { return math::sigmoid(T(beta) * x); }
};
/// NaN propagates; the derivative is 1 inside and on the bounds. Integers are compared with whole_low and
/// whole_high, which are in T's range: a double does not represent every i64.
struct Clamp {
  static constexpr bool integral = true, transcendental = false;
  double low, high;
  std::int64_t whole_low = 0, whole_high = 0;
  template <class T> TERN_HOST_DEVICE T operator()(T x) const {
    if constexpr (std::is_integral_v<T>) return x < T(whole_low) ? T(whole_low) : x > T(whole_high) ? T(whole_high) : x;
    else return double(x) < low ? T(low) : double(x) > high ? T(high) : x;
  }
  template <class T> TERN_HOST_DEVICE bool passes(T x, T) const { return double(x) >= low && double(x) <= high; }
};

/// The derivative of the three rounding functions is 0 wherever they have one.
struct Floor {
  static constexpr bool integral = false, transcendental = false;
  template <class T> TERN_HOST_DEVICE T operator()(T x) const { return std::floor(x); }
  template <class T> TERN_HOST_DEVICE T grad(T, T) const { return T(0); }
};
struct Ceil {
  static constexpr bool integral = false, transcendental = false;
  template <class T> TERN_HOST_DEVICE T operator()(T x) const { return std::ceil(x); }
  template <class T> TERN_HOST_DEVICE T grad(T, T) const { return T(0); }
};
struct Round {
  static constexpr bool integral = false, transcendental = false;
  template <class T> TERN_HOST_DEVICE T operator()(T x) const { return std::rint(x); }
  template <class T> TERN_HOST_DEVICE T grad(T, T) const { return T(0); }
};
struct Log1p {
  static constexpr bool integral = false, transcendental = true;
  template <class T> TERN_HOST_DEVICE T operator()(T x) const { return std::log1p(x); }
  template <class T> TERN_HOST_DEVICE T grad(T x, T) const { return T(1) / (T(1) + x); }
};
struct Expm1 {
  static constexpr bool integral = false, transcendental = true;
  template <class T> TERN_HOST_DEVICE T operator()(T x) const { return std::expm1(x); }
  template <class T> TERN_HOST_DEVICE T grad(T, T y) const { return y + T(1); }
};

/// The gradient of x, of the gradient g of y = f(x). One that is not passed on is 0 for any g: 0 times infinity would be NaN.
template <class F, class T> TERN_HOST_DEVICE T gradient(const F& f, T g, T x, T y) {
  if constexpr (requires { f.passes(x, y); }) return f.passes(x, y) ? g : T(0);
  else return g * f.grad(x, y);
}

struct Add {
  static constexpr bool transcendental = false;
  template <class T> TERN_HOST_DEVICE T operator()(T a, T b) const { return T(wrapping_t<T>(a) + wrapping_t<T>(b)); }
};
struct Sub {
  static constexpr bool transcendental = false;
  template <class T> TERN_HOST_DEVICE T operator()(T a, T b) const { return T(wrapping_t<T>(a) - wrapping_t<T>(b)); }
};
struct Mul {
  static constexpr bool transcendental = false;
  template <class T> TERN_HOST_DEVICE T operator()(T a, T b) const { return T(wrapping_t<T>(a) * wrapping_t<T>(b)); }
};
struct Div {
  static constexpr bool transcendental = false;
  template <class T> TERN_HOST_DEVICE T operator()(T a, T b) const {
    // Integers: division by zero gives 0; division by -1 is a negation that may wrap, because the processor would trap on the smallest
    // number.
    if constexpr (std::is_integral_v<T>)
      return b == T(0) ? T(0) : b == T(-1) && std::is_signed_v<T> ? T(T(0) - std::make_unsigned_t<T>(a)) : T(a / b);
    else return a / b;
  }
};
struct Pow {
  static constexpr bool transcendental = true;
  template <class T> TERN_HOST_DEVICE T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      if (b < T(0)) return a == T(1) ? T(1) : a == T(-1) ? (b % 2 == 0 ? T(1) : T(-1)) : T(0);
      std::make_unsigned_t<T> result = 1, base = std::make_unsigned_t<T>(a);
      for (; b > T(0); b = T(b / 2), base *= base)
        if (b % 2) result *= base;
      return T(result);
    } else return std::pow(a, b);
  }
};
struct Minimum {
  static constexpr bool transcendental = false;
  template <class T> TERN_HOST_DEVICE T operator()(T a, T b) const { return a != a || a < b ? a : b; }
};
struct Maximum {
  static constexpr bool transcendental = false;
  template <class T> TERN_HOST_DEVICE T operator()(T a, T b) const { return a != a || a > b ? a : b; }
};

/// a - b floor(a / b), which has b's sign, as in Python; integers modulo zero give 0.
struct Remainder {
  static constexpr bool transcendental = true;
  template <class T> TERN_HOST_DEVICE T operator()(T a, T b) const {
    T r;
    if constexpr (std::is_integral_v<T>) {
      // The processor would trap on a division by 0, and on the smallest number divided by -1.
      if (b == T(0) || (std::is_signed_v<T> && b == T(-1))) return T(0);
      r = T(a % b);
    } else r = std::fmod(a, b);
    if constexpr (std::is_unsigned_v<T>) return r;
    else return r != T(0) && (r < T(0)) != (b < T(0)) ? T(r + b) : r;
  }
};
/// Floor of the exact quotient, as Python's //; floor(a / b) would be too large if a / b rounds up to an integer. Integers divided by zero:
/// 0.
struct FloorDivide {
  static constexpr bool transcendental = true;
  template <class T> TERN_HOST_DEVICE T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      const T quotient = Div{}(a, b);
      return b != T(0) && (a < T(0)) != (b < T(0)) && Mul{}(quotient, b) != a ? T(quotient - 1) : quotient;
    } else {
      if (b == T(0)) return a / b;
      const T rest = std::fmod(a, b), quotient = (a - rest) / b - (rest != T(0) && (rest < T(0)) != (b < T(0)) ? T(1) : T(0));
      if (quotient == T(0)) return std::copysign(T(0), a / b);
      // `quotient` is an integer except for the division's rounding error.
      const T below = std::floor(quotient);
      return quotient - below > T(0.5) ? below + T(1) : below;
    }
  }
};
/// The angle of the point (b, a), in [-pi, pi]; the op does not call it for integers.
struct Atan2 {
  static constexpr bool transcendental = true;
  template <class T> TERN_HOST_DEVICE T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) return T(std::atan2(double(a), double(b)));
    else return std::atan2(a, b);
  }
};

/// Bits of integers; the op does not call it for floats. One functor, whose kind is the same for all elements, and not six: each would be
/// another loop for each dtype.
struct Bits {
  static constexpr bool transcendental = false;
  static constexpr bool integral_only = true;
  enum class Kind : std::uint8_t { both, any, one, left, right } kind;
  template <class T> TERN_HOST_DEVICE T operator()(T a, T b) const {
    using Unsigned = std::make_unsigned_t<T>;
    constexpr int width = 8 * sizeof(T);
    const bool is_out = b < T(0) || b >= T(width);  // no processor shifts by so many
    switch (kind) {
      case Kind::both: return a & b;
      case Kind::any: return a | b;
      case Kind::one: return a ^ b;
      case Kind::left: return is_out ? T(0) : T(Unsigned(a) << (is_out ? 0 : b));
      default: return T(a >> (is_out ? width - 1 : b)) >> T(is_out && std::is_unsigned_v<T> ? 1 : 0);
    }
  }
};

struct Eq {
  template <class T> TERN_HOST_DEVICE bool operator()(T a, T b) const { return a == b; }
};
struct Ne {
  template <class T> TERN_HOST_DEVICE bool operator()(T a, T b) const { return a != b; }
};
struct Lt {
  template <class T> TERN_HOST_DEVICE bool operator()(T a, T b) const { return a < b; }
};
struct Le {
  template <class T> TERN_HOST_DEVICE bool operator()(T a, T b) const { return a <= b; }
};
struct Gt {
  template <class T> TERN_HOST_DEVICE bool operator()(T a, T b) const { return a > b; }
};
struct Ge {
  template <class T> TERN_HOST_DEVICE bool operator()(T a, T b) const { return a >= b; }
};

}  // namespace tern::functors
