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

/// Residual stream (B, T, width), and a branch that is still to be added: a branch is deferred, so that its bias, its dropout, the addition
/// and the norm that follows are one op.
class ResidualStream {
 public:
  /// Starts from x (B, T, width), the embeddings.
  explicit ResidualStream(Tensor x) : x_(std::move(x)) {}
  /// Adds drop(proj(branch)) to the stream, in the next norm.
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
  /// Keeps a branch, without its bias, for the next norm.
  void defer(const Tensor& product, const Tensor& bias, const Dropout& drop);

  Tensor x_, pending_;
  BranchOptions options_;  ///< options of the pending branch
};

/// Initialization of a transformer model's parameters.
enum class Initialization : std::uint8_t {
  layer_defaults,  ///< each layer's default; a tied table is N(0, 1/width), so that the first logits are about N(0, 1)
  gpt2,            ///< N(0, 0.02), biases 0; projections into the residual stream divided by sqrt(2 layers), or sqrt(3 layers) with `cross`
  /// Xavier uniform (Glorot & Bengio, 2010), biases 0, token and position tables and the head's weight N(0, 1/width): as in translation
  /// models of fairseq (Ott et al., 2019) and, except for the tables, in torch.nn.Transformer. The query, key and value projections of one
  /// attention count as one matrix.
  xavier,
};

/// Position encodings of a transformer model.
enum class Positions : std::uint8_t {
  learned,     ///< learned table, added to the token embeddings
  rotary,      ///< RoPE: rotates queries and keys
  none,        ///< none: only the causal mask distinguishes positions
  sinusoidal,  ///< the constant table sinusoid_table, added to the token embeddings
};

/// Sizes, dropout, norms and positions of a transformer model and its layers, which take what is theirs.
struct TransformerOptions {
  std::int64_t vocab = 10000;                  ///< size of the vocabulary
  std::int64_t length = 40;                    ///< number of positions, which is the longest input
  std::int64_t width = 256;                    ///< size of a token's vector
  std::int64_t layers = 4;                     ///< number of layers; in an encoder-decoder, of the decoder
  std::int64_t heads = 8;                      ///< attention heads
  std::int64_t ff = 256;                       ///< hidden units of the feed-forward blocks; 0: layers with only attention
  std::int64_t kv_heads = 0;                   ///< key and value heads, each shared by a group of query heads; 0: as many as heads
  std::int64_t head_dim = 0;                   ///< elements of a head; 0: width / heads
  double dropout = 0.1;                        ///< dropout of the embeddings and residual branches
  double attention_dropout = -1;               ///< dropout of attention probabilities; -1: as `dropout`
  double activation_dropout = 0;               ///< dropout of the feed-forward blocks' hidden units; -1: as `dropout`
  Activation activation = Activation::gelu;    ///< activation of the feed-forward blocks
  bool gated = false;                          ///< gated feed-forward blocks; see FeedForwardOptions
  bool bias = true;                            ///< biases of the layers' linear layers and norms
  NormKind norm = NormKind::layer;             ///< kind of the layers' norms and of the final one
  Positions positions = Positions::learned;    ///< see Positions
  double rope_base = 10000;                    ///< base of rotary positions, see rope_table; "theta" elsewhere
  RopePairs rope_pairs = RopePairs::adjacent;  ///< see RopePairs
  RopeScaling rope_scaling = {};               ///< scaling of rotary positions, for texts longer than the training length
  bool scales_embeddings = false;              ///< multiplies token embeddings by sqrt(width) (Vaswani et al., 2017, section 3.4)
  double layer_norm_eps = 1e-5;                ///< eps of all norms, RMSNorm's too
  bool final_norm = true;                      ///< norm before the head, which pre-LN layers need; NormKind::none has none
  bool head_bias = true;                       ///< bias of the head, in a model that has one
  bool tied_head = false;                      ///< the head's weight is the token table
  Initialization initialization = Initialization::layer_defaults;  ///< see Initialization
  /// Activation checkpointing of each layer.
  CheckpointPolicy activation_checkpointing = CheckpointPolicy::none;
  Device device = default_device();  ///< device of the parameters
};

/// Pre-LN transformer layer, as in GPT-2: x + attn(norm1(x)), with `cross` x + cross_attn(norm_cross(x), memory), x + ff(norm2(x)).
struct TransformerLayer final : Callable<TransformerLayer> {
  TransformerLayer() = default;
  /// `cross` adds cross attention to a memory between self attention and feed-forward block; `rope` is a table of rope_table, which rotates
  /// queries and keys of self attention. Throws Error as MultiHeadAttention and FeedForward do.
  explicit TransformerLayer(const TransformerOptions& options, bool cross = false, const Tensor& rope = {});
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
