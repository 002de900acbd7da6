#pragma once
#include "tensor/tensor.h"

namespace tern {

/// Attention mask: which keys a query sees of scores (B, ..., T, S): query t of batch row b sees key s where all of these hold.
///   not causal, or s <= t + S - T, or s < prefix[b]
///   no window, or s > t + S - T - window
///   s < key_lengths[b]
///   the padding does not hide the key
/// A query that sees no key gives zeros, and its gradients are zeros.
struct AttentionMask {
  bool causal = false;      ///< a query sees keys up to its own place, counted from the end of both
  Tensor padding = {};      ///< (B, S): bool, true where a key is hidden, or floating, added to the scores; -1e4 or less hides the key
  Tensor prefix = {};       ///< (B), i64; needs `causal`
  Tensor key_lengths = {};  ///< (B), i64
  std::int64_t window = 0;  ///< keys up to its own that a query sees; 0: all of them. Needs `causal`, and allows no prefix
};

}  // namespace tern
