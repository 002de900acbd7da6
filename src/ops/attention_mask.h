#pragma once
#include "tensor/tensor.h"

namespace tern {

/// Attention mask: the keys that a query sees. In scores (B, ..., T, S) query t of batch row b sees key s if all of these hold:
///   not causal, or s <= t + S - T, or s < prefix[b]
///   no window, or s > t + S - T - window
///   s < key_lengths[b]
///   the padding does not hide the key
/// A query that sees no key gives zeros, and its gradients are zeros.
struct AttentionMask {
  bool causal = false;      ///< a query sees keys up to its own position; the last query is aligned to the last key
  Tensor padding = {};      ///< (B, S): bool, true where a key is hidden, or floating, added to the scores; -1e4 or less hides the key
  Tensor prefix = {};       ///< (B), i64; needs `causal`
  Tensor key_lengths = {};  ///< (B), i64
  std::int64_t window = 0;  ///< number of keys that a query sees, its own included; 0: no limit. Needs `causal`, excludes a prefix
};

}  // namespace tern
