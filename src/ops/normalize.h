#pragma once
#include "tensor/tensor.h"

namespace tern {

// A fused_ op computes what the op without the prefix does, in one kernel each way; that one, a composition of other ops, is its
// reference.

/// exp(x) / sum(exp(x)) along a dimension, without overflow. A slice that is -inf throughout gives NaN, as the formula does.
Tensor softmax(const Tensor& x, int dim = -1);
/// log(softmax(x)), accurate where softmax underflows.
Tensor log_softmax(const Tensor& x, int dim = -1);

/// Which keys a row of attention scores (B, ..., T, S) sees. Row t sees key s if s <= t + S - T or s < prefix[b] (every key
/// unless `causal`), and if the padding does not hide it.
struct SoftmaxMask {
  bool causal = false;
  Tensor padding = {};  ///< (B, S): bool, true where a key is hidden, or floating, added to the scores; -1e4 or less hides the key
  Tensor prefix = {};   ///< (B), i64; needs `causal`
};
/// Softmax of scores (B, ..., T, S) over the keys that each row sees, 0 at the others; a row that sees none is 0, and so is its
/// gradient. At least two dimensions, three with padding or a prefix. Throws Error if shapes, dtypes or devices do not fit.
Tensor attention_softmax(const Tensor& scores, const SoftmaxMask& mask = {});
/// As attention_softmax; moreover a row that sees only scores of -inf is 0. One read of the scores, no mask in memory. Wang et al.,
/// "LightSeq2", 2021, has the idea.
Tensor fused_attention_softmax(const Tensor& scores, const SoftmaxMask& mask = {});

/// (x - mean) / sqrt(var + eps) * gamma + beta over the last dimension of x (..., N); gamma and beta are (N) or undefined. The variance is
/// the biased one. Ba, Kiros & Hinton, 2016.
Tensor layer_norm(const Tensor& x, const Tensor& gamma, const Tensor& beta, double eps = 1e-5);
Tensor fused_layer_norm(const Tensor& x, const Tensor& gamma, const Tensor& beta, double eps = 1e-5);
/// x / sqrt(mean(x^2) + eps) * gamma over the last dimension. Zhang & Sennrich, 2019.
Tensor rms_norm(const Tensor& x, const Tensor& gamma, double eps = 1e-5);
Tensor fused_rms_norm(const Tensor& x, const Tensor& gamma, double eps = 1e-5);

/// What happens to a branch before it joins the residual stream.
struct BranchOptions {
  Tensor bias = {};    ///< (N)
  double dropout = 0;  ///< probability, in [0, 1)
  bool training = true;
};
struct ResidualNorm {
  Tensor sum;  ///< residual + dropout(x + bias)
  Tensor y;    ///< the sum, normalized
};
/// A branch x (..., N) joins a residual stream of its shape, and the sum is normalized: what stands between two layers of a
/// transformer.
ResidualNorm residual_layer_norm(const Tensor& x, const Tensor& residual, const Tensor& gamma, const Tensor& beta, double eps = 1e-5,
                                 const BranchOptions& branch = {});
ResidualNorm fused_residual_layer_norm(const Tensor& x, const Tensor& residual, const Tensor& gamma, const Tensor& beta, double eps = 1e-5,
                                       const BranchOptions& branch = {});
ResidualNorm residual_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& gamma, double eps = 1e-5,
                               const BranchOptions& branch = {});
ResidualNorm fused_residual_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& gamma, double eps = 1e-5,
                                     const BranchOptions& branch = {});

}  // namespace tern
