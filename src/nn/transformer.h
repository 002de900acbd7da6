#pragma once
#include "nn/attention.h"
#include "ops/checkpoint.h"

namespace tern::nn {

struct FeedForwardOptions {
  Activation activation = Activation::gelu;
  bool gated = false;  ///< proj(activation(gate(x)) * fc(x)); with silu it is SwiGLU (Shazeer, 2020)
  bool bias = true;
  double dropout = 0;  ///< of the hidden units, after the activation and the gate
  Device device = default_device();
};

/// proj(drop(activation(fc(x)))): width -> hidden -> width.
struct FeedForward final : Module {
  FeedForward() = default;
  FeedForward(std::int64_t width, std::int64_t hidden, const FeedForwardOptions& options = {});
  void visit(Visitor& v) override;
  /// Without proj's bias for a caller that adds it in a kernel of its own: see ResidualStream.
  Tensor forward(const Tensor& x, bool adds_bias = true) const;

  Linear fc, proj;
  std::optional<Linear> gate;
  Dropout drop;
  Activation activation = Activation::gelu;
};

/// A residual stream (B, T, width) and a branch that is to join it. With fused kernels the branch waits, so that its bias,
/// its dropout, the addition and the norm that follows are one kernel; else it joins at once.
class ResidualStream {
 public:
  explicit ResidualStream(Tensor x, bool use_fused_kernel = false) : x_(std::move(x)), fused_(use_fused_kernel) {}
  /// x + drop(proj(branch)), sooner or later.
  void add(const Tensor& branch, const Linear& proj, const Dropout& drop);
  /// x + drop(ff(branch)), sooner or later.
  void add(const Tensor& branch, const FeedForward& ff, const Dropout& drop);
  /// The norm of the stream, with all that was added.
  Tensor normalized(const Norm& norm);
  /// The stream, with all that was added.
  Tensor value();
  /// add(stream), which adds to a stream like this one, with its activations as the policy says: see ops/checkpoint.h. `inputs` are tensors
  /// that it reads as well, and are handed to it.
  void checkpointed(CheckpointPolicy policy, const Tensors& inputs, std::function<void(ResidualStream&, const Tensors& inputs)> add);

 private:
  void wait(const Tensor& product, const Tensor& bias, const Dropout& drop);

  Tensor x_, waiting_;
  BranchOptions options_;  ///< of the branch that waits
  bool fused_;
};

struct TransformerLayerOptions {
  std::int64_t width = 256, heads = 8;
  std::int64_t kv_heads = 0;      ///< of self attention; 0: as many as heads
  std::int64_t head_dim = 0;      ///< elements of a head; 0: width / heads
  std::int64_t ff = 1024;         ///< hidden units of the feed-forward part; 0: attention alone, without norm2 and ff
  double dropout = 0.1;           ///< of each residual branch
  double attention_dropout = -1;  ///< of attention probabilities; -1: as `dropout`
  double activation_dropout = 0;  ///< of the feed-forward part's hidden units; -1: as `dropout`
  Activation activation = Activation::gelu;
  bool gated = false;  ///< the feed-forward part; see FeedForwardOptions
  NormKind norm = NormKind::layer;
  double layer_norm_eps = 1e-5;
  bool bias = true;  ///< of the linear layers and norms
  Tensor rope = {};  ///< of rope_table: queries and keys of self attention are rotated by it
  RopePairs rope_pairs = RopePairs::adjacent;
  bool cross = false;  ///< adds attention to a memory between the other two
  Device device = default_device();
};

/// A pre-LN layer, as in GPT-2: x + attn(norm1(x)), with `cross` x + cross_attn(norm_cross(x), memory), x +
/// ff(norm2(x)).
struct TransformerLayer final : Module {
  TransformerLayer() = default;
  explicit TransformerLayer(const TransformerLayerOptions& options);
  void visit(Visitor& v) override;
  /// x (B, T, width) -> (B, T, width).
  Tensor forward(const Tensor& x, const AttentionMask& mask = {}) const;
  /// Several layers pass one stream on, so that each fuses with the next. With a cache the tokens of x join those that it has.
  void forward(ResidualStream& x, const AttentionMask& mask, const Tensor& memory = {}, const AttentionMask& memory_mask = {},
               const LayerCache* cache = nullptr) const;
  /// With a memory (B, S, width). Throws Error unless the layer has `cross`.
  Tensor forward(const Tensor& x, const AttentionMask& mask, const Tensor& memory, const AttentionMask& memory_mask) const;

  Norm norm1, norm2;
  MultiHeadAttention attn;
  std::optional<Norm> norm_cross;
  std::optional<MultiHeadAttention> cross_attn;
  FeedForward ff;
  Dropout drop;
};

}  // namespace tern::nn
