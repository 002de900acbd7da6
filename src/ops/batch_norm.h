#pragma once
#include "tensor/tensor.h"

namespace tern {

/// @file
/// Batch normalization of x (B, C) or (B, C, ...) by channel: (x - mean) / sqrt(variance + eps) * gamma + beta. gamma and beta are (C) or
/// undefined, of x's dtype or, for x of 16 bits, f32. Ioffe & Szegedy, 2015. Sums are in f32 (f64 for f64). A composition of ops, but for
/// f32 and f64 on the CPU, where training has kernels.

/// The result of batch_norm() in training, with the statistics of the batch.
struct BatchNormResult {
  Tensor y;         ///< of x's shape and dtype
  Tensor mean;      ///< (C) of the batch; f32 for x of 16 bits, and differentiable as y is
  Tensor variance;  ///< (C), the biased one; dtype and gradient as the mean's
};
/// With the mean and the variance of x itself, over all dimensions but C: training. Throws Error if shapes or dtypes do not fit, for eps
/// that is not above 0, and for channels without elements.
BatchNormResult batch_norm(const Tensor& x, const Tensor& gamma, const Tensor& beta, double eps = 1e-5);
/// With a mean and a variance that are given, (C) of any floating dtype: evaluation.
Tensor batch_norm(const Tensor& x, const Tensor& mean, const Tensor& variance, const Tensor& gamma, const Tensor& beta, double eps = 1e-5);

}  // namespace tern
