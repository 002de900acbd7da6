#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <span>

#include "nn/nn.h"
#include "text/bpe.h"
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

inline const std::string pad_token = "<pad>";
inline std::string end_token(const std::string& language) { return "<eos_" + language + ">"; }

/// A model with its tokenizer.
struct Translator {
  Options options;
  text::Tokenizer tokenizer;
  TranslationModel model;
  Device device;
  bool is_finished = false;  ///< the training of a loaded model has finished
  /// For a loaded model. Shared by copies of a Translator.
  std::shared_ptr<nn::DecodingGraphs> graphs = nullptr;

  std::int32_t eos_src() const { return *tokenizer.token_to_id(end_token(options.src)); }
  std::int32_t eos_tgt() const { return *tokenizer.token_to_id(end_token(options.tgt)); }
  std::int32_t pad() const { return *tokenizer.token_to_id(pad_token); }

  /// Maximum tokens of a source, so that its end token fits as well, and for a decoder-only LM one token of the target.
  std::int64_t source_room() const { return options.length - (model.lm ? 2 : 1); }
  /// The tokens of a source and its end token; none for a line that shows nothing. Sets `is_cut` if the source has more than `room` tokens,
  /// and is cut.
  nn::TokenIds source_tokens(const std::string& line, std::int64_t room, bool& is_cut) const;
  /// The text of a translation. Control characters become spaces, and leading spaces are removed.
  std::string text_of(const nn::TokenIds& tokens) const;
  /// The Continuation of sources, which include their end tokens.
  nn::Continuation read(const std::vector<nn::TokenIds>& sources) const;

  /// Loads a run of `train`, with a precision other than the training's if `precision` is not "". Throws FileError for a damaged run, which
  /// its digests show (io::RunDirectory::require_whole), and for files that do not fit together.
  static Translator load(const std::filesystem::path& run, Device device, const std::string& precision = "");
};

/// Greedy search, or beam search for a beam above 1.
nn::GenerateOptions beam_search(std::int64_t beam, double length_penalty);

struct Translation {
  std::string text;
  double score = 0;        ///< nn::Hypothesis::score
  std::size_t tokens = 0;  ///< without the end token
};

/// Translations of each line, at least one, the best first; a line that shows nothing gives an empty one. Several models are an ensemble
/// (nn::ensemble) and need the same tokenizer and languages. Lines are cut to the source_room() of all models; `truncated` counts these.
/// options.eos is ignored.
std::vector<std::vector<Translation>> translate(std::span<const Translator> models, std::span<const std::string> lines,
                                                nn::GenerateOptions options, std::size_t batch_size, std::size_t* truncated = nullptr);

}  // namespace tern::translate
