#pragma once
#include "tensor/tensor.h"

namespace tern {

/// exp(x) / sum(exp(x)) along a dimension, without overflow. A slice that is -inf throughout gives NaN, as the formula does.
Tensor softmax(const Tensor& x, int dim = -1);
/// log(softmax(x)), accurate where softmax underflows.
Tensor log_softmax(const Tensor& x, int dim = -1);

/// (x - mean) / sqrt(var + eps) * gamma + beta over the last dimension of x (..., N); gamma and beta are (N) or undefined. The variance is the
/// biased one. Ba, Kiros & Hinton, 2016.
Tensor layer_norm(const Tensor& x, const Tensor& gamma, const Tensor& beta, double eps = 1e-5);
/// x / sqrt(mean(x^2) + eps) * gamma over the last dimension. Zhang & Sennrich, 2019.
Tensor rms_norm(const Tensor& x, const Tensor& gamma, double eps = 1e-5);

}  // namespace tern
