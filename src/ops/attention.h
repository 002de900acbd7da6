#pragma once
#include "ops/attention_softmax.h"

namespace tern {

struct AttentionParams {
  SoftmaxMask mask = {};
  double dropout = 0;  ///< of the probabilities, while training
  bool training = false;
};

/// For every head softmax(q k^T / sqrt(D) + mask) v, where qkv (B, T, 3, H, D) holds queries, keys and values as a projection writes
/// them: (B, T, H, D). Vaswani et al., 2017. Throws Error for another number of dimensions, or a mask that does not fit.
Tensor self_attention(const Tensor& qkv, const AttentionParams& params = {});
/// The same with fused kernels. On a GPU, heads of 8, 16, .. 128 elements in a 16-bit dtype take flash attention, whose memory grows with T
/// alone (Dao, "FlashAttention-2", 2023). In float32, heads of 32 or 64 elements and up to 64 tokens take single-tile attention, one kernel
/// forward and one backward, which keep a head's scores on the chip and never write them; others take products and a fused softmax. A query
/// that sees no key gives zeros.
Tensor fused_self_attention(const Tensor& qkv, const AttentionParams& params = {});

}  // namespace tern
