#pragma once
#include "nn/attention.h"
#include "ops/checkpoint.h"

namespace tern::nn {

/// Options of FeedForward.
struct FeedForwardOptions {
  Activation activation = Activation::gelu;  ///< of the hidden units
  bool gated = false;                        ///< proj(activation(gate(x)) * fc(x)); with silu it is SwiGLU (Shazeer, 2020)
  bool bias = true;                          ///< of the two or three products
  double dropout = 0;                        ///< of the hidden units, after the activation and the gate
  Device device = default_device();          ///< of the parameters
};

/// proj(drop(activation(fc(x)))): width -> hidden -> width.
struct FeedForward final : Module {
  FeedForward() = default;
  /// With `hidden` units between. Throws Error for sizes below 1.
  FeedForward(std::int64_t width, std::int64_t hidden, const FeedForwardOptions& options = {});
  void visit(Visitor& v) override;
  /// Without proj's bias for a caller that adds it in a kernel of its own: see ResidualStream.
  Tensor forward(const Tensor& x, bool adds_bias = true) const;

  Linear fc;                                 ///< width -> hidden
  Linear proj;                               ///< hidden -> width
  std::optional<Linear> gate;                ///< width -> hidden, where it is gated
  Dropout drop;                              ///< of the hidden units
  Activation activation = Activation::gelu;  ///< see FeedForwardOptions
};

/// A residual stream (B, T, width) and a branch that is to join it. With fused kernels the branch is deferred, so that its bias,
/// its dropout, the addition and the norm that follows are one kernel; else it is added at once.
class ResidualStream {
 public:
  /// Begins with x (B, T, width), the embeddings.
  explicit ResidualStream(Tensor x, bool use_fused_kernel = false) : x_(std::move(x)), fused_(use_fused_kernel) {}
  /// The stream becomes x + drop(proj(branch)): now, or with fused kernels in that of the norm that follows.
  void add(const Tensor& branch, const Linear& proj, const Dropout& drop);
  /// The stream becomes x + drop(ff(branch)), likewise.
  void add(const Tensor& branch, const FeedForward& ff, const Dropout& drop);
  /// The norm of the stream, with all that was added.
  Tensor normalized(const Norm& norm);
  /// The stream, with all that was added.
  Tensor value();
  /// add(stream), which adds to a stream like this one, with its activations as the policy says: see ops/checkpoint.h. `inputs` are tensors
  /// that it reads as well, and are handed to it.
  void checkpointed(CheckpointPolicy policy, const Tensors& inputs, std::function<void(ResidualStream&, const Tensors& inputs)> add);

 private:
  /// Keeps a branch, without its bias, for the kernel of the next norm.
  void defer(const Tensor& product, const Tensor& bias, const Dropout& drop);

  Tensor x_, pending_;
  BranchOptions options_;  ///< of the pending branch
  bool fused_;
};

/// Options of TransformerLayer.
struct TransformerLayerOptions {
  std::int64_t width = 256;                    ///< elements of a token
  std::int64_t heads = 8;                      ///< of attention, to which the width is divided
  std::int64_t kv_heads = 0;                   ///< of self attention; 0: as many as heads
  std::int64_t head_dim = 0;                   ///< elements of a head; 0: width / heads
  std::int64_t ff = 1024;                      ///< hidden units of the feed-forward part; 0: attention alone, without norm2 and ff
  double dropout = 0.1;                        ///< of each residual branch
  double attention_dropout = -1;               ///< of attention probabilities; -1: as `dropout`
  double activation_dropout = 0;               ///< of the feed-forward part's hidden units; -1: as `dropout`
  Activation activation = Activation::gelu;    ///< of the feed-forward part
  bool gated = false;                          ///< the feed-forward part; see FeedForwardOptions
  NormKind norm = NormKind::layer;             ///< of norm1, norm_cross and norm2
  double layer_norm_eps = 1e-5;                ///< of the norms, RMSNorm's too
  bool bias = true;                            ///< of the linear layers and norms
  Tensor rope = {};                            ///< of rope_table: queries and keys of self attention are rotated by it
  RopePairs rope_pairs = RopePairs::adjacent;  ///< see RopePairs
  bool cross = false;                          ///< adds attention to a memory between the other two
  Device device = default_device();            ///< of the parameters
};

/// A pre-LN layer, as in GPT-2: x + attn(norm1(x)), with `cross` x + cross_attn(norm_cross(x), memory), x +
/// ff(norm2(x)).
struct TransformerLayer final : Module {
  TransformerLayer() = default;
  /// Throws Error as MultiHeadAttention and FeedForward do.
  explicit TransformerLayer(const TransformerLayerOptions& options);
  void visit(Visitor& v) override;
  /// x (B, T, width) -> (B, T, width).
  Tensor forward(const Tensor& x, const AttentionMask& mask = {}) const;
  /// Several layers pass one stream on, so that each fuses with the next. With a cache the tokens of x join those that it has.
  void forward(ResidualStream& x, const AttentionMask& mask, const Tensor& memory = {}, const AttentionMask& memory_mask = {},
               const LayerCache* cache = nullptr) const;
  /// With a memory (B, S, width). Throws Error unless the layer has `cross`.
  Tensor forward(const Tensor& x, const AttentionMask& mask, const Tensor& memory, const AttentionMask& memory_mask) const;

  Norm norm1;                                    ///< before attention
  Norm norm2;                                    ///< before the feed-forward part
  MultiHeadAttention attn;                       ///< self attention
  std::optional<Norm> norm_cross;                ///< before cross attention, in a layer that has it
  std::optional<MultiHeadAttention> cross_attn;  ///< to the memory, in a layer with `cross`
  FeedForward ff;                                ///< without parameters where ff is 0
  Dropout drop;                                  ///< of each branch
};

}  // namespace tern::nn
