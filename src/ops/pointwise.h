#pragma once
#include "tensor/tensor.h"

namespace tern {

/// Pointwise ops. Binary ones broadcast (dimensions are matched from the last, size 1 repeats) and promote (tensor/dtype.h:promote).
/// A C++ number as operand takes the tensor's dtype; with an integer tensor and a number that is not whole the result is f32,
/// and a whole one that the dtype does not hold throws. Integer results beyond the dtype's range wrap.
/// All throw Error that names the op and both shapes where these do not broadcast, or the devices where they differ.

Tensor add(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
/// Of two integer tensors: f32.
Tensor div(const Tensor& a, const Tensor& b);
/// a^b. The gradient with respect to b is 0 where a = 0 and b >= 0. Of two integer tensors: the whole part, so that a negative exponent
/// gives 1 or -1 for a base of 1 or -1 and 0 for any other, 0 included; a negative number as exponent of integers gives f32.
Tensor pow(const Tensor& a, const Tensor& b);
/// NaN where an operand is NaN. Where both are equal each gets half of the gradient.
Tensor minimum(const Tensor& a, const Tensor& b);
Tensor maximum(const Tensor& a, const Tensor& b);
/// a - b floor(a / b): its sign is that of b, as in Python. Of integers by zero: 0.
Tensor remainder(const Tensor& a, const Tensor& b);
/// The angle of the point (x, y) in [-pi, pi]: arctan(y / x) in the right quadrant. Of two integer tensors: f32.
Tensor atan2(const Tensor& y, const Tensor& x);

Tensor add(const Tensor& a, double b);
Tensor sub(const Tensor& a, double b);
Tensor sub(double a, const Tensor& b);
Tensor mul(const Tensor& a, double b);
Tensor div(const Tensor& a, double b);
Tensor div(double a, const Tensor& b);
Tensor pow(const Tensor& a, double b);
Tensor pow(double a, const Tensor& b);
Tensor minimum(const Tensor& a, double b);
Tensor maximum(const Tensor& a, double b);
inline Tensor minimum(double a, const Tensor& b) { return minimum(b, a); }
inline Tensor maximum(double a, const Tensor& b) { return maximum(b, a); }
/// As for tensors; `b` may not be 0 for integers.
Tensor remainder(const Tensor& a, double b);

inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
inline Tensor operator+(const Tensor& a, double b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, double b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, double b) { return mul(a, b); }
inline Tensor operator/(const Tensor& a, double b) { return div(a, b); }
inline Tensor operator+(double a, const Tensor& b) { return add(b, a); }
inline Tensor operator-(double a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(double a, const Tensor& b) { return mul(b, a); }
inline Tensor operator/(double a, const Tensor& b) { return div(a, b); }

/// Comparisons give bool.
Tensor eq(const Tensor& a, const Tensor& b);
Tensor ne(const Tensor& a, const Tensor& b);
Tensor lt(const Tensor& a, const Tensor& b);
Tensor le(const Tensor& a, const Tensor& b);
Tensor gt(const Tensor& a, const Tensor& b);
Tensor ge(const Tensor& a, const Tensor& b);
Tensor eq(const Tensor& a, double b);
Tensor ne(const Tensor& a, double b);
Tensor lt(const Tensor& a, double b);
Tensor le(const Tensor& a, double b);
Tensor gt(const Tensor& a, double b);
Tensor ge(const Tensor& a, double b);
/// Of bool tensors.
Tensor logical_not(const Tensor& x);
Tensor logical_and(const Tensor& a, const Tensor& b);
Tensor logical_or(const Tensor& a, const Tensor& b);

/// condition (bool) ? a : b, all three broadcast.
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
Tensor where(const Tensor& condition, const Tensor& a, double b);
Tensor where(const Tensor& condition, double a, const Tensor& b);
/// x with `value` where mask (bool, broadcast to x) is true.
Tensor masked_fill(const Tensor& x, const Tensor& mask, double value);

/// Unary functions: floating dtypes; neg, abs, sign, square, relu and clamp take integers too.
Tensor neg(const Tensor& x);
inline Tensor operator-(const Tensor& x) { return neg(x); }
/// The derivative at 0 is 0.
Tensor abs(const Tensor& x);
Tensor sign(const Tensor& x);
Tensor exp(const Tensor& x);
Tensor log(const Tensor& x);
Tensor sqrt(const Tensor& x);
Tensor rsqrt(const Tensor& x);
Tensor reciprocal(const Tensor& x);
Tensor square(const Tensor& x);
Tensor sin(const Tensor& x);
Tensor cos(const Tensor& x);
Tensor tanh(const Tensor& x);
Tensor erf(const Tensor& x);
Tensor sigmoid(const Tensor& x);
/// The derivative at 0 is 0.
Tensor relu(const Tensor& x);
/// x Phi(x). Hendrycks & Gimpel, 2016.
Tensor gelu(const Tensor& x);
/// Its approximation by tanh, as in GPT-2.
Tensor gelu_tanh(const Tensor& x);
/// x sigmoid(x).
Tensor silu(const Tensor& x);
/// silu(gate) * x, the gate of SwiGLU (Shazeer, 2020), with one kernel each way on a GPU; gate and x of one floating dtype and shape.
Tensor fused_swiglu(const Tensor& gate, const Tensor& x);
/// log(1 + exp(beta x)) / beta, a smooth relu: x where beta x is large. Throws Error unless beta > 0. Dugas et al., 2001.
Tensor softplus(const Tensor& x, double beta = 1);
/// log(1 + x) and exp(x) - 1, accurate near 0.
Tensor log1p(const Tensor& x);
Tensor expm1(const Tensor& x);
/// The whole number at or below x, at or above it, and next to it, where halves go to the even one. The derivative is 0.
Tensor floor(const Tensor& x);
Tensor ceil(const Tensor& x);
Tensor round(const Tensor& x);
/// Limited to [low, high]; the gradient passes inside and on the bounds. Throws Error if low > high.
Tensor clamp(const Tensor& x, double low, double high);

/// In place, outside autograd; b is broadcast to target and must have its dtype. Return target.
Tensor add_(const Tensor& target, const Tensor& b);
Tensor sub_(const Tensor& target, const Tensor& b);
Tensor mul_(const Tensor& target, const Tensor& b);
/// Floating targets.
Tensor div_(const Tensor& target, const Tensor& b);
Tensor add_(const Tensor& target, double b);
Tensor sub_(const Tensor& target, double b);
Tensor mul_(const Tensor& target, double b);
Tensor div_(const Tensor& target, double b);

/// x summed over the dimensions that broadcasting `shape` to x's shape repeats: the gradient of a broadcast.
Tensor sum_to(const Tensor& x, const Shape& shape);

}  // namespace tern
