#pragma once
#include <optional>

#include "ops/attention_mask.h"

namespace tern {

/// Options of attention: of one call, and not of a module (nn/attention.h).
struct AttentionParams {
  AttentionMask mask = {};           ///< which keys a query sees
  Tensor bias = {};                  ///< of q's dtype, broadcast to (B, H, T, S), added to the scaled scores; it gets a gradient
  std::optional<double> scale = {};  ///< of q k^T; 1 / sqrt(D) if there is none
  double dropout = 0;                ///< of the probabilities, while training
  bool training = false;             ///< dropout asks it
  /// Packed sequences: sequence n of N has rows query_starts[n] up to query_starts[n + 1] of q (total, H, D), and likewise by key_starts of
  /// k and v (total, Hkv, D). (N + 1) of i64, from 0 to the total, ascending. Masks and bias are then those of a batch of N, with T =
  /// max_queries and S = max_keys, which no sequence is longer than; but a causal sequence ends with its own last query and key.
  Tensor query_starts = {};
  Tensor key_starts = {};        ///< (N + 1), i64; both are given, or neither
  std::int64_t max_queries = 0;  ///< of a packed sequence: the longest, or more
  std::int64_t max_keys = 0;     ///< of a packed sequence: the longest, or more
};

/// softmax(scale q k^T + bias + mask) v for every head: q (B, T, H, D), k and v (B, S, Hkv, D), any strides -> (B, T, H, D). Hkv divides H,
/// and head h takes the keys and values of head h / (H / Hkv). A query that sees no key gives zeros. Element i of the probabilities
/// (B, H, T, S) is dropped or not by draw i. Vaswani et al., 2017; Ainslie et al., "GQA", 2023. Throws Error for floating dtypes that
/// differ, shapes that do not fit, and on the CPU for starts that do not ascend within the rows.
Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionParams& params = {});
/// The same in tiles, in memory that grows with T and S and not with their product: for backward it keeps the inputs, the result and a
/// number for each query and head (Dao, "FlashAttention-2", 2023). Calls that no kernel of a GPU takes are composed, in chunks of queries
/// where scores are many; but with dropout, a prefix or packed sequences they are composed whole, in memory that grows with T S.
Tensor fused_scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionParams& params = {});

}  // namespace tern
