#include "nn/encoder_decoder.h"

#include <fmt/format.h>

#include "ops/copy.h"

namespace tern::nn {

static TransformerOptions encoder_options(const EncoderDecoderOptions& o) {
  TransformerOptions result = o;
  result.layers = o.encoder_layers;
  return result;
}

EncoderDecoder::EncoderDecoder(const EncoderDecoderOptions& options_) : options(options_) {
  if (options.encoder_layers < 0) fail("EncoderDecoder", fmt::format("expected encoder_layers >= 0 but got {}", options.encoder_layers));
  if (options.encoder_layers == 0) options.encoder_layers = options.layers;
  encoder = TransformerModel(encoder_options(options), {.model = "EncoderDecoder"});
  decoder = TransformerModel(options, {.model = "EncoderDecoder", .cross = true, .tokens = encoder.tokens});
  head = Linear(options.width, options.vocab, options.head_bias, options.device);
  if (options.tied_head) head.weight = decoder.tokens.weight;
  std::vector<NamedTensor> below, above;
  for (const NamedTensor& entry : named_parameters(*this)) (entry.name.starts_with("encoder.") ? below : above).push_back(entry);
  initialize(below, options, 2 * options.encoder_layers);
  initialize(above, options, 3 * options.layers);
}

void EncoderDecoder::visit(Visitor& v) {
  v("encoder", encoder);
  v("decoder", decoder);
  v("head", head);
}

Memory EncoderDecoder::encode(const Tensor& src_ids, const Tensor& src_lengths) const {
  const ModuleScope scope(this, "EncoderDecoder");
  const bool are_counts = src_lengths.defined() && (src_lengths.dtype() == DType::i64 || src_lengths.dtype() == DType::i32);
  if (src_lengths.defined() && (!are_counts || src_lengths.dims() != 1 || src_ids.dims() != 2 || src_lengths.size(0) != src_ids.size(0)))
    fail("EncoderDecoder", fmt::format("expected src_lengths (B) of i64 or i32, one for each row of src_ids {}, but got {} {}",
                                       to_string(src_ids.shape()), name(src_lengths.dtype()), to_string(src_lengths.shape())));
  const AttentionMask mask{.key_lengths = are_counts ? cast(src_lengths, DType::i64) : Tensor()};
  return {encoder.hidden(src_ids, mask), mask};
}

Tensor EncoderDecoder::hidden(const Tensor& tgt_ids, const Memory& memory, KvCache* cache) const {
  const ModuleScope scope(this, "EncoderDecoder");
  if (!memory.states.defined()) fail("EncoderDecoder", "expected a memory, which encode gives, but got none");
  return decoder.hidden(tgt_ids, {.causal = true}, {}, cache, memory);
}

Tensor EncoderDecoder::forward(const Tensor& tgt_ids, const Memory& memory) const {
  const Tensor x = hidden(tgt_ids, memory);
  const ModuleScope scope(this, "EncoderDecoder");
  return head.forward(x);
}

Tensor EncoderDecoder::forward(const Tensor& src_ids, const Tensor& src_lengths, const Tensor& tgt_ids) const {
  return forward(tgt_ids, encode(src_ids, src_lengths));
}

Tensor EncoderDecoder::loss(const Tensor& src_ids, const Tensor& src_lengths, const Tensor& tgt_ids, const Tensor& labels,
                            const CrossEntropyOptions& loss_options) const {
  const Tensor x = hidden(tgt_ids, encode(src_ids, src_lengths));
  const ModuleScope scope(this, "EncoderDecoder");
  return head.cross_entropy(x, labels, loss_options);
}

}  // namespace tern::nn
