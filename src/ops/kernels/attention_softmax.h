#pragma once
#include "tensor/view.h"

namespace tern::kernels {

/// A key whose padding is this or less is hidden regardless of its score: masks of -inf, of -1e30 and of f16's lowest number mean the same.
inline constexpr float hidden_padding = -1e4f;

/// Attention mask: the keys that a query sees. In scores (B, ..., T, S) query t of batch row b sees key s if all of these hold:
///   s < key_lengths[b]
///   not causal, or s <= t + S - T, or s < prefix[b]
///   window == 0, or s > t + S - T - window
///   padding[b, s] > hidden_padding
/// A query that sees no key gives zeros, and its gradients are zeros.
struct AttentionMask {
  View padding;             ///< (B, S), f32 (f64 for f64 scores), contiguous, added to the scores; no data: nothing is added
  View prefix;              ///< (B), i64, contiguous; no data: all 0. Only with `causal`
  View key_lengths;         ///< (B), i64, contiguous; no data: all S
  std::int64_t window = 0;  ///< number of keys that a query sees, its own included; 0: no limit. Only with `causal`
  bool causal = false;
};

/// y = softmax(x + padding) over the columns that a row sees, and 0 in the others; a row that sees no column, or only scores of -inf, is 0.
/// x (B, ..., T, S), at least two dimensions, contiguous, floating; y likewise, and may be x.
void attention_softmax(Cpu, const View& x, const AttentionMask& mask, const View& y);
/// CUDA takes no key_lengths and no window.
void attention_softmax(Cuda, const View& x, const AttentionMask& mask, const View& y);

/// dx = y (g - sum(g y)) for each row of (..., S); everything contiguous and of one dtype. dx may be y or g.
void attention_softmax_grad(Cpu, const View& y, const View& g, const View& dx);
void attention_softmax_grad(Cuda, const View& y, const View& g, const View& dx);

}  // namespace tern::kernels
