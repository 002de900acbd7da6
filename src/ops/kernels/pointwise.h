#pragma once
#include <variant>

#include "ops/kernels/functors.h"
#include "tensor/kernel.h"

namespace tern::kernels {

/// Unary, binary and comparison functions, each with its parameters, if it has any. A functor that is missing from a list does not convert
/// to it, so an op that forgets its entry here does not compile.
using UnaryFunction =
    std::variant<functors::Neg, functors::Abs, functors::Sign, functors::Exp, functors::Log, functors::Sqrt, functors::Rsqrt,
                 functors::Reciprocal, functors::Square, functors::Sin, functors::Cos, functors::Tanh, functors::Erf, functors::Sigmoid,
                 functors::Relu, functors::Gelu, functors::GeluTanh, functors::Silu, functors::Hardswish, functors::Softplus,
                 functors::Clamp, functors::Floor, functors::Ceil, functors::Round, functors::Log1p, functors::Expm1>;
using BinaryFunction = std::variant<functors::Add, functors::Sub, functors::Mul, functors::Div, functors::Pow, functors::Minimum,
                                    functors::Maximum, functors::Remainder, functors::FloorDivide, functors::Atan2, functors::Bits>;
using CompareFunction = std::variant<functors::Eq, functors::Ne, functors::Lt, functors::Le, functors::Gt, functors::Ge>;

/// Calls f with the functor that a UnaryFunction, BinaryFunction or CompareFunction holds. A chain of comparisons and not std::visit, whose
/// table of pointers would keep f from being inlined.
template <std::size_t i = 0, class... Functors, class F>
decltype(auto) dispatch_functor(const std::variant<Functors...>& function, F&& f) {
  if constexpr (i + 1 < sizeof...(Functors))
    if (function.index() != i) return dispatch_functor<i + 1>(function, f);
  return f(*std::get_if<i>(&function));
}

/// True for the functor of an op on integers alone, of which kernels have no loops over floats.
template <class Functor>
inline constexpr bool is_integral_only = requires { requires Functor::integral_only; };

inline bool takes_integers(const UnaryFunction& function) {
  return dispatch_functor(function, [](const auto& f) { return f.integral; });
}

/// An operand of a pointwise kernel: a view, or one number for all elements.
struct Operand {
  In view;
  double number = 0;
  bool is_number = false;

  Operand(const View& view_) : view(view_) {}
  Operand(const Tensor& x) : view(x) {}
  Operand(double number_) : number(number_), is_number(true) {}
};

/// y = f(x); same shape and dtype, any strides. Floating dtypes, and integers where takes_integers(f).
struct Unary {
  UnaryFunction f;
  In x;
  Out y;
  void run(Cpu) const;
  void run(Cuda) const;
};

/// dx = g * f'(x), given y = f(x) as well; floating, one dtype and shape, any strides.
struct UnaryGrad {
  UnaryFunction f;
  In g, x, y;
  Out dx;
  void run(Cpu) const;
  void run(Cuda) const;
};

// Kernels that only CUDA has.

/// y = silu(gate) x; f32, bf16 or f16, one shape, any strides.
struct Swiglu {
  In gate, x;
  Out y;
  void run(Cuda) const;
};
/// dgate and dx from g, the gradient of y, in one pass; everything contiguous.
struct SwigluGrad {
  In g, gate, x;
  Out dgate, dx;
  void run(Cuda) const;
};

/// y = f(a, b), Note [Operands]: views have y's shape (broadcast dimensions have stride 0) and dtype, and any strides; at
/// most one operand is a number. Numeric dtypes; y may be one of the views themselves. Integer div truncates as in C++,
/// floor_divide rounds down (both give 0 for division by zero); integer pow multiplies. minimum and maximum give NaN where an operand is
/// NaN.
struct Binary {
  BinaryFunction f;
  Operand a, b;
  Out y;
  void run(Cpu) const;
  void run(Cuda) const;
};

/// As Binary, for comparisons: the views share a dtype (any), y is bool.
struct Compare {
  CompareFunction f;
  Operand a, b;
  Out y;
  void run(Cpu) const;
  void run(Cuda) const;
};

/// y = condition ? a : b; condition is bool; both operands may be numbers.
struct Where {
  In condition;
  Operand a, b;
  Out y;
  void run(Cpu) const;
  void run(Cuda) const;
};

// Recurrent cells (ops/recurrent.h), over contiguous views of one dtype, f32 or f64. On a GPU they are composed of other ops, as they are
// for 16 bits: there a step's time is that of its launches, which a captured step avoids (ops/captured_step.h).

/// The gates' sums are x_gates + h_gates, (B, 4 H) each; c, h_after and c_after are (B, H).
struct LstmCell {
  In x_gates, h_gates, c;
  Out h_after, c_after;
  void run(Cpu) const;
};
/// d_gates (B, 4 H), the gradient of either operand, and d_c, from dh and dc, the gradients of h_after and c_after, one of which may have
/// no data.
struct LstmCellGrad {
  In x_gates, h_gates, c, dh, dc;
  Out d_gates, d_c;
  void run(Cpu) const;
};

/// x_gates and h_gates are (B, 3 H), h and after (B, H).
struct GruCell {
  In x_gates, h_gates, h;
  Out after;
  void run(Cpu) const;
};
struct GruCellGrad {
  In x_gates, h_gates, h, d_after;
  Out dx_gates, dh_gates, dh;
  void run(Cpu) const;
};

}  // namespace tern::kernels
