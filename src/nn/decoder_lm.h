#pragma once
#include "nn/transformer.h"
#include "ops/loss.h"

namespace tern::nn {

enum class Initialization : std::uint8_t {
  layer_defaults,  ///< each layer's own; but a tied table is N(0, 1/width), for which the first logits are about N(0, 1)
  gpt2,            ///< N(0, 0.02), biases 0, the projections back into the residual stream divided by sqrt(2 layers)
};

enum class Positions : std::uint8_t {
  learned,  ///< a table, added to the tokens
  rotary,   ///< turns queries and keys: RoPE
  none,     ///< the causal mask alone tells positions apart
};

struct DecoderLMOptions {
  std::int64_t vocab = 10000;
  std::int64_t length = 40;                                   ///< positions: the longest input
  std::int64_t width = 256, layers = 4, heads = 8, ff = 256;  ///< ff 0: layers of attention alone
  std::int64_t kv_heads = 0;                                  ///< groups of heads share keys and values; 0: as many as heads
  double dropout = 0.1;                                       ///< of the embeddings, attention probabilities and residual branches
  Activation activation = Activation::gelu;
  bool gated = false;  ///< the feed-forward part; see FeedForwardOptions
  bool bias = true;    ///< of the layers' linear parts and norms
  NormKind norm = NormKind::layer;
  Positions positions = Positions::learned;
  double layer_norm_eps = 1e-5;
  bool final_norm = true;
  bool head_bias = true;
  bool tied_head = false;  ///< the head's weight is the token table
  Initialization initialization = Initialization::layer_defaults;
  bool use_fused_kernel = false;  ///< the model's first Module::use_fused_kernel
  Device device = cpu;
};

/// A decoder-only language model: token and position embeddings, pre-LN transformer layers, a final norm and a linear
/// head. The defaults are the classic translation model; GPT-2 is head_bias = false, tied_head = true, gelu_tanh, ff =
/// 4 width; Llama is NormKind::rms, Positions::rotary, gated silu, no biases.
struct DecoderLM final : Module {
  DecoderLM() = default;
  /// Throws Error for sizes that are not positive, heads that do not divide width, or a head size that rotary positions
  /// cannot pair.
  explicit DecoderLM(const DecoderLMOptions& options);
  void visit(Visitor& v) override;

  /// ids (B, T), i64 -> logits (B, T, vocab). `mask` says which of the T tokens each of them sees; position_ids, (B, T) of i64, are
  /// rows of the table of positions, where these are not 0 .. T - 1.
  /// Throws Error for another dtype or number of dimensions, or T > length.
  Tensor forward(const Tensor& ids, const AttentionMask& mask = {.causal = true}, const Tensor& position_ids = {}) const;
  /// cross_entropy(forward(ids, mask, position_ids), labels, options) for labels (B, T); see Linear::cross_entropy.
  Tensor loss(const Tensor& ids, const Tensor& labels, const CrossEntropyOptions& loss_options = {},
              const AttentionMask& mask = {.causal = true}, const Tensor& position_ids = {}) const;
  /// The head's input: ids (B, T) -> (B, T, width). With a cache ids are what follows on the tokens that it has, which they join: they are
  /// at the positions behind those, and see what KvCache says.
  Tensor hidden(const Tensor& ids, const AttentionMask& mask = {.causal = true}, const Tensor& position_ids = {},
                KvCache* cache = nullptr) const;
  /// An empty cache for `batch` rows of up to `capacity` tokens. Throws Error for a capacity beyond the model's length.
  KvCache cache(std::int64_t batch, std::int64_t capacity) const;

  DecoderLMOptions options;
  Embedding tokens;
  std::optional<Embedding> positions;
  Dropout drop;
  std::vector<TransformerLayer> blocks;
  std::optional<Norm> norm;
  Linear head;

 private:
  Tensor embedded(const Tensor& ids, const Tensor& position_ids) const;
};

/// Position ids for rows of a prefix and a continuation, (B, length) of i64, from the prefixes' lengths (B): the prefix counts from
/// 0, the continuation from `start`, so that its n-th token has one position whatever the prefix's length. Both end at `last`.
Tensor reset_position_ids(const Tensor& prefix, std::int64_t length, std::int64_t start, std::int64_t last);

}  // namespace tern::nn
