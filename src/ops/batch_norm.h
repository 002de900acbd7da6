#pragma once
#include "tensor/tensor.h"

namespace tern {

/// @file
/// Batch normalization of x (B, C) or (B, C, ...) by channel: (x - mean) / sqrt(variance + eps) * gamma + beta. gamma and beta are (C) or
/// undefined, of x's dtype or, for x of 16 bits, f32. Ioffe & Szegedy, 2015. Sums are in f32 (f64 for f64). Composed of other ops, except
/// for training in f32 and f64 on the CPU, which has kernels.

/// The result of batch_norm() in training, with the statistics of the batch.
struct BatchNormResult {
  Tensor y;         ///< normalized x, of its shape and dtype
  Tensor mean;      ///< (C) of the batch; f32 for x of 16 bits; differentiable
  Tensor variance;  ///< (C) of the batch, biased; f32 for x of 16 bits; differentiable
};
/// Training: normalizes by the mean and the variance of x itself, over all dimensions but C. Throws Error if shapes or dtypes do not fit,
/// unless eps > 0, and for channels without elements.
BatchNormResult batch_norm(const Tensor& x, const Tensor& gamma, const Tensor& beta, double eps = 1e-5);
/// Evaluation: normalizes by the given mean and variance, (C) of any floating dtype.
Tensor batch_norm(const Tensor& x, const Tensor& mean, const Tensor& variance, const Tensor& gamma, const Tensor& beta, double eps = 1e-5);

}  // namespace tern
