#pragma once
#include "tensor/view.h"

namespace tern::kernels {

/// Functions of one element, in the order of the functors in functors.h.
enum class Unary : std::uint8_t {
  neg,
  abs,
  sign,
  exp,
  log,
  sqrt,
  rsqrt,
  reciprocal,
  square,
  sin,
  cos,
  tanh,
  erf,
  sigmoid,
  relu,
  gelu,
  gelu_tanh,
  silu,
  clamp
};
/// Functions of two elements. The first group gives the operands' dtype, the second gives bool.
enum class Binary : std::uint8_t { add, sub, mul, div, pow, minimum, maximum };
enum class Compare : std::uint8_t { eq, ne, lt, le, gt, ge };

/// The bounds of clamp; other functions ignore them.
struct UnaryParams {
  double low = 0, high = 0;
};

/// An operand of a pointwise kernel: a view, or one number for all elements.
struct Operand {
  View view;
  double number = 0;
  bool is_number = false;

  Operand(const View& view_) : view(view_) {}
  Operand(double number_) : number(number_), is_number(true) {}
};

/// y = f(x); same shape and dtype, any strides. Floating dtypes; neg, abs, sign, square, relu and clamp also take integers.
void unary(Cpu, Unary f, const View& x, const View& y, UnaryParams params);
void unary(Cuda, Unary f, const View& x, const View& y, UnaryParams params);

/// dx = g * f'(x), given y = f(x) as well; floating, one dtype and shape, any strides.
void unary_grad(Cpu, Unary f, const View& g, const View& x, const View& y, const View& dx, UnaryParams params);
void unary_grad(Cuda, Unary f, const View& g, const View& x, const View& y, const View& dx, UnaryParams params);

/// y = f(a, b), Note [Operands]: views have y's shape (broadcast dimensions have stride 0) and dtype, and any strides; at
/// most one operand is a number. Numeric dtypes; y may be one of the views themselves. Integer div truncates as C++ does
/// (by zero: 0); integer pow multiplies. minimum and maximum give NaN where an operand is NaN.
void binary(Cpu, Binary f, const Operand& a, const Operand& b, const View& y);
void binary(Cuda, Binary f, const Operand& a, const Operand& b, const View& y);

/// As binary, for comparisons: the views share a dtype (any), y is bool.
void compare(Cpu, Compare f, const Operand& a, const Operand& b, const View& y);
void compare(Cuda, Compare f, const Operand& a, const Operand& b, const View& y);

/// y = condition ? a : b; condition is bool; both operands may be numbers.
void where(Cpu, const View& condition, const Operand& a, const Operand& b, const View& y);
void where(Cuda, const View& condition, const Operand& a, const Operand& b, const View& y);

}  // namespace tern::kernels
