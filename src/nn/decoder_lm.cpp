#include "nn/decoder_lm.h"

namespace tern::nn {

DecoderLM::DecoderLM(const DecoderLMOptions& options_) : Callable(options_, {.model = "DecoderLM"}) {
  head = Linear(options.width, options.vocab, options.head_bias, options.device);
  if (options.tied_head) head.weight = tokens.weight;
  initialize(named_parameters(*this), options, 2 * options.layers);
}

void DecoderLM::visit(Visitor& v) {
  TransformerModel::visit(v);
  v("head", head);
}

Tensor DecoderLM::forward(const Tensor& ids, const AttentionMask& mask, const Tensor& position_ids) const {
  const Tensor x = hidden(ids, mask, position_ids);
  const ModuleScope scope(this, "DecoderLM");
  return head.forward(x);
}

Tensor DecoderLM::loss(const Tensor& ids, const Tensor& labels, const CrossEntropyOptions& loss_options, const AttentionMask& mask,
                       const Tensor& position_ids) const {
  const Tensor x = hidden(ids, mask, position_ids);
  const ModuleScope scope(this, "DecoderLM");
  return head.cross_entropy(x, labels, loss_options);
}

}  // namespace tern::nn
