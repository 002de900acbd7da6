#pragma once
#include "tensor/tensor.h"

namespace tern {

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

}  // namespace tern
