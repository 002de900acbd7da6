#pragma once
#include <string_view>

#include "autodiff/node.h"

namespace tern {

/// Einstein summation, as in NumPy: einsum("bij,bjk->bik", {a, b}). A letter names a dimension and has one size wherever it occurs; letters
/// that the result lacks are summed, and a letter twice in one operand takes its diagonal. An ellipsis, as in "...ij,jk->...ik", is all
/// dimensions without a letter; they are broadcast, matched from the last, and summed if the result has no ellipsis. Without "->" the
/// result has the ellipsis and the letters that occur once, in alphabetical order. Operands are joined from left to right, each by one
/// matrix product, or by mul where nothing is summed; dimensions that one operand alone has are summed first. Dtypes are promoted; a sum of
/// one integer operand is i64, a product of several keeps its dtype and wraps. Throws Error that names the subscripts and the sizes that
/// differ.
Tensor einsum(std::string_view subscripts, TensorList operands);

/// Dot product of two vectors (N): ().
Tensor dot(const Tensor& a, const Tensor& b);
/// Outer product a[i] b[j] of vectors (M) and (N): (M, N). Throws Error for other shapes.
Tensor outer(const Tensor& a, const Tensor& b);
/// Sum of the diagonal of x (..., N, M): (...).
Tensor trace(const Tensor& x);

}  // namespace tern
