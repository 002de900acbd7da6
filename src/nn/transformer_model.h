#pragma once
#include "nn/transformer.h"

namespace tern::nn {

/// The first values of a transformer model's parameters.
enum class Initialization : std::uint8_t {
  layer_defaults,  ///< each layer's own; but a tied table is N(0, 1/width), for which the first logits are about N(0, 1)
  gpt2,            ///< N(0, 0.02), biases 0, the projections back into the residual stream divided by sqrt(2 layers), or 3 with `cross`
  /// Xavier uniform (Glorot & Bengio, 2010), biases 0, token and position tables and the head's weight N(0, 1/width): translation models of
  /// fairseq (Ott et al., 2019) and, but for the tables, torch.nn.Transformer. The projections of one attention to queries, keys and values
  /// count as one matrix.
  xavier,
};

/// Position encodings of a transformer model.
enum class Positions : std::uint8_t {
  learned,     ///< a table, added to the tokens
  rotary,      ///< RoPE: rotates queries and keys
  none,        ///< the causal mask alone tells positions apart
  sinusoidal,  ///< as learned, but the table is sinusoid_table, a constant
};

/// Sizes, dropout, norms and positions of a transformer model.
struct TransformerOptions {
  std::int64_t vocab = 10000;                  ///< tokens that there are
  std::int64_t length = 40;                    ///< positions: the longest input
  std::int64_t width = 256;                    ///< elements of a token
  std::int64_t layers = 4;                     ///< of an encoder-decoder: of the decoder
  std::int64_t heads = 8;                      ///< of attention, to which the width is divided
  std::int64_t ff = 256;                       ///< hidden units of the feed-forward parts; 0: layers of attention alone
  std::int64_t kv_heads = 0;                   ///< groups of heads share keys and values; 0: as many as heads
  std::int64_t head_dim = 0;                   ///< elements of a head; 0: width / heads
  double dropout = 0.1;                        ///< of the embeddings and residual branches
  double attention_dropout = -1;               ///< of attention probabilities; -1: as `dropout`
  double activation_dropout = 0;               ///< of the feed-forward part's hidden units; -1: as `dropout`
  Activation activation = Activation::gelu;    ///< of the feed-forward parts
  bool gated = false;                          ///< the feed-forward part; see FeedForwardOptions
  bool bias = true;                            ///< of the layers' linear parts and norms
  NormKind norm = NormKind::layer;             ///< of the layers, and the final one
  Positions positions = Positions::learned;    ///< see Positions
  double rope_base = 10000;                    ///< of rotary positions, as rope_table takes it: "theta"
  RopePairs rope_pairs = RopePairs::adjacent;  ///< see RopePairs
  RopeScaling rope_scaling = {};               ///< of rotary positions, for longer texts than those of the training before
  bool scales_embeddings = false;              ///< tokens times sqrt(width), before positions are added (Vaswani et al., 2017, section 3.4)
  double layer_norm_eps = 1e-5;                ///< of all norms, RMSNorm's too
  bool final_norm = true;                      ///< before the head, as pre-LN layers need it; with NormKind::none there is none
  bool head_bias = true;                       ///< of the head, in a model that has one
  bool tied_head = false;                      ///< the head's weight is the token table
  Initialization initialization = Initialization::layer_defaults;  ///< see Initialization
  bool use_fused_kernel = false;                                   ///< the model's first Module::use_fused_kernel
  /// Activation checkpointing of each layer.
  CheckpointPolicy activation_checkpointing = CheckpointPolicy::none;
  Device device = default_device();  ///< of the parameters
};

/// The memory that cross attention reads: an encoder's states (B, S, width), and the mask of these S keys.
struct Memory {
  Tensor states = {};       ///< (B, S, width); undefined: no memory
  AttentionMask mask = {};  ///< which of the S keys each row has
};

/// Settings of a body by the model that it is a part of, which calls `initialize` for both.
struct TransformerPart {
  const char* model = "TransformerModel";  ///< named in errors
  bool cross = false;                      ///< each layer attends to a memory as well
  std::optional<Embedding> tokens = {};    ///< the token table of another part, to be shared
};

/// The body of a language model: token and position embeddings, pre-LN transformer layers and a final norm. DecoderLM puts a head on it,
/// EncoderDecoder has two.
struct TransformerModel : Module {
  TransformerModel() = default;
  /// Throws Error for sizes that are not positive, heads that do not divide width without a head_dim, or a head size that rotary
  /// positions cannot pair.
  explicit TransformerModel(const TransformerOptions& options);
  /// The same as a part of a larger model, whose parameters are left as its layers made them.
  TransformerModel(const TransformerOptions& options, const TransformerPart& part);
  void visit(Visitor& v) override;

  /// ids (B, T) of i64 -> (B, T, width). `mask` says which of the T tokens each of them sees; position_ids, (B, T) of i64, are rows of the
  /// table of positions, where these are not 0 .. T - 1. With a cache ids are what follows on the tokens that it has, which they join: they
  /// are at the positions behind those, and see what KvCache says. A memory is for layers with cross attention; with a cache the first
  /// call's is kept, and later ones are not looked at. Throws Error for another dtype or number of dimensions, or T > length.
  Tensor hidden(const Tensor& ids, const AttentionMask& mask = {.causal = true}, const Tensor& position_ids = {}, KvCache* cache = nullptr,
                const Memory& memory = {}) const;
  /// An empty cache for `batch` rows of up to `capacity` tokens, with memories as KvCache says. Throws Error for a capacity beyond the
  /// model's length.
  KvCache cache(std::int64_t batch, std::int64_t capacity, std::int64_t memory_capacity = 0) const;

  /// Of the activations: that of the parameters.
  DType dtype() const;

  TransformerOptions options;            ///< as given
  Embedding tokens;                      ///< (vocab, width)
  std::optional<Embedding> positions;    ///< (length, width), where they are learned
  Tensor sinusoids;                      ///< (length, width), where positions are sinusoidal
  Dropout drop;                          ///< of the embeddings
  std::vector<TransformerLayer> blocks;  ///< the layers, in order
  std::optional<Norm> norm;              ///< the final one

 private:
  Tensor embedded(const Tensor& ids, const Tensor& position_ids) const;
  void forward_block(const TransformerLayer& block, ResidualStream& stream, const AttentionMask& mask, const Tensor& memory,
                     const AttentionMask& memory_mask) const;
  /// Position embeddings, which are added to the tokens': (length, width), or undefined.
  Tensor position_table() const;
  /// Its rows for `length` tokens from the first on, or for position_ids.
  Tensor position_rows(const Tensor& position_ids, std::int64_t length) const;

  const char* model_ = "TransformerModel";
};

/// Gives parameters, named by their paths in a model, the values that options.initialization says. `branches` join the model's residual
/// stream.
void initialize(const std::vector<NamedTensor>& parameters, const TransformerOptions& options, std::int64_t branches);

/// sin(t / 10000^(2i / width)) at [t, 2i] and the cosine of the same at [t, 2i + 1]: (length, width), f32. Vaswani et al., 2017,
/// section 3.5.
Tensor sinusoid_table(std::int64_t length, std::int64_t width, Device device = default_device());

/// Position ids for rows of a prefix and a continuation, (B, length) of i64, from the prefixes' lengths (B): the prefix counts from
/// 0, the continuation from `start`, so that its n-th token has one position whatever the prefix's length. Both end at `last`.
Tensor reset_position_ids(const Tensor& prefix, std::int64_t length, std::int64_t start, std::int64_t last);

}  // namespace tern::nn
