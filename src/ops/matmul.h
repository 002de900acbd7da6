#pragma once
#include <string_view>

#include "tensor/context.h"
#include "tensor/tensor.h"

namespace tern {

/// `scale` times the matrix products of a (..., M, K) and b (..., K, N): (..., M, N), with batch dimensions broadcast. A vector a is (1,
/// K), a vector b is (K, 1), and the added dimension is dropped from the result. Strided operands are read without a copy where the GEMM
/// can take them. One floating dtype, where float32 is strict unless MatmulPrecisionMode says otherwise; or, on the CPU with a scale
/// of 1, one integer dtype, whose results wrap. Throws Error that names both shapes.
Tensor matmul(const Tensor& a, const Tensor& b, double scale = 1);

/// True if the device computes float32 products in that precision; otherwise it uses fp32.
bool has_matmul_precision(MatmulPrecision precision, Device device);

/// x (..., in) times weight (out, in) transposed, plus bias (out) if defined: (..., out).
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

/// gelu_tanh(linear(x, weight, bias)), fused: bias and GELU are the epilogue of the GEMM where the device can do so, and backward computes
/// GELU's derivative and the bias gradient in one kernel.
Tensor linear_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

/// Feed-forward block, linear(linear_gelu(x, fc_weight, fc_bias), proj_weight, proj_bias), fused: x (..., in), fc_weight (hidden, in),
/// fc_bias (hidden), proj_weight (out, hidden), proj_bias (out); biases may be undefined -> (..., out). In backward, GELU's derivative and
/// the sum for fc_bias's gradient are the epilogue of the GEMM that computes the gradient of the hidden units, where the device can do so.
Tensor feed_forward_gelu(const Tensor& x, const Tensor& fc_weight, const Tensor& fc_bias, const Tensor& proj_weight,
                         const Tensor& proj_bias = {});

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
