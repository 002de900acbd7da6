#pragma once
#include "nn/transformer.h"

namespace tern::nn {

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

/// Sizes, dropout, norms and positions of a transformer model.
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
  bool use_fused_kernel = false;                                   ///< initial value of Module::use_fused_kernel
  /// Activation checkpointing of each layer.
  CheckpointPolicy activation_checkpointing = CheckpointPolicy::none;
  Device device = default_device();  ///< device of the parameters
};

/// Memory that cross attention reads: an encoder's states (B, S, width), and the mask of these S keys.
struct Memory {
  Tensor states = {};       ///< (B, S, width); undefined: no memory
  AttentionMask mask = {};  ///< valid keys of each row
};

/// Settings of a TransformerModel that is part of a larger model, which calls `initialize` for both.
struct TransformerPart {
  const char* model = "TransformerModel";  ///< name in errors
  bool cross = false;                      ///< each layer has cross attention to a memory
  std::optional<Embedding> tokens = {};    ///< token table of another part, to be shared
};

/// Body of a language model: token and position embeddings, pre-LN transformer layers and a final norm. DecoderLM adds a head to it,
/// EncoderDecoder has two of them.
struct TransformerModel : Module {
  TransformerModel() = default;
  /// Throws Error for sizes that are not positive, heads that do not divide width without a head_dim, or an odd head size with rotary
  /// positions.
  explicit TransformerModel(const TransformerOptions& options);
  /// The same as a part of a larger model; parameters keep the initialization of their layers.
  TransformerModel(const TransformerOptions& options, const TransformerPart& part);
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
  /// Position embeddings, which are added to the token embeddings: (length, width), or undefined.
  Tensor position_table() const;
  /// Rows of that table for `length` tokens from the first on, or for position_ids.
  Tensor position_rows(const Tensor& position_ids, std::int64_t length) const;

  const char* model_ = "TransformerModel";
};

/// Initializes parameters, named by their paths in a model, as options.initialization says. `branches` is the number of residual branches
/// of the model.
void initialize(const std::vector<NamedTensor>& parameters, const TransformerOptions& options, std::int64_t branches);

/// Sinusoidal positions, sin(t / 10000^(2i / width)) at [t, 2i] and the cosine of the same at [t, 2i + 1]: (length, width), f32. Vaswani et
/// al., 2017, section 3.5.
Tensor sinusoid_table(std::int64_t length, std::int64_t width, Device device = default_device());

/// Position ids for rows of a prefix and a continuation, (B, length) of i64, from the prefixes' lengths (B): the prefix counts from 0, the
/// continuation from `start`, so that its n-th token has the same position for every length of the prefix. Both are clamped to `last`.
Tensor reset_position_ids(const Tensor& prefix, std::int64_t length, std::int64_t start, std::int64_t last);

}  // namespace tern::nn
