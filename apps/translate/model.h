#pragma once
#include <optional>

#include "nn/nn.h"
#include "translate/options.h"

namespace tern::translate {

/// Terms and weights of the loss besides the cross entropy of each target token.
struct LossOptions {
  Reduction reduction = Reduction::mean;  ///< over target tokens, by their weights
  double label_smoothing = 0;
  double r_drop = 0;  ///< alpha of train::r_drop_loss; 0: the batch goes through once
};

/// A translator's model, which is one of two: a decoder-only LM that reads source and target as one sequence `<src> eos_src <tgt> eos_tgt`,
/// or an encoder-decoder, whose decoder begins with eos_src. Its parameters have the names that they have in the model itself, so that
/// files know no third kind of model.
struct TranslationModel final : nn::Module {
  TranslationModel() = default;
  /// Throws Error as the models do.
  TranslationModel(const Options& options, std::int64_t vocab, Device device);
  void visit(nn::Visitor& v) override;

  /// The loss of a batch on the device, which is what Batches::load gives:
  ///   prefix-lm        ids (B, T), labels (B, T), weights (B, T), prefix (B)
  ///   encoder-decoder  src (B, S), src_length (B), tgt_in (B, T), labels (B, T), weights (B, T)
  /// with weights in f32, 0 for what is no target, and all else in i64.
  Tensor loss(const Tensors& batch, const LossOptions& options = {}) const;

  /// The attention mask for rows with prefixes (B): with prefix_lm a source's tokens see the whole source.
  AttentionMask mask(const Tensor& prefix) const;
  /// Positions (B, columns) of a decoder-only LM's tokens; undefined where they are 0, 1, 2, ...
  Tensor position_ids(const Tensor& prefix, std::int64_t columns) const;

  // One of the two.
  std::optional<nn::DecoderLM> lm;
  std::optional<nn::EncoderDecoder> encoder_decoder;

 private:
  Options options_;
};

/// The number of parameters of the model that the options describe.
std::int64_t count_parameters(const Options& options, std::int64_t vocab);

}  // namespace tern::translate
