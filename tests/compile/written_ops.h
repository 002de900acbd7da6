#pragma once
#include "ops/pointwise.h"
#include "ops/reduce.h"

// Functions of which the library has kernels, written in plain ops, as a user writes them.
namespace tern::test {

inline Tensor softmax_of_ops(const Tensor& x) {
  const Tensor e = exp(x - max(x, -1, true));
  return e / sum(e, -1, true);
}
inline Tensor norm_of_ops(const Tensor& x) {
  const Tensor centered = x - mean(x, -1, true);
  return centered * rsqrt(mean(centered * centered, -1, true) + 1e-5);
}
inline Tensor layer_norm_of_ops(const Tensor& x, const Tensor& gamma, const Tensor& beta) { return norm_of_ops(x) * gamma + beta; }
inline Tensor gelu_of_ops(const Tensor& x) { return x * 0.5 * (tanh((x + x * x * x * 0.044715) * 0.7978845608) + 1); }

}  // namespace tern::test
