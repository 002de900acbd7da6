#pragma once
#include "nn/transformer_model.h"
#include "ops/loss.h"

namespace tern::nn {

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
