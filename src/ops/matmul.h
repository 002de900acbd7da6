#pragma once
#include "tensor/context.h"
#include "tensor/tensor.h"

namespace tern {

/// `scale` times the matrix products of a (..., M, K) and b (..., K, N): (..., M, N), with batch dimensions broadcast. A vector a is (1,
/// K), a vector b is (K, 1), and the added dimension is dropped. Operands keep their strides where a product can take them. Floating
/// dtypes, both the same; float32 is strict unless context().matmul_precision says otherwise. Throws Error that names both shapes.
Tensor matmul(const Tensor& a, const Tensor& b, double scale = 1);

/// Whether the device computes float32 products so; where it does not, it takes fp32.
bool has_matmul_precision(MatmulPrecision precision, Device device);

/// x (..., in) times weight (out, in) transposed, plus bias (out) if defined: (..., out).
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

/// gelu_tanh(linear(x, weight, bias)), fused: the bias and GELU are added to the product where the device can, and GELU's derivative and
/// the bias's gradient are one kernel.
Tensor linear_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

}  // namespace tern
