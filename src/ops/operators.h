#pragma once
#include "ops/pointwise.h"

namespace tern {

/// @file
/// The operators of tensors beside + - * / (ops/pointwise.h). Each is the op that its definition calls.

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
