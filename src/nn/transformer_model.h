#pragma once
#include "nn/transformer.h"

namespace tern::nn {

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
