#pragma once
#include "nn/transformer_model.h"
#include "ops/loss.h"

namespace tern::nn {

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

}  // namespace tern::nn
