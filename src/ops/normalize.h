#pragma once
#include "tensor/tensor.h"

namespace tern {

/// @file
/// layer_norm, rms_norm and their residual forms are one kernel each way or, in a PlainKernels scope, compositions of other ops.

/// exp(x) / sum(exp(x)) along a dimension, without overflow. A slice that is -inf throughout gives NaN, as the formula does. Composed of
/// other ops; the softmax kernels are those of attention scores, in attention_softmax (ops/attention.h).
Tensor softmax(const Tensor& x, int dim = -1);
/// log(softmax(x)), accurate where softmax underflows.
Tensor log_softmax(const Tensor& x, int dim = -1);

/// Layer normalization, (x - mean) / sqrt(var + eps) * gamma + beta over the last dimension of x (..., N); gamma and beta are (N) or
/// undefined. The variance is biased. Throws Error unless eps > 0, as all norms do. Ba, Kiros & Hinton, 2016.
Tensor layer_norm(const Tensor& x, const Tensor& gamma, const Tensor& beta, double eps = 1e-5);
/// RMS normalization, x / sqrt(mean(x^2) + eps) * gamma over the last dimension. Zhang & Sennrich, 2019.
Tensor rms_norm(const Tensor& x, const Tensor& gamma, double eps = 1e-5);

/// Group normalization: layer_norm over each of `groups` groups of adjacent channels of x (B, C, ...), over all their positions together,
/// then * gamma + beta by channel; gamma and beta are (C) or undefined. Throws Error unless `groups` divides C. Wu & He, "Group
/// Normalization", 2018.
Tensor group_norm(const Tensor& x, std::int64_t groups, const Tensor& gamma, const Tensor& beta, double eps = 1e-5);
/// Instance normalization: group_norm of x (B, C, ...) with a group for each channel, so over the positions of one channel of one element
/// of the batch. At least three dimensions. Ulyanov et al., "Instance Normalization", 2016.
Tensor instance_norm(const Tensor& x, const Tensor& gamma = {}, const Tensor& beta = {}, double eps = 1e-5);

// Batch normalization of x (B, C) or (B, C, ...) by channel: (x - mean) / sqrt(variance + eps) * gamma + beta. gamma and beta are (C) or
// undefined, of x's dtype or, for x of 16 bits, f32. Ioffe & Szegedy, 2015. Sums are in f32 (f64 for f64). Composed of other ops, except
// for training in f32 and f64 on the CPU, which has kernels.

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

/// Bias and dropout of a branch, before it is added to the residual stream.
struct BranchOptions {
  Tensor bias = {};      ///< (N)
  double dropout = 0;    ///< probability, in [0, 1)
  bool training = true;  ///< dropout is applied only while training
};
/// The residual stream after a branch, and its norm, the next layer's input.
struct ResidualNorm {
  Tensor sum;  ///< residual + dropout(x + bias)
  Tensor y;    ///< the sum, normalized
};
/// @{
/// Adds a branch x (..., N) to a residual stream of its shape and normalizes the sum, as between two layers of a transformer.
ResidualNorm residual_layer_norm(const Tensor& x, const Tensor& residual, const Tensor& gamma, const Tensor& beta, double eps = 1e-5,
                                 const BranchOptions& branch = {});
ResidualNorm residual_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& gamma, double eps = 1e-5,
                               const BranchOptions& branch = {});
/// @}

namespace detail {
/// A slice that is -inf throughout: NaN, as the formula of softmax gives, or 0, as attention has it for a query that sees no key.
enum class Hidden { is_undefined, is_zero };
/// softmax of a floating x of at least one dimension.
Tensor softmax(const Tensor& x, int dim, Hidden hidden);
/// Gradient of softmax over a dimension, in ops, from its result p and the gradient g of that: p (g - sum(g p)).
Tensor softmax_gradient(const Tensor& p, const Tensor& g, int dim);
}  // namespace detail

}  // namespace tern
