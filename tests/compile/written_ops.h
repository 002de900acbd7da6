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
/// x (B, C, ...), whose channels are normalized; gamma and beta (C, 1, ...).
inline Tensor batch_norm_of_ops(const Tensor& x, const Tensor& gamma, const Tensor& beta) {
  const Dims dims = x.dims() == 4 ? Dims{0, 2, 3} : Dims{0, 2};
  const Tensor wide = cast(x, DType::f32), centered = wide - mean(wide, dims, true);
  return cast(centered * rsqrt(mean(centered * centered, dims, true) + 1e-5) * gamma + beta, x.dtype());
}
inline Tensor gelu_of_ops(const Tensor& x) { return x * 0.5 * (tanh((x + x * x * x * 0.044715) * 0.7978845608) + 1); }

}  // namespace tern::test
