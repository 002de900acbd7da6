#include "translate/model.h"

#include "common/model.h"
#include "ops/view.h"
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

Tensor TranslationModel::loss(const Tensors& batch, const LossOptions& options) const {
  Tensors x = batch;
  if (options.r_drop > 0)
    for (Tensor& each : x) each = repeat(each, 2, 0);
  const CrossEntropyOptions entropy{
      .token_weights = x[lm ? 2 : 4], .label_smoothing = options.label_smoothing, .reduction = options.reduction};
  if (lm) {
    const AttentionMask visible = mask(x[3]);
    const Tensor positions = position_ids(x[3], x[0].size(1));
    if (options.r_drop > 0) return train::r_drop_loss(lm->forward(x[0], visible, positions), x[1], options.r_drop, entropy);
    return lm->loss(x[0], x[1], entropy, visible, positions);
  }
  const nn::EncoderDecoder& model = *encoder_decoder;
  if (options.r_drop > 0) return train::r_drop_loss(model.forward(x[0], x[1], x[2]), x[3], options.r_drop, entropy);
  return model.loss(x[0], x[1], x[2], x[3], entropy);
}

std::int64_t count_parameters(const Options& options, std::int64_t vocab) {
  return is_encoder_decoder(options) ? apps::count_parameters(encoder_decoder_options(options, vocab, cpu))
                                     : apps::count_parameters(model_options(options, vocab, cpu));
}

}  // namespace tern::translate
