#pragma once
#include "nn/transformer_model.h"
#include "ops/loss.h"

namespace tern::nn {

/// `layers` are the decoder's, and the longest source and the longest target have `length` tokens each.
struct EncoderDecoderOptions : TransformerOptions {
  std::int64_t encoder_layers = 0;  ///< 0: as many as the decoder has
};

/// A translation model: an encoder whose tokens all see each other, a decoder that attends to itself causally and to the encoder's states,
/// and a linear head, with one token table for source and target. Vaswani et al., 2017, with pre-LN layers. The defaults are
/// TransformerOptions'; tied_head has the head share the table as well.
struct EncoderDecoder final : Module {
  EncoderDecoder() = default;
  /// Throws Error as TransformerModel does, and for encoder_layers < 0.
  explicit EncoderDecoder(const EncoderDecoderOptions& options);
  void visit(Visitor& v) override;

  /// The encoder's states of src_ids (B, S), i64. Row b has src_lengths[b] tokens, (B) of i64, and filling behind them; undefined: S tokens
  /// each. Throws Error for other shapes and dtypes, or S > length.
  Memory encode(const Tensor& src_ids, const Tensor& src_lengths = {}) const;
  /// The head's input: tgt_ids (B, T), i64 -> (B, T, width). With a cache tgt_ids are what follows on the tokens that it has, and the
  /// memory that counts is the first call's, of which the cache keeps keys, values and mask: see KvCache.
  Tensor hidden(const Tensor& tgt_ids, const Memory& memory, KvCache* cache = nullptr) const;
  /// Logits (B, T, vocab) of the tokens that follow on tgt_ids (B, T).
  Tensor forward(const Tensor& tgt_ids, const Memory& memory) const;
  /// forward(tgt_ids, encode(src_ids, src_lengths)): a training step's logits.
  Tensor forward(const Tensor& src_ids, const Tensor& src_lengths, const Tensor& tgt_ids) const;
  /// cross_entropy(forward(src_ids, src_lengths, tgt_ids), labels, options) for labels (B, T); see Linear::cross_entropy.
  Tensor loss(const Tensor& src_ids, const Tensor& src_lengths, const Tensor& tgt_ids, const Tensor& labels,
              const CrossEntropyOptions& loss_options = {}) const;
  /// An empty cache for `batch` targets of up to `capacity` tokens. Throws Error for a capacity beyond the model's length.
  KvCache cache(std::int64_t batch, std::int64_t capacity, std::int64_t memory_capacity = 0) const {
    return decoder.cache(batch, capacity, memory_capacity);
  }

  EncoderDecoderOptions options;  ///< with encoder_layers filled in
  TransformerModel encoder;       ///< whose tokens.weight is the one table of both, by this name among the parameters
  TransformerModel decoder;       ///< with cross attention
  Linear head;                    ///< width -> vocab; its weight is the table's with tied_head
};

}  // namespace tern::nn
