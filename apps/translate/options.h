#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common/lists.h"
#include "common/training_settings.h"
#include "nn/nn.h"
#include "tensor/quant_format.h"

namespace tern::translate {

/// Everything that a training run depends on. A preset fills it, options on the command line change single values, and
/// RUN/config.json keeps it.
/// Values here are those of the preset classic, and of runs from before there was the option.
struct Options : apps::RunSettings, apps::TrainingSettings {
  Options()
      : TrainingSettings{.preset = "best",
                         .seed = 11111,
                         .epochs = 20,
                         .batch_size = 128,
                         .lr = 0.02,
                         .beta2 = 0.999,
                         .weight_decay = 0,
                         .schedule = "constant"} {}

  std::string data, src, tgt;
  std::string test;     ///< names of test sets, with commas between; "": all that there are
  std::string teacher;  ///< runs whose translations are learned from as well, with commas between; "": none

  // Data
  std::int64_t vocab = 10000;
  std::int64_t word_limit = 40;  ///< pairs with words(src) + words(tgt) >= word_limit are left out; 0: no limit
  /// Of a decoder-only LM: tokens of source, target and their two end tokens. Of an encoder-decoder: tokens of each side and its end.
  /// Longer pairs are truncated.
  std::int64_t length = 40;
  std::int64_t samples = 20000;  ///< pairs drawn for each epoch; 0: all
  bool pad_to_length = true;     ///< rows of `length`; else a batch is as long as its longest pair
  bool prefix_lm = false;        ///< source tokens see the whole source
  double bpe_dropout = 0;        ///< of merges in the training pairs, drawn for each epoch; 0: the same tokens in each

  // Model
  std::string architecture = "prefix-lm";  ///< prefix-lm, a decoder-only LM (with prefix_lm or without), or encoder-decoder
  std::int64_t width = 256, layers = 4, heads = 8, ff = 256;
  std::int64_t encoder_layers = 0;  ///< of an encoder-decoder; 0: as many as the decoder has
  std::string positions = "learned";
  double dropout = 0.1;
  double attention_dropout = -1;   ///< of attention probabilities; -1: as dropout
  double activation_dropout = 0;   ///< of the feed-forward layers' hidden units
  bool restart_positions = false;  ///< the target's positions are its own, and start anew after the source
  bool tied_head = false;          ///< the head uses the token table as its weight
  std::string init = "default";    ///< default: each layer's own, as PyTorch's; gpt2: N(0, 0.02); xavier

  // Training. The schedule is constant, cosine, inverse-sqrt, linear, wsd or one-cycle.
  std::int64_t updates = 0;       ///< stop after so many; 0: when the epochs are done
  std::int64_t batch_tokens = 0;  ///< of a batch, padding included, instead of batch_size pairs; 0: those
  std::int64_t accumulate = 1;    ///< batches of an update
  /// The classic rate of 0.02 makes steps far too large for weights of this width where Adam divides by the root of the
  /// squared gradient alone: attention saturates and BLEU stays below 4. A floor of 3e-3 under the root bounds the
  /// steps (docs/classic.md).
  double adam_eps = 3e-3;
  double label_smoothing = 0;
  double r_drop = 0;  ///< alpha of train::r_drop_loss; 0: each batch goes through the model once
  double ema = 0;     ///< decay of train::Ema, whose weights are then the model; 0: the last weights are

  // Validation
  std::int64_t bleu_every = 5;   ///< epochs between BLEU scores on the validation set; 0: at the end alone
  std::int64_t valid_every = 0;  ///< updates between validations with a BLEU score, instead of epochs; 0: epochs
  std::int64_t patience = 0;     ///< scores without a better one, after which training ends; 0: it does not
  std::int64_t beam = 1;         ///< hypotheses of a sentence of the test sets; 1: greedy
  double length_penalty = 1;     ///< power of a hypothesis's length that its score is divided by

  /// The format of a run's weights, which `quantise` wrote: a key of its config.json beside the table's, and no option of a training.
  std::optional<QuantFormat> quantization = {};
};

/// The key of a quantised run's config.json, whose value is the format's name.
inline constexpr const char* quantization_key = "quantization";
/// Throws FileError, which begins with the file's name, for a format that there is not.
std::optional<QuantFormat> quantization_of(const io::JsonObject& config, const std::filesystem::path& file);

inline bool is_encoder_decoder(const Options& options) { return options.architecture == "encoder-decoder"; }

/// The position of a target's first token, if positions restart there: the table's second half is the target's. Else -1.
inline std::int64_t reset_position(const Options& options) { return options.restart_positions ? options.length / 2 : -1; }

/// The values of a preset. Throws UsageError for an unknown name.
Options preset(const std::string& name);

using Entry = apps::Entry<Options>;
const std::vector<Entry>& entries();

/// Options that may change when a run goes on.
inline const std::vector<std::string> changeable = {"epochs", "updates", "patience", "beam", "length_penalty"};

/// The fault of options that are each in their range, e.g. "heads: expected a divisor of ..."; "" if nothing is.
std::string conflict(const Options& options);

/// Of a run, whose options have been checked.
nn::DecoderLMOptions model_options(const Options& options, std::int64_t vocab, Device device);
nn::EncoderDecoderOptions encoder_decoder_options(const Options& options, std::int64_t vocab, Device device);

/// The options of an earlier run. Throws FileError, which begins with the file's name, for a value that is missing, of
/// another type or out of range.
Options from_json(const io::JsonObject& config, const std::filesystem::path& file);

}  // namespace tern::translate
