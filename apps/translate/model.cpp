#include "translate/model.h"

#include "common/model.h"
#include "ops/view.h"
#include "tensor/fields.h"
#include "train/r_drop.h"

namespace tern::translate {

TranslationModel::TranslationModel(const Options& options, std::int64_t vocab, Device device) : options_(options) {
  if (is_encoder_decoder(options)) encoder_decoder.emplace(encoder_decoder_options(options, vocab, device));
  else lm.emplace(model_options(options, vocab, device));
}

void TranslationModel::visit(nn::Visitor& v) {
  // Registered without a name of its own, so that paths do not get a prefix.
  if (lm) v.walk(*lm);
  if (encoder_decoder) v.walk(*encoder_decoder);
}

AttentionMask TranslationModel::mask(const Tensor& prefix) const {
  AttentionMask result{.causal = true};
  if (options_.prefix_lm) result.prefix = prefix;
  return result;
}

Tensor TranslationModel::position_ids(const Tensor& prefix, std::int64_t columns) const {
  if (!options_.restart_positions) return {};
  return nn::reset_position_ids(prefix, columns, reset_position(options_), options_.length - 1);
}

Tensor TranslationModel::loss(Batch batch, const LossOptions& options) const {
  if (options.r_drop > 0)
    for_each_tensor(batch, [](Tensor& each) {
      if (each.defined()) each = repeat(each, 2, 0);
    });
  const auto& [ids, labels, weights, lengths, sources] = batch;
  const CrossEntropyOptions entropy{.token_weights = weights, .label_smoothing = options.label_smoothing, .reduction = options.reduction};
  if (lm) {
    const AttentionMask visible = mask(lengths);
    const Tensor positions = position_ids(lengths, ids.size(1));
    if (options.r_drop > 0) return train::r_drop_loss(lm->forward(ids, visible, positions), labels, options.r_drop, entropy);
    return lm->loss(ids, labels, entropy, visible, positions);
  }
  const nn::EncoderDecoder& model = *encoder_decoder;
  if (options.r_drop > 0) return train::r_drop_loss(model.forward(sources, lengths, ids), labels, options.r_drop, entropy);
  return model.loss(sources, lengths, ids, labels, entropy);
}

std::int64_t count_parameters(const Options& options, std::int64_t vocab) {
  return is_encoder_decoder(options) ? apps::count_parameters(encoder_decoder_options(options, vocab, cpu))
                                     : apps::count_parameters(model_options(options, vocab, cpu));
}

}  // namespace tern::translate
