#pragma once
#include "nn/transformer_model.h"
#include "ops/loss.h"

namespace tern::nn {

using DecoderLMOptions = TransformerOptions;  ///< the body's, with what they say of a head

/// A decoder-only language model: a TransformerModel and a linear head. The defaults are the classic translation model; GPT-2 is
/// head_bias = false, tied_head = true, gelu_tanh, ff = 4 width; Llama is NormKind::rms, Positions::rotary by halves, gated silu, no
/// biases. Those of Hugging Face are loaded by models/hugging_face.h.
struct DecoderLM final : TransformerModel {
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
