#pragma once
#include <cmath>
#include <type_traits>

#include "ops/kernels/pointwise.h"
#include "tensor/half.h"

namespace tern::functors {

/// Note [Functors]: a pointwise function is written once, for one element, and serves both devices. `operator()` is the function;
/// `grad(x, y)` its derivative, given x and y = f(x). T is the type of the arithmetic: float, double or an integer.
/// The CPU backend may have a vectorised form beside it (ops/cpu/pointwise.cpp) and is tested against this one.

template <class T> TERN_HOST_DEVICE T sigmoid_of(T x) { return T(1) / (T(1) + std::exp(-x)); }

struct Neg {
  template <class T> TERN_HOST_DEVICE T operator()(T x) const { return T(-x); }
  template <class T> TERN_HOST_DEVICE T grad(T, T) const { return T(-1); }
};
struct Abs {
  template <class T> TERN_HOST_DEVICE T operator()(T x) const { return x < T(0) ? T(-x) : x; }
  template <class T> TERN_HOST_DEVICE T grad(T x, T) const { return x > T(0) ? T(1) : x < T(0) ? T(-1) : x * T(0); }
};
struct Sign {
  template <class T> TERN_HOST_DEVICE T operator()(T x) const { return x > T(0) ? T(1) : x < T(0) ? T(-1) : T(x * T(0)); }
  template <class T> TERN_HOST_DEVICE T grad(T, T) const { return T(0); }
};
struct Exp {
  template <class T> TERN_HOST_DEVICE T operator()(T x) const { return std::exp(x); }
  template <class T> TERN_HOST_DEVICE T grad(T, T y) const { return y; }
};
struct Log {
  template <class T> TERN_HOST_DEVICE T operator()(T x) const { return std::log(x); }
  template <class T> TERN_HOST_DEVICE T grad(T x, T) const { return T(1) / x; }
};
struct Sqrt {
  template <class T> TERN_HOST_DEVICE T operator()(T x) const { return std::sqrt(x); }
  template <class T> TERN_HOST_DEVICE T grad(T, T y) const { return T(0.5) / y; }
};
struct Rsqrt {
  template <class T> TERN_HOST_DEVICE T operator()(T x) const { return T(1) / std::sqrt(x); }
  template <class T> TERN_HOST_DEVICE T grad(T, T y) const { return T(-0.5) * y * y * y; }
};
struct Reciprocal {
  template <class T> TERN_HOST_DEVICE T operator()(T x) const { return T(1) / x; }
  template <class T> TERN_HOST_DEVICE T grad(T, T y) const { return -y * y; }
};
struct Square {
  template <class T> TERN_HOST_DEVICE T operator()(T x) const { return T(x * x); }
  template <class T> TERN_HOST_DEVICE T grad(T x, T) const { return T(2) * x; }
};
struct Sin {
  template <class T> TERN_HOST_DEVICE T operator()(T x) const { return std::sin(x); }
  template <class T> TERN_HOST_DEVICE T grad(T x, T) const { return std::cos(x); }
};
struct Cos {
  template <class T> TERN_HOST_DEVICE T operator()(T x) const { return std::cos(x); }
  template <class T> TERN_HOST_DEVICE T grad(T x, T) const { return -std::sin(x); }
};
struct Tanh {
  template <class T> TERN_HOST_DEVICE T operator()(T x) const { return std::tanh(x); }
  template <class T> TERN_HOST_DEVICE T grad(T, T y) const { return T(1) - y * y; }
};
struct Erf {
  template <class T> TERN_HOST_DEVICE T operator()(T x) const { return std::erf(x); }
  template <class T> TERN_HOST_DEVICE T grad(T x, T) const { return T(1.12837916709551257390) * std::exp(-x * x); }
};
struct Sigmoid {
  template <class T> TERN_HOST_DEVICE T operator()(T x) const { return sigmoid_of(x); }
  template <class T> TERN_HOST_DEVICE T grad(T, T y) const { return y * (T(1) - y); }
};
struct Relu {
  template <class T> TERN_HOST_DEVICE T operator()(T x) const { return x < T(0) ? T(0) : x; }
  template <class T> TERN_HOST_DEVICE T grad(T x, T) const { return x > T(0) ? T(1) : T(0); }
};
/// x * Phi(x), Hendrycks & Gimpel 2016.
struct Gelu {
  template <class T> TERN_HOST_DEVICE T operator()(T x) const { return T(0.5) * x * (T(1) + std::erf(x * T(0.70710678118654752440))); }
  template <class T> TERN_HOST_DEVICE T grad(T x, T) const {
    const T cdf = T(0.5) * (T(1) + std::erf(x * T(0.70710678118654752440)));
    return cdf + x * T(0.39894228040143267794) * std::exp(T(-0.5) * x * x);
  }
};
/// 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
struct GeluTanh {
  template <class T> TERN_HOST_DEVICE static T inner(T x) { return T(0.79788456080286535588) * (x + T(0.044715) * x * x * x); }
  template <class T> TERN_HOST_DEVICE T operator()(T x) const { return T(0.5) * x * (T(1) + std::tanh(inner(x))); }
  template <class T> TERN_HOST_DEVICE T grad(T x, T) const {
    const T t = std::tanh(inner(x));
    return T(0.5) * (T(1) + t) + T(0.5) * x * (T(1) - t * t) * T(0.79788456080286535588) * (T(1) + T(3 * 0.044715) * x * x);
  }
};
struct Silu {
  template <class T> TERN_HOST_DEVICE T operator()(T x) const { return x * sigmoid_of(x); }
  template <class T> TERN_HOST_DEVICE T grad(T x, T) const {
    const T s = sigmoid_of(x);
    return s * (T(1) + x * (T(1) - s));
  }
};
/// NaN passes; the derivative is 1 inside and on the bounds.
struct Clamp {
  double low, high;
  template <class T> TERN_HOST_DEVICE T operator()(T x) const { return double(x) < low ? T(low) : double(x) > high ? T(high) : x; }
  template <class T> TERN_HOST_DEVICE T grad(T x, T) const { return double(x) >= low && double(x) <= high ? T(1) : T(0); }
};

struct Add {
  template <class T> TERN_HOST_DEVICE T operator()(T a, T b) const { return T(a + b); }
};
struct Sub {
  template <class T> TERN_HOST_DEVICE T operator()(T a, T b) const { return T(a - b); }
};
struct Mul {
  template <class T> TERN_HOST_DEVICE T operator()(T a, T b) const { return T(a * b); }
};
struct Div {
  template <class T> TERN_HOST_DEVICE T operator()(T a, T b) const {
    // Integers: by zero gives 0, and by -1 is a negation that may wrap, where the processor would trap on the smallest number.
    if constexpr (std::is_integral_v<T>)
      return b == T(0) ? T(0) : b == T(-1) && std::is_signed_v<T> ? T(T(0) - std::make_unsigned_t<T>(a)) : T(a / b);
    else return a / b;
  }
};
struct Pow {
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
  template <class T> TERN_HOST_DEVICE T operator()(T a, T b) const { return a != a || a < b ? a : b; }
};
struct Maximum {
  template <class T> TERN_HOST_DEVICE T operator()(T a, T b) const { return a != a || a > b ? a : b; }
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

/// Calls visit with the functor that an enumerator names: the one place where the two meet.
template <class F>
decltype(auto) visit(kernels::Unary f, kernels::UnaryParams params, F&& visitor) {
  using enum kernels::Unary;
  switch (f) {
    case neg: return visitor(Neg{});
    case abs: return visitor(Abs{});
    case sign: return visitor(Sign{});
    case exp: return visitor(Exp{});
    case log: return visitor(Log{});
    case sqrt: return visitor(Sqrt{});
    case rsqrt: return visitor(Rsqrt{});
    case reciprocal: return visitor(Reciprocal{});
    case square: return visitor(Square{});
    case sin: return visitor(Sin{});
    case cos: return visitor(Cos{});
    case tanh: return visitor(Tanh{});
    case erf: return visitor(Erf{});
    case sigmoid: return visitor(Sigmoid{});
    case relu: return visitor(Relu{});
    case gelu: return visitor(Gelu{});
    case gelu_tanh: return visitor(GeluTanh{});
    case silu: return visitor(Silu{});
    default: return visitor(Clamp{params.low, params.high});
  }
}
template <class F>
decltype(auto) visit(kernels::Binary f, F&& visitor) {
  using enum kernels::Binary;
  switch (f) {
    case add: return visitor(Add{});
    case sub: return visitor(Sub{});
    case mul: return visitor(Mul{});
    case div: return visitor(Div{});
    case pow: return visitor(Pow{});
    case minimum: return visitor(Minimum{});
    default: return visitor(Maximum{});
  }
}
template <class F>
decltype(auto) visit(kernels::Compare f, F&& visitor) {
  using enum kernels::Compare;
  switch (f) {
    case eq: return visitor(Eq{});
    case ne: return visitor(Ne{});
    case lt: return visitor(Lt{});
    case le: return visitor(Le{});
    case gt: return visitor(Gt{});
    default: return visitor(Ge{});
  }
}

/// The unary functions that take integers as well as floats.
constexpr bool takes_integers(kernels::Unary f) {
  using enum kernels::Unary;
  return f == neg || f == abs || f == sign || f == square || f == relu || f == clamp;
}

}  // namespace tern::functors
