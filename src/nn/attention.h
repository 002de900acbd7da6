#pragma once
#include "nn/kv_cache.h"
#include "nn/layers.h"
#include "ops/attention.h"
#include "ops/rope.h"

namespace tern::nn {

/// The mask with its padding converted to the form that kernels take: for a mask that several layers share.
AttentionMask shared_by_layers(const AttentionMask& mask);

/// Options of MultiHeadAttention.
struct AttentionOptions {
  std::int64_t heads = 1;     ///< query heads
  std::int64_t kv_heads = 0;  ///< heads of keys and values, which groups of query heads share (Ainslie et al., 2023); 0: as many as heads
  std::int64_t head_dim = 0;  ///< elements of a head; 0: width / heads
  double dropout = 0;         ///< dropout of the probabilities
  bool bias = true;           ///< biases of the projections
  bool cross = false;         ///< cross attention: queries from x, keys and values from a memory
  Tensor rope = {};           ///< table of rope_table, which rotates queries and keys; self attention only
  RopePairs rope_pairs = RopePairs::adjacent;  ///< see RopePairs
  Device device = default_device();            ///< device of the parameters
};

/// Multi-head attention: scaled_dot_product_attention over `heads` heads, then a projection. Vaswani et al., 2017. Self attention has one
/// fused projection `qkv` ((heads + 2 kv_heads) head_dim, width); cross attention has `query` and `key_value`.
struct MultiHeadAttention final : Callable<MultiHeadAttention> {
  MultiHeadAttention() = default;
  /// Throws Error unless kv_heads divides heads, and heads divides the width if no head_dim is given.
  MultiHeadAttention(std::int64_t width, const AttentionOptions& options);
  void visit(Visitor& v) override;
  /// Self attention: x (B, T, width) -> (B, T, width).
  Tensor forward(const Tensor& x, const AttentionMask& mask = {}) const;
  /// Cross attention: x (B, T, width), memory (B, S, width) -> (B, T, width).
  Tensor forward(const Tensor& x, const Tensor& memory, const AttentionMask& mask = {}) const;
  /// The heads' results before `proj`, for a caller that adds its bias later. Without a memory: self attention. With a cache, the tokens of
  /// x are appended to those in it.
  Tensor heads_joined(const Tensor& x, const Tensor& memory, const AttentionMask& mask, const LayerCache* cache = nullptr) const;

  std::optional<Linear> qkv;        ///< self attention: projection to queries, keys and values, in this order
  std::optional<Linear> query;      ///< cross attention: width -> heads head_dim
  std::optional<Linear> key_value;  ///< cross attention: width -> 2 kv_heads head_dim
  Linear proj;                      ///< heads head_dim -> width
  AttentionOptions options;         ///< with kv_heads and head_dim filled in
};

}  // namespace tern::nn
