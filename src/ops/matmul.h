#pragma once
#include "tensor/context.h"
#include "tensor/tensor.h"

namespace tern {

/// `scale` times the matrix products of a (..., M, K) and b (..., K, N): (..., M, N), with batch dimensions broadcast. A vector a is (1,
/// K), a vector b is (K, 1), and the added dimension is dropped. Operands keep their strides where a product can take them. One dtype:
/// a floating one, of which float32 is strict unless context().matmul_precision says otherwise, or, on the CPU with a scale of 1, an
/// integer one, whose results wrap. Throws Error that names both shapes.
Tensor matmul(const Tensor& a, const Tensor& b, double scale = 1);

/// Whether the device computes float32 products so; where it does not, it takes fp32.
bool has_matmul_precision(MatmulPrecision precision, Device device);

/// x (..., in) times weight (out, in) transposed, plus bias (out) if defined: (..., out).
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

/// gelu_tanh(linear(x, weight, bias)), fused: the bias and GELU are added to the product where the device can, and GELU's derivative and
/// the bias's gradient are one kernel.
Tensor linear_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

/// A feed-forward part, linear(linear_gelu(x, fc_weight, fc_bias), proj_weight, proj_bias), fused: x (..., in), fc_weight (hidden, in),
/// fc_bias (hidden), proj_weight (out, hidden), proj_bias (out); biases may be undefined -> (..., out). In backward the product that gives
/// the gradient of the hidden units takes it through GELU's derivative, and sums fc_bias's gradient, where the device can.
Tensor feed_forward_gelu(const Tensor& x, const Tensor& fc_weight, const Tensor& fc_bias, const Tensor& proj_weight,
                         const Tensor& proj_bias = {});

}  // namespace tern
