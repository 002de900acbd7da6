#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common/program.h"
#include "common/training_settings.h"
#include "nn/nn.h"
#include "tensor/dtype.h"

namespace tern::translate {

/// The configuration of a training run, stored in RUN/config.json: a preset's values, some of which options of the command line change. The
/// defaults here are those of the preset classic, and of runs that are older than the option.
struct Options : apps::TrainingSettings {
  Options() { preset = "best", seed = 11111, epochs = 20, batch_size = 128, lr = 0.02; }

  std::string src, tgt;
  std::string test;     ///< names of test sets, separated by commas; "": all in the directory
  std::string teacher;  ///< runs of teachers for distillation, separated by commas; "": none

  // Data
  std::int64_t vocab = 10000;
  std::int64_t word_limit = 40;  ///< pairs with words(src) + words(tgt) >= word_limit are left out; 0: no limit
  /// Maximum tokens: of source, target and their end tokens together for a decoder-only LM; of each side with its end token for an
  /// encoder-decoder. Longer pairs are truncated.
  std::int64_t length = 40;
  std::int64_t samples = 20000;  ///< pairs drawn for each epoch; 0: all
  bool pad_to_length = true;     ///< pad rows to `length`; else to the longest pair of the batch
  bool prefix_lm = false;        ///< source tokens attend to the whole source
  double bpe_dropout = 0;        ///< BPE-dropout of the training pairs, anew for each epoch; 0: none

  // Model
  std::string architecture = "prefix-lm";  ///< prefix-lm, a decoder-only LM (with prefix_lm or without), or encoder-decoder
  std::int64_t width = 256, layers = 4, heads = 8, ff = 256;
  std::int64_t encoder_layers = 0;  ///< for an encoder-decoder; 0: as many as decoder layers
  std::string positions = "learned";
  double dropout = 0.1;
  double attention_dropout = -1;   ///< dropout of attention probabilities; -1: as dropout
  double activation_dropout = 0;   ///< dropout of the feed-forward layers' hidden units
  bool restart_positions = false;  ///< the target has positions of its own: reset_position()
  bool tied_head = false;          ///< the head shares the token table
  std::string init = "default";    ///< default: each layer's own, as PyTorch's; gpt2: N(0, 0.02); xavier

  // Training. The schedule is constant, cosine, inverse-sqrt, linear, wsd or one-cycle.
  std::int64_t batch_tokens = 0;  ///< tokens of a batch with padding; 0: batches have batch_size pairs
  /// Steps of the classic rate 0.02 with the usual epsilon are too large for weights of this width: attention saturates, and BLEU stays
  /// below 4. An epsilon of 3e-3 bounds them (docs/translate.md).
  double adam_eps = 3e-3;
  double label_smoothing = 0;
  double r_drop = 0;  ///< alpha of train::r_drop_loss; 0: no R-Drop

  // Validation
  std::int64_t bleu_every = 5;  ///< epochs between BLEU scores on the validation set; 0: at the end only. With valid_every each has one
  std::int64_t beam = 1;        ///< beam size for the test sets; 1: greedy
  double length_penalty = 1;    ///< nn::GenerateOptions::length_penalty

  /// The format of the weights of a run that `quantise` wrote. A further key of config.json, and not an option of a training.
  std::optional<QuantFormat> quantization = {};
};

/// The key of a quantised run's config.json, whose value is the format's name.
inline constexpr const char* quantization_key = "quantization";
/// The format of a name, e.g. "q8_0"; none for other names.
std::optional<QuantFormat> quant_format_of(const std::string& name);
/// The format in a config.json; none if the run is not quantised. Throws FileError, which begins with the file's name, for an unknown
/// format.
std::optional<QuantFormat> quantization_of(const io::JsonObject& config, const std::filesystem::path& file);

inline bool is_encoder_decoder(const Options& options) { return options.architecture == "encoder-decoder"; }

/// The position of a target's first token if it has positions of its own, which are the second half of the table; else -1.
inline std::int64_t reset_position(const Options& options) { return options.restart_positions ? options.length / 2 : -1; }

/// The values of a preset. Throws UsageError for an unknown name.
Options preset(const std::string& name);

using Entry = apps::Entry<Options>;
const std::vector<Entry>& entries();

/// Options that may change when a run is resumed.
inline const std::vector<std::string> changeable = {"epochs", "updates", "patience", "beam", "length_penalty"};

/// The fault of options that do not fit together, e.g. "heads: expected a divisor of ..."; "" if there is none.
std::string conflict(const Options& options);

/// The options of the model of a run, whose options have been checked.
nn::DecoderLMOptions model_options(const Options& options, std::int64_t vocab, Device device);
nn::EncoderDecoderOptions encoder_decoder_options(const Options& options, std::int64_t vocab, Device device);

/// The options of an earlier run. Throws FileError, which begins with the file's name, for a value that is missing, of
/// another type or out of range.
Options from_json(const io::JsonObject& config, const std::filesystem::path& file);

}  // namespace tern::translate
