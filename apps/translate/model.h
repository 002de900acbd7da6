#pragma once
#include <optional>

#include "nn/nn.h"
#include "translate/options.h"

namespace tern::translate {

/// A batch on the device.
struct Batch {
  Tensor ids;      ///< (B, T) of i64: `<src> eos_src <tgt>` for a decoder-only LM, `eos_src <tgt>` for an encoder-decoder
  Tensor labels;   ///< (B, T) of i64: the next tokens
  Tensor weights;  ///< (B, T) of f32: 0 except at targets
  Tensor lengths;  ///< (B) of i64: tokens of the sources, which are a decoder-only LM's prefixes
  Tensor sources;  ///< (B, S) of i64, for the encoder; undefined for a decoder-only LM
};

/// Options of the loss.
struct LossOptions {
  Reduction reduction = Reduction::mean;  ///< over the weighted target tokens
  double label_smoothing = 0;
  double r_drop = 0;  ///< alpha of train::r_drop_loss; 0: no R-Drop
};

/// A translator's model: either a decoder-only LM of sequences `<src> eos_src <tgt> eos_tgt`, or an encoder-decoder whose decoder starts
/// with eos_src. Its parameters have the names of that model, so that the files are those of a DecoderLM or an EncoderDecoder.
struct TranslationModel final : nn::Module {
  TranslationModel() = default;
  /// Makes the model. Throws Error as nn::DecoderLM and nn::EncoderDecoder do.
  TranslationModel(const Options& options, std::int64_t vocab, Device device);
  void visit(nn::Visitor& v) override;

  /// The loss of a batch of Batches::load.
  Tensor loss(Batch batch, const LossOptions& options = {}) const;

  /// The attention mask for rows with prefixes (B): with prefix_lm the tokens of a source attend to the whole source.
  AttentionMask mask(const Tensor& prefix) const;
  /// Positions (B, columns) of a decoder-only LM's tokens; undefined for the default positions 0, 1, 2, ...
  Tensor position_ids(const Tensor& prefix, std::int64_t columns) const;

  // Exactly one of the two is set.
  std::optional<nn::DecoderLM> lm;
  std::optional<nn::EncoderDecoder> encoder_decoder;

 private:
  Options options_;
};

/// The number of parameters of the model that the options describe.
std::int64_t count_parameters(const Options& options, std::int64_t vocab);

}  // namespace tern::translate
