#pragma once
#include "tensor/view.h"

namespace tern::kernels {

/// A key whose padding is this or less is hidden, whatever its score: masks of -inf, of -1e30 and of f16's lowest number mean the same.
inline constexpr float hidden_padding = -1e4f;

/// Which columns of scores (B, ..., T, S) a row sees, and what is added to them. Row t of batch b sees column c if c <= t + S - T or
/// c < prefix[b] (all columns unless `causal`), and padding[b, c] > hidden_padding.
struct SoftmaxMask {
  View padding;  ///< (B, S), f32 (f64 for f64 scores), contiguous; no data: nothing is added
  View prefix;   ///< (B), i64, contiguous; no data: all 0. Only with `causal`
  bool causal = false;
};

/// y = softmax(x + padding) over the columns that a row sees, and 0 in the others; a row that sees nothing, or only scores of -inf,
/// is 0. x (B, ..., T, S), at least two dimensions, contiguous, floating; y alike, and may be x.
void attention_softmax(Cpu, const View& x, const SoftmaxMask& mask, const View& y);
void attention_softmax(Cuda, const View& x, const SoftmaxMask& mask, const View& y);

/// dx = y (g - sum(g y)) for each row of (..., S); everything contiguous and of one dtype. dx may be y or g.
void attention_softmax_grad(Cpu, const View& y, const View& g, const View& dx);
void attention_softmax_grad(Cuda, const View& y, const View& g, const View& dx);

}  // namespace tern::kernels
