#pragma once
#include <string_view>

#include "autodiff/node.h"

namespace tern {

/// Sums of products by subscripts, as in NumPy: einsum("bij,bjk->bik", {a, b}). A letter stands for a dimension of one size wherever it
/// occurs; those that the result does not name are summed, and one that an operand has twice is its diagonal. An ellipsis, as in
/// "...ij,jk->...ik", stands for the dimensions that have no letter, which are broadcast, matched from the last, and summed where the
/// result has none. Without "->" the result has the ellipsis and the letters that occur once, in alphabetical order. Operands go in from
/// left to right, each by one matrix product, or by mul where nothing is summed; dimensions of one operand alone are summed before. Dtypes
/// are promoted; a sum of one operand of integers is i64, a product of several stays as they are and wraps. Throws Error that names the
/// subscripts, and the sizes that differ.
Tensor einsum(std::string_view subscripts, TensorList operands);

/// The sum of a b of two vectors (N), and all products a[i] b[j] (M, N) of vectors (M) and (N).
Tensor dot(const Tensor& a, const Tensor& b);
/// All products a[i] b[j] of vectors (M) and (N): (M, N). Throws Error for other shapes.
Tensor outer(const Tensor& a, const Tensor& b);
/// The sum of the diagonal of x (..., N, M): (...).
Tensor trace(const Tensor& x);

}  // namespace tern
