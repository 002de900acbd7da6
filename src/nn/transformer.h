#pragma once
#include "nn/attention.h"
#include "ops/checkpoint.h"

namespace tern::nn {

/// Options of FeedForward.
struct FeedForwardOptions {
  Activation activation = Activation::gelu;  ///< activation of the hidden units
  bool gated = false;                        ///< proj(activation(gate(x)) * fc(x)); with silu it is SwiGLU (Shazeer, 2020)
  bool bias = true;                          ///< bias of the linear layers
  double dropout = 0;                        ///< dropout of the hidden units, after activation and gate
  Device device = default_device();          ///< device of the parameters
};

/// Feed-forward block, proj(drop(activation(fc(x)))): width -> hidden -> width.
struct FeedForward final : Callable<FeedForward> {
  FeedForward() = default;
  /// Creates a block with `hidden` hidden units. Throws Error for sizes below 1.
  FeedForward(std::int64_t width, std::int64_t hidden, const FeedForwardOptions& options = {});
  void visit(Visitor& v) override;
  /// x (..., width) -> (..., width); without proj's bias for a caller that adds it in its own kernel: see ResidualStream.
  Tensor forward(const Tensor& x, bool adds_bias = true) const;

  Linear fc;                                 ///< width -> hidden
  Linear proj;                               ///< hidden -> width
  std::optional<Linear> gate;                ///< width -> hidden, if gated
  Dropout drop;                              ///< dropout of the hidden units
  Activation activation = Activation::gelu;  ///< see FeedForwardOptions
};

/// Residual stream (B, T, width), and a branch that is still to be added. With fused kernels a branch is deferred, so that its bias, its
/// dropout, the addition and the norm that follows are one kernel; otherwise it is added at once.
class ResidualStream {
 public:
  /// Starts from x (B, T, width), the embeddings.
  explicit ResidualStream(Tensor x, bool use_fused_kernel = false) : x_(std::move(x)), fused_(use_fused_kernel) {}
  /// Adds drop(proj(branch)) to the stream: at once, or with fused kernels in the kernel of the next norm.
  void add(const Tensor& branch, const Linear& proj, const Dropout& drop);
  /// Adds drop(ff(branch)) to the stream, likewise.
  void add(const Tensor& branch, const FeedForward& ff, const Dropout& drop);
  /// Norm of the stream, with all branches added.
  Tensor normalized(const Norm& norm);
  /// The stream, with all branches added.
  Tensor value();
  /// Runs add(stream), which adds to a stream like this one, with activation checkpointing by the policy: see ops/checkpoint.h. `inputs`
  /// are further tensors that it reads; they are passed to it.
  void checkpointed(CheckpointPolicy policy, const Tensors& inputs, std::function<void(ResidualStream&, const Tensors& inputs)> add);

 private:
  /// Keeps a branch, without its bias, for the kernel of the next norm.
  void defer(const Tensor& product, const Tensor& bias, const Dropout& drop);

  Tensor x_, pending_;
  BranchOptions options_;  ///< options of the pending branch
  bool fused_;
};

/// Options of TransformerLayer.
struct TransformerLayerOptions {
  std::int64_t width = 256;                    ///< size of a token's vector
  std::int64_t heads = 8;                      ///< attention heads
  std::int64_t kv_heads = 0;                   ///< key and value heads of self attention; 0: as many as heads
  std::int64_t head_dim = 0;                   ///< elements of a head; 0: width / heads
  std::int64_t ff = 1024;                      ///< hidden units of the feed-forward block; 0: no feed-forward block, only attention
  double dropout = 0.1;                        ///< dropout of each residual branch
  double attention_dropout = -1;               ///< dropout of attention probabilities; -1: as `dropout`
  double activation_dropout = 0;               ///< dropout of the feed-forward block's hidden units; -1: as `dropout`
  Activation activation = Activation::gelu;    ///< activation of the feed-forward block
  bool gated = false;                          ///< gated feed-forward block; see FeedForwardOptions
  NormKind norm = NormKind::layer;             ///< kind of norm1, norm_cross and norm2
  double layer_norm_eps = 1e-5;                ///< eps of the norms, RMSNorm's too
  bool bias = true;                            ///< biases of the linear layers and norms
  Tensor rope = {};                            ///< table of rope_table, which rotates queries and keys of self attention
  RopePairs rope_pairs = RopePairs::adjacent;  ///< see RopePairs
  bool cross = false;                          ///< adds cross attention to a memory between self attention and feed-forward block
  Device device = default_device();            ///< device of the parameters
};

/// Pre-LN transformer layer, as in GPT-2: x + attn(norm1(x)), with `cross` x + cross_attn(norm_cross(x), memory), x + ff(norm2(x)).
struct TransformerLayer final : Callable<TransformerLayer> {
  TransformerLayer() = default;
  /// Throws Error as MultiHeadAttention and FeedForward do.
  explicit TransformerLayer(const TransformerLayerOptions& options);
  void visit(Visitor& v) override;
  /// x (B, T, width) -> (B, T, width).
  Tensor forward(const Tensor& x, const AttentionMask& mask = {}) const;
  /// Applies the layer to a residual stream, so that consecutive layers fuse. With a cache, the tokens of x are appended to those in it.
  void forward(ResidualStream& x, const AttentionMask& mask, const Tensor& memory = {}, const AttentionMask& memory_mask = {},
               const LayerCache* cache = nullptr) const;
  /// With a memory (B, S, width). Throws Error unless the layer has cross attention.
  Tensor forward(const Tensor& x, const AttentionMask& mask, const Tensor& memory, const AttentionMask& memory_mask) const;

  Norm norm1;                                    ///< before attention
  Norm norm2;                                    ///< before the feed-forward block
  MultiHeadAttention attn;                       ///< self attention
  std::optional<Norm> norm_cross;                ///< before cross attention, if any
  std::optional<MultiHeadAttention> cross_attn;  ///< cross attention to the memory, if any
  FeedForward ff;                                ///< has no parameters if ff is 0
  Dropout drop;                                  ///< dropout of each branch
};

}  // namespace tern::nn
