#pragma once
#include "nn/attention.h"
#include "ops/checkpoint.h"
#include "ops/loss.h"

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
struct ResidualStream {
  /// Adds drop(branch + bias) to the stream, in the next norm.
  void add(const Tensor& branch, const Tensor& bias, const Dropout& drop);
  /// Norm of the stream, with all branches added.
  Tensor normalized(const Norm& norm);
  /// The stream, with all branches added.
  Tensor value();

  Tensor x;                    ///< the stream without `pending`
  Tensor pending = {};         ///< the last branch, (B, T, width), or undefined
  BranchOptions options = {};  ///< its bias and dropout
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
  std::int64_t vocab = 10000;  ///< size of the vocabulary
  std::int64_t length = 40;    ///< number of positions, which is the longest input
  std::int64_t width = 256;    ///< size of a token's vector
  std::int64_t layers = 4;     ///< number of layers; in an encoder-decoder, of the decoder
  std::int64_t heads = 8;      ///< attention heads
  std::int64_t ff = 256;       ///< hidden units of the feed-forward blocks; 0: layers with only attention
  std::int64_t kv_heads = 0;   ///< key and value heads, each shared by a group of query heads; 0: as many as heads
  std::int64_t head_dim = 0;   ///< elements of a head; 0: width / heads
  /// Token mixers of the layers: layer i has mixers[i mod their number]; attention if there are none. Mixers other than attention need a
  /// causal mask without prefix and padding.
  std::vector<MixerOptions> mixers = {};
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

/// Pre-LN transformer layer, as in GPT-2: x + attn(norm1(x)), with `cross` x + cross_attn(norm_cross(x), memory), x + ff(norm2(x)). Another
/// mixer may take the place of attn.
struct TransformerLayer final : Callable<TransformerLayer> {
  TransformerLayer() = default;
  /// `cross` adds cross attention to a memory between self attention and feed-forward block; `rope` is a table of rope_table, which rotates
  /// queries and keys of self attention; `number` is the layer's, by which it takes its mixer. Throws Error as MultiHeadAttention,
  /// FeedForward and the mixers do.
  explicit TransformerLayer(const TransformerOptions& options, bool cross = false, const Tensor& rope = {}, std::int64_t number = 0);
  void visit(Visitor& v) override;
  /// x (B, T, width) -> (B, T, width); with a memory (B, S, width), which a layer with cross attention needs, and no other takes.
  Tensor forward(const Tensor& x, const AttentionMask& mask = {}, const Tensor& memory = {}, const AttentionMask& memory_mask = {}) const;
  /// Applies the layer to a residual stream, so that consecutive layers fuse. With a cache, the tokens of x are appended to those in it.
  void forward(ResidualStream& stream, const AttentionMask& mask, const Tensor& memory = {}, const AttentionMask& memory_mask = {},
               const LayerCache* cache = nullptr) const;

  Norm norm1;                                    ///< before attention
  Norm norm2;                                    ///< before the feed-forward block
  MultiHeadAttention attn;                       ///< self attention; has no parameters if there is a mixer
  std::optional<AnyMixer> mixer;                 ///< in its place, if any
  std::optional<Norm> norm_cross;                ///< before cross attention, if any
  std::optional<MultiHeadAttention> cross_attn;  ///< cross attention to the memory, if any
  FeedForward ff;                                ///< has no parameters if ff is 0
  Dropout drop;                                  ///< dropout of each branch
};

/// Memory that cross attention reads: an encoder's states (B, S, width), and the mask of these S keys.
struct Memory {
  Tensor states = {};       ///< (B, S, width); undefined: no memory
  AttentionMask mask = {};  ///< valid keys of each row
};

/// Body of a language model: token and position embeddings, pre-LN transformer layers and a final norm. DecoderLM adds a head to it,
/// EncoderDecoder has two of them.
struct TransformerModel : Module {
  TransformerModel() = default;
  /// Throws Error for sizes that are not positive, heads that do not divide width without a head_dim, or an odd head size with rotary
  /// positions.
  explicit TransformerModel(const TransformerOptions& options);
  /// The same as a part of a larger model, which is named in errors and initializes its parameters itself: those of this part keep the
  /// initialization of their layers. With `cross` each layer has cross attention to a memory; `tokens` is the table of another part.
  TransformerModel(const TransformerOptions& options, const char* model, bool cross = false, const Embedding* tokens = nullptr);
  void visit(Visitor& v) override;

  /// ids (B, T) of i64 -> (B, T, width). `mask` is the mask among the T tokens; position_ids, (B, T) of i64, are rows of the table of
  /// positions, if they are not 0 .. T - 1. With a cache, ids are appended to the tokens in it: their positions follow, and they see what
  /// KvCache says. A memory is for layers with cross attention; with a cache that of the first call is kept, and later ones are ignored.
  /// Throws Error for another dtype or number of dimensions, or T > length.
  Tensor hidden(const Tensor& ids, const AttentionMask& mask = {.causal = true}, const Tensor& position_ids = {}, KvCache* cache = nullptr,
                const Memory& memory = {}) const;
  /// Creates an empty cache for `batch` rows of up to `capacity` tokens; memories as in KvCache. Throws Error for a capacity beyond the
  /// model's length.
  KvCache cache(std::int64_t batch, std::int64_t capacity, std::int64_t memory_capacity = 0) const;

  /// Dtype of the activations, which is that of the parameters.
  DType dtype() const;

  TransformerOptions options;            ///< as given
  Embedding tokens;                      ///< (vocab, width)
  std::optional<Embedding> positions;    ///< (length, width), if positions are learned
  Tensor sinusoids;                      ///< (length, width), if positions are sinusoidal
  Dropout drop;                          ///< dropout of the embeddings
  std::vector<TransformerLayer> blocks;  ///< the layers, in order
  std::optional<Norm> norm;              ///< final norm

 private:
  Tensor embedded(const Tensor& ids, const Tensor& position_ids) const;
  void forward_block(const TransformerLayer& block, ResidualStream& stream, const AttentionMask& mask, const Tensor& memory,
                     const AttentionMask& memory_mask) const;

  const char* model_ = "TransformerModel";
};

/// Sinusoidal positions, sin(t / 10000^(2i / width)) at [t, 2i] and the cosine of the same at [t, 2i + 1]: (length, width), f32. Vaswani et
/// al., 2017, section 3.5.
Tensor sinusoid_table(std::int64_t length, std::int64_t width, Device device = default_device());

/// Position ids for rows of a prefix and a continuation, (B, length) of i64, from the prefixes' lengths (B): the prefix counts from 0, the
/// continuation from `start`, so that its n-th token has the same position for every length of the prefix. Both are clamped to `last`.
Tensor reset_position_ids(const Tensor& prefix, std::int64_t length, std::int64_t start, std::int64_t last);

using DecoderLMOptions = TransformerOptions;  ///< those of the body and of the head

/// Decoder-only language model: a TransformerModel with a linear head. The defaults are the classic translation model; GPT-2 is head_bias =
/// false, tied_head = true, gelu_tanh, ff = 4 width; Llama is NormKind::rms, rotary positions with RopePairs::halves, gated silu, no
/// biases. models/hugging_face.h loads those of Hugging Face.
struct DecoderLM final : Callable<DecoderLM, TransformerModel> {
  DecoderLM() = default;
  /// Throws Error as TransformerModel does.
  explicit DecoderLM(const DecoderLMOptions& options);
  void visit(Visitor& v) override;

  /// ids (B, T), i64 -> logits (B, T, vocab): the head of hidden(ids, mask, position_ids).
  Tensor forward(const Tensor& ids, const AttentionMask& mask = {.causal = true}, const Tensor& position_ids = {}) const;
  /// cross_entropy(forward(ids, mask, position_ids), labels, options) for labels (B, T); see Linear::cross_entropy.
  Tensor loss(const Tensor& ids, const Tensor& labels, const CrossEntropyOptions& loss_options = {},
              const AttentionMask& mask = {.causal = true}, const Tensor& position_ids = {}) const;

  Linear head;  ///< width -> vocab; its weight is tokens.weight with tied_head
};

/// Options of EncoderDecoder: `layers` are the decoder's, and `length` is the longest source and the longest target.
struct EncoderDecoderOptions : TransformerOptions {
  std::int64_t encoder_layers = 0;  ///< 0: as many as the decoder has
};

/// Translation model: an encoder whose tokens all see each other, a decoder with causal self attention and cross attention to the encoder's
/// states, and a linear head; source and target share one token table. Vaswani et al., 2017, with pre-LN layers. The defaults are those of
/// TransformerOptions; with tied_head the head shares the table too.
struct EncoderDecoder final : Callable<EncoderDecoder> {
  EncoderDecoder() = default;
  /// Throws Error as TransformerModel does, and for encoder_layers < 0.
  explicit EncoderDecoder(const EncoderDecoderOptions& options);
  void visit(Visitor& v) override;

  /// Encodes src_ids (B, S), i64. Row b has src_lengths[b] tokens, (B) of i64, and padding after them; undefined: S tokens each. Throws
  /// Error for other shapes and dtypes, or S > length.
  Memory encode(const Tensor& src_ids, const Tensor& src_lengths = {}) const;
  /// Input of the head: tgt_ids (B, T), i64 -> (B, T, width). With a cache, tgt_ids are appended to the tokens in it, and the memory is
  /// that of the first call, whose keys, values and mask the cache keeps: see KvCache.
  Tensor hidden(const Tensor& tgt_ids, const Memory& memory, KvCache* cache = nullptr) const;
  /// Logits (B, T, vocab) of the tokens after each of tgt_ids (B, T).
  Tensor forward(const Tensor& tgt_ids, const Memory& memory) const;
  /// forward(tgt_ids, encode(src_ids, src_lengths)): the logits of a training step.
  Tensor forward(const Tensor& src_ids, const Tensor& src_lengths, const Tensor& tgt_ids) const;
  /// cross_entropy(forward(src_ids, src_lengths, tgt_ids), labels, options) for labels (B, T); see Linear::cross_entropy.
  Tensor loss(const Tensor& src_ids, const Tensor& src_lengths, const Tensor& tgt_ids, const Tensor& labels,
              const CrossEntropyOptions& loss_options = {}) const;
  /// Creates an empty cache for `batch` targets of up to `capacity` tokens. Throws Error for a capacity beyond the model's length.
  KvCache cache(std::int64_t batch, std::int64_t capacity, std::int64_t memory_capacity = 0) const {
    return decoder.cache(batch, capacity, memory_capacity);
  }

  EncoderDecoderOptions options;  ///< with encoder_layers filled in
  TransformerModel encoder;       ///< its tokens.weight is the table of both, and the parameter's name
  TransformerModel decoder;       ///< with cross attention
  Linear head;                    ///< width -> vocab; its weight is the table's with tied_head
};

}  // namespace tern::nn
