#pragma once
#include "tensor/tensor.h"

namespace tern {

/// @file
/// A fused_ op computes what the op without the prefix does, in one kernel each way; that one, a composition of other ops, is its
/// reference.

/// exp(x) / sum(exp(x)) along a dimension, without overflow. A slice that is -inf throughout gives NaN, as the formula does. A
/// composition of ops; the softmax kernels are those of attention scores, behind fused_attention_softmax (ops/attention_softmax.h).
Tensor softmax(const Tensor& x, int dim = -1);
/// log(softmax(x)), accurate where softmax underflows.
Tensor log_softmax(const Tensor& x, int dim = -1);

/// @{
/// (x - mean) / sqrt(var + eps) * gamma + beta over the last dimension of x (..., N); gamma and beta are (N) or undefined. The variance is
/// the biased one. Throws Error unless eps > 0, as all norms do. Ba, Kiros & Hinton, 2016.
Tensor layer_norm(const Tensor& x, const Tensor& gamma, const Tensor& beta, double eps = 1e-5);
Tensor fused_layer_norm(const Tensor& x, const Tensor& gamma, const Tensor& beta, double eps = 1e-5);
/// @}
/// @{
/// x / sqrt(mean(x^2) + eps) * gamma over the last dimension. Zhang & Sennrich, 2019.
Tensor rms_norm(const Tensor& x, const Tensor& gamma, double eps = 1e-5);
Tensor fused_rms_norm(const Tensor& x, const Tensor& gamma, double eps = 1e-5);
/// @}

/// layer_norm over each of `groups` runs of channels of x (B, C, ...), all their positions together, then * gamma + beta by channel; gamma
/// and beta are (C) or undefined. Throws Error unless `groups` divides C. Wu & He, "Group Normalization", 2018.
Tensor group_norm(const Tensor& x, std::int64_t groups, const Tensor& gamma, const Tensor& beta, double eps = 1e-5);

/// Bias and dropout of a branch, before it joins the residual stream.
struct BranchOptions {
  Tensor bias = {};      ///< (N)
  double dropout = 0;    ///< probability, in [0, 1)
  bool training = true;  ///< dropout asks it
};
/// The residual stream after a branch, and its norm, the next layer's input.
struct ResidualNorm {
  Tensor sum;  ///< residual + dropout(x + bias)
  Tensor y;    ///< the sum, normalized
};
/// @{
/// A branch x (..., N) joins a residual stream of its shape, and the sum is normalized, as between two layers of a transformer.
ResidualNorm residual_layer_norm(const Tensor& x, const Tensor& residual, const Tensor& gamma, const Tensor& beta, double eps = 1e-5,
                                 const BranchOptions& branch = {});
ResidualNorm fused_residual_layer_norm(const Tensor& x, const Tensor& residual, const Tensor& gamma, const Tensor& beta, double eps = 1e-5,
                                       const BranchOptions& branch = {});
ResidualNorm residual_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& gamma, double eps = 1e-5,
                               const BranchOptions& branch = {});
ResidualNorm fused_residual_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& gamma, double eps = 1e-5,
                                     const BranchOptions& branch = {});
/// @}

}  // namespace tern
