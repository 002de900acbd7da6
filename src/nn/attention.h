#pragma once
#include "nn/layers.h"
#include "ops/normalize.h"

namespace tern::nn {

/// Which keys a query may see. All conditions hold together, but for the prefix, which opens what `causal` closes.
struct MaskOptions {
  bool causal = false;  ///< query i sees keys 0 .. i + (keys - queries): the last query sees all keys
  Tensor padding = {};  ///< (B, keys), bool: true where a key is padding, and hidden
  Tensor prefix = {};   ///< (B), i64: the first prefix[b] keys of row b are visible to all its queries; needs `causal`
};

/// A mask of one batch, shared by all layers. The tensors that plain and fused kernels take are each made when first asked for.
class AttentionMask {
 public:
  /// Hides nothing.
  AttentionMask() = default;
  /// On the device of the options' tensors, or on `device` if there are none; no host wait. Throws Error if shapes or dtypes do not fit.
  AttentionMask(const MaskOptions& options, std::int64_t queries, std::int64_t keys, DType dtype = DType::f32, Device device = cpu);
  static AttentionMask causal(std::int64_t length, DType dtype = DType::f32, Device device = cpu) {
    return AttentionMask({.causal = true}, length, length, dtype, device);
  }

  /// Added to the scores: (1 or B, 1, queries, keys), 0 where visible; undefined if nothing is hidden. See Note [Hidden
  /// scores].
  const Tensor& additive() const;
  /// The same for fused_attention_softmax, without a (B, 1, queries, keys) tensor.
  const SoftmaxMask& fused() const;
  const MaskOptions& options() const { return options_; }

 private:
  MaskOptions options_;
  std::int64_t queries_ = 0, keys_ = 0;
  DType dtype_ = DType::f32;
  Device device_ = cpu;
  mutable std::optional<Tensor> additive_;
  mutable std::optional<SoftmaxMask> fused_;
};

struct AttentionOptions {
  std::int64_t heads = 1;
  double dropout = 0;  ///< of the probabilities
  bool bias = true;
  bool cross = false;  ///< queries from x, keys and values from a memory
  Tensor rope = {};    ///< of rope_table: turns queries and keys; self attention only
  Device device = cpu;
};

/// softmax(Q K^T / sqrt(head_dim) + mask) V over `heads` heads, then a projection. Vaswani et al., 2017. Self attention
/// has one fused projection `qkv` (3 width, width); cross attention has `query` and `key_value`.
struct MultiHeadAttention final : Module {
  MultiHeadAttention() = default;
  /// Throws Error unless heads divides width.
  MultiHeadAttention(std::int64_t width, const AttentionOptions& options);
  void visit(Visitor& v) override;
  /// Self attention: x (B, T, width) -> (B, T, width).
  Tensor forward(const Tensor& x, const AttentionMask& mask = {}) const;
  /// Cross attention: x (B, T, width), memory (B, S, width) -> (B, T, width).
  Tensor forward(const Tensor& x, const Tensor& memory, const AttentionMask& mask = {}) const;
  /// The result before `proj`, for a caller that adds its bias later. Without a memory: self attention.
  Tensor heads_joined(const Tensor& x, const Tensor& memory, const AttentionMask& mask) const;

  std::optional<Linear> qkv, query, key_value;
  Linear proj;
  AttentionOptions options;
};

/// softmax(q k^T / sqrt(D) + mask) v: q (B, H, T, D), k and v (B, H, S, D), any strides -> (B, H, T, D). See Note [Hidden
/// scores] for queries that see no key.
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& mask = {}, double dropout = 0,
                 bool training = false);
/// The same with fused_attention_softmax: a query that sees no key gives zeros.
Tensor fused_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& mask = {}, double dropout = 0,
                       bool training = false);

}  // namespace tern::nn
