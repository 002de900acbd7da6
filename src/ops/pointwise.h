#pragma once
#include <concepts>
#include <cstdint>
#include <limits>
#include <utility>

#include "tensor/tensor.h"

namespace tern {

/// An operand: a tensor, or a number, which takes the other operand's dtype.
struct Operand {
  Tensor tensor;           ///< undefined for a number
  double number = 0;       ///< 0 for a tensor
  bool is_number = false;  ///< true for a number

  /// @{
  /// Converts a tensor or a number.
  Operand(const Tensor& x) : tensor(x) {}
  Operand(double x) : number(x), is_number(true) {}
  /// @}
};

/// @name Pointwise ops
/// Binary ones broadcast (dimensions are matched from the last, size 1 repeats) and promote (tensor/dtype.h:promote).
/// A C++ number as operand takes the tensor's dtype; with an integer tensor and a number that is not whole the result is f32,
/// and a whole one that is outside the dtype's range throws. Integer results beyond the dtype's range wrap.
/// All throw Error that names the op and both shapes where these do not broadcast, or the devices where they differ, and for two numbers.
/// @{
Tensor add(const Operand& a, const Operand& b);  ///< a + b
Tensor sub(const Operand& a, const Operand& b);  ///< a - b
Tensor mul(const Operand& a, const Operand& b);  ///< a b
/// a / b; of integers: f32.
Tensor div(const Operand& a, const Operand& b);
/// a^b. The gradient with respect to b is 0 where a = 0 and b >= 0. Of two integer tensors: truncated, so that a negative exponent gives 1
/// or -1 for a base of 1 or -1 and 0 for any other base, 0 included. Integers with a negative number as exponent give f32.
Tensor pow(const Operand& a, const Operand& b);
/// The smaller of the two; NaN where an operand is NaN. Where both are equal, each gets half of the gradient.
Tensor minimum(const Operand& a, const Operand& b);
/// The larger of the two; NaN where an operand is NaN. Where both are equal, each gets half of the gradient.
Tensor maximum(const Operand& a, const Operand& b);
/// Remainder a - b floor(a / b): its sign is that of b, as in Python. Integers modulo zero: 0, but a number b may not be 0 for them.
Tensor remainder(const Operand& a, const Operand& b);
/// Largest integer <= a / b, as Python's //: a = b floor_divide(a, b) + remainder(a, b). For b = 0: 0 for integers, of which a number b
/// may not be 0, and a / b for floats. Its derivative is 0.
Tensor floor_divide(const Operand& a, const Operand& b);
/// The angle of the point (x, y) in [-pi, pi]: arctan(y / x) in the right quadrant; the gradient at the origin is 0. Of two integer
/// tensors: f32.
Tensor atan2(const Tensor& y, const Tensor& x);
/// @}

/// @{
/// Comparisons, element by element, of any dtypes; the result is bool. A NaN is unequal to everything and neither smaller nor larger.
Tensor eq(const Operand& a, const Operand& b);
Tensor ne(const Operand& a, const Operand& b);
Tensor lt(const Operand& a, const Operand& b);
Tensor le(const Operand& a, const Operand& b);
Tensor gt(const Operand& a, const Operand& b);
Tensor ge(const Operand& a, const Operand& b);
/// @}
/// @{
/// Logical ops of bool tensors. Throw Error for another dtype.
Tensor logical_not(const Tensor& x);
Tensor logical_and(const Tensor& a, const Tensor& b);
Tensor logical_or(const Tensor& a, const Tensor& b);
/// @}

/// condition (bool) ? a : b, all three broadcast.
Tensor where(const Tensor& condition, const Operand& a, const Operand& b);
/// x with `value` where mask (bool, broadcast to x) is true.
Tensor masked_fill(const Tensor& x, const Tensor& mask, double value);

/// Bound of clamp, from any number. Integers are kept exactly: a double does not represent all of them beyond 2^53.
struct Bound {
  double value;        ///< the number, rounded to double
  std::int64_t whole;  ///< the number, truncated to an integer and clamped to the range of i64

  /// @{
  /// Converts a C++ number.
  template <std::floating_point Number>
  Bound(Number number)
      : value(number),
        whole(!(value >= -0x1p63) ? std::numeric_limits<std::int64_t>::min()
              : value >= 0x1p63   ? std::numeric_limits<std::int64_t>::max()
                                  : static_cast<std::int64_t>(value)) {}
  template <std::integral Number>
  Bound(Number number)
      : value(static_cast<double>(number)),
        whole(std::in_range<std::int64_t>(number) ? static_cast<std::int64_t>(number) : std::numeric_limits<std::int64_t>::max()) {}
  /// @}
};

/// @name Elementwise functions
/// They keep the shape. Floating dtypes; neg, abs, sign, square, relu and clamp take integers too.
/// @{
Tensor neg(const Tensor& x);                                 ///< -x
inline Tensor operator-(const Tensor& x) { return neg(x); }  ///< neg
Tensor abs(const Tensor& x);                                 ///< |x|; the derivative at 0 is 0
Tensor sign(const Tensor& x);                                ///< -1, 0 or 1; its derivative is 0
Tensor exp(const Tensor& x);                                 ///< e^x
Tensor log(const Tensor& x);                                 ///< natural logarithm: NaN below 0
Tensor sqrt(const Tensor& x);                                ///< square root: NaN below 0
Tensor rsqrt(const Tensor& x);                               ///< 1 / sqrt(x)
Tensor reciprocal(const Tensor& x);                          ///< 1 / x
Tensor square(const Tensor& x);                              ///< x x
Tensor sin(const Tensor& x);                                 ///< sine, of radians
Tensor cos(const Tensor& x);                                 ///< cosine, of radians
Tensor tanh(const Tensor& x);                                ///< hyperbolic tangent, in [-1, 1]
Tensor erf(const Tensor& x);                                 ///< error function, 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x
Tensor sigmoid(const Tensor& x);                             ///< 1 / (1 + exp(-x))
Tensor relu(const Tensor& x);                                ///< max(x, 0); the derivative at 0 is 0
/// Gaussian error linear unit, x Phi(x). Hendrycks & Gimpel, 2016.
Tensor gelu(const Tensor& x);
/// GELU approximated by tanh, as in GPT-2.
Tensor gelu_tanh(const Tensor& x);
/// SiLU (swish), x sigmoid(x).
Tensor silu(const Tensor& x);
/// x relu6(x + 3) / 6, close to silu, without an exponential. Howard et al., "MobileNetV3", 2019.
Tensor hardswish(const Tensor& x);
/// silu(gate) * x, the activation of SwiGLU (Shazeer, 2020), with one kernel each way on a GPU, except in a PlainKernels scope; gate and x
/// of one floating dtype and shape.
Tensor swiglu(const Tensor& gate, const Tensor& x);
/// log(1 + exp(beta x)) / beta, a smooth relu; computed without overflow where beta x is large. Throws Error unless beta > 0. Dugas et al.,
/// 2001.
Tensor softplus(const Tensor& x, double beta = 1);
Tensor log1p(const Tensor& x);  ///< log(1 + x), accurate near 0
Tensor expm1(const Tensor& x);  ///< exp(x) - 1, accurate near 0
/// floor, ceil and round of integers are copies, as in the array API standard; bool is refused.
Tensor floor(const Tensor& x);  ///< largest integer <= x; the derivative is 0
Tensor ceil(const Tensor& x);   ///< smallest integer >= x; the derivative is 0
Tensor round(const Tensor& x);  ///< nearest integer, halves to even; the derivative is 0
/// Clamps to [low, high]; the gradient passes inside and on the bounds. Integers between bounds that are not integers give f32. Throws
/// Error if low > high, and if an integer dtype has no number between the bounds.
Tensor clamp(const Tensor& x, Bound low, Bound high);
/// @}

/// @{
/// In place, outside autograd; b is broadcast to target and must have its dtype. div_ needs a floating target; for integers, a number must
/// not be 0 as divisor or negative as exponent. Return target.
Tensor add_(const Tensor& target, const Operand& b);
Tensor sub_(const Tensor& target, const Operand& b);
Tensor mul_(const Tensor& target, const Operand& b);
Tensor div_(const Tensor& target, const Operand& b);
Tensor pow_(const Tensor& target, const Operand& b);
Tensor remainder_(const Tensor& target, const Operand& b);
Tensor floor_divide_(const Tensor& target, const Operand& b);
/// @}

/// Sums x over the dimensions along which broadcasting `shape` to x's shape repeats: the gradient of a broadcast.
Tensor sum_to(const Tensor& x, const Shape& shape);

// Elementwise functions that are composed of the ops of ops/pointwise.h, two to five kernels each.

/// sin(x) / cos(x).
Tensor tan(const Tensor& x);
/// x where x > 0, else slope * x; the derivative at 0 is `slope`. Maas et al., 2013.
Tensor leaky_relu(const Tensor& x, double slope = 0.01);
/// x where x > 0, else alpha (exp(x) - 1). Clevert et al., 2016.
Tensor elu(const Tensor& x, double alpha = 1);

/// @{
/// Bool result for any dtype; integers are finite.
Tensor isnan(const Tensor& x);
Tensor isinf(const Tensor& x);
Tensor isfinite(const Tensor& x);
/// @}
/// Bool: |a - b| <= absolute + relative |b|; equal infinities are close, and so are two NaNs if `equal_nan`. a and b are broadcast.
Tensor isclose(const Tensor& a, const Tensor& b, double relative = 1e-5, double absolute = 1e-8, bool equal_nan = false);
/// True if all elements are close (isclose); waits for the device.
bool allclose(const Tensor& a, const Tensor& b, double relative = 1e-5, double absolute = 1e-8, bool equal_nan = false);

// The operators of tensors. Each is the op that its definition calls.

/// @{
/// add, sub, mul and div as operators.
inline Tensor operator+(const Operand& a, const Operand& b) { return add(a, b); }
inline Tensor operator-(const Operand& a, const Operand& b) { return sub(a, b); }
inline Tensor operator*(const Operand& a, const Operand& b) { return mul(a, b); }
inline Tensor operator/(const Operand& a, const Operand& b) { return div(a, b); }
/// @}
/// @{
/// Comparisons give a bool tensor, element by element: all(x == y).item<bool>() is true if all elements are equal.
inline Tensor operator==(const Operand& a, const Operand& b) { return eq(a, b); }
inline Tensor operator!=(const Operand& a, const Operand& b) { return ne(a, b); }
inline Tensor operator<(const Operand& a, const Operand& b) { return lt(a, b); }
inline Tensor operator<=(const Operand& a, const Operand& b) { return le(a, b); }
inline Tensor operator>(const Operand& a, const Operand& b) { return gt(a, b); }
inline Tensor operator>=(const Operand& a, const Operand& b) { return ge(a, b); }
/// @}

/// Logical not of a bool tensor. Throws Error for another dtype.
inline Tensor operator!(const Tensor& x) { return logical_not(x); }

/// @{
/// Bits of integers, in two's complement: not, and, or, exclusive or, shifts. Of bool tensors not, and, or and exclusive or are the logical
/// ones. Operands broadcast and promote as in add; a shift to the right repeats the sign; one by fewer than 0 bits, or by as many as an
/// element has, shifts all of them out. Throw Error for floating dtypes, bool in shifts, and a number that the dtype does not hold.
Tensor operator~(const Tensor& x);
Tensor operator&(const Tensor& a, const Tensor& b);
Tensor operator|(const Tensor& a, const Tensor& b);
Tensor operator^(const Tensor& a, const Tensor& b);
Tensor operator<<(const Tensor& a, const Tensor& b);
Tensor operator>>(const Tensor& a, const Tensor& b);
Tensor operator&(const Tensor& a, std::int64_t b);
Tensor operator|(const Tensor& a, std::int64_t b);
Tensor operator^(const Tensor& a, std::int64_t b);
Tensor operator<<(const Tensor& a, std::int64_t b);
Tensor operator>>(const Tensor& a, std::int64_t b);
/// @}

/// The remainder that has the divisor's sign, as in Python.
inline Tensor operator%(const Operand& a, const Operand& b) { return remainder(a, b); }

/// @{
/// In place and outside autograd, as add_ and the others: all handles of the tensor and all its views see the result; x[0] += 1 edits x.
/// Throws Error for a tensor with history, and for an operand that would give it one: write x = x + y.
inline const Tensor& operator+=(const Tensor& target, const Operand& b) { return add_(target, b), target; }
inline const Tensor& operator-=(const Tensor& target, const Operand& b) { return sub_(target, b), target; }
inline const Tensor& operator*=(const Tensor& target, const Operand& b) { return mul_(target, b), target; }
inline const Tensor& operator/=(const Tensor& target, const Operand& b) { return div_(target, b), target; }
inline const Tensor& operator%=(const Tensor& target, const Operand& b) { return remainder_(target, b), target; }
/// @}

}  // namespace tern
