#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "common/checkpoint.h"
#include "common/option_table.h"
#include "nn/decoder_lm.h"
#include "train/precision.h"

namespace tern::translate {

/// Everything that a training run depends on. A preset fills it, options on the command line change single values, and
/// RUN/config.json keeps it.
struct Options {
  std::string preset = "quick";
  std::string data, src, tgt, out;
  std::string device = "auto";
  bool use_fused_kernel = true;
  std::string precision = "fp32";  ///< fp32, tf32, tf32x3, bf16 or fp16: train::Precision
  int threads = 0;                 ///< 0: one for each processor
  std::int64_t seed = 11111;
  apps::CheckpointOptions checkpoints;

  // Data
  std::int64_t vocab = 10000;
  std::int64_t word_limit = 40;  ///< pairs with words(src) + words(tgt) >= word_limit are left out; 0: no limit
  std::int64_t length = 40;      ///< tokens of source, target and their two end tokens; longer pairs are truncated
  std::int64_t samples = 20000;  ///< pairs drawn for each epoch; 0: all
  bool pad_to_length = true;     ///< rows of `length`; else a batch is as long as its longest pair
  bool prefix_lm = false;        ///< source tokens see the whole source

  // Model
  std::int64_t width = 256, layers = 4, heads = 8, ff = 256;
  double dropout = 0.1;
  bool restart_positions = false;  ///< the target's positions are its own, and start anew after the source
  bool tied_head = false;          ///< the head uses the token table as its weight
  std::string init = "default";    ///< default: each layer's own, as PyTorch's; gpt2: N(0, 0.02)

  // Training
  std::int64_t epochs = 20;
  std::int64_t updates = 0;  ///< stop after so many; 0: when the epochs are done
  std::int64_t batch_size = 128;
  double lr = 0.02;
  double beta2 = 0.999;
  /// The classic rate of 0.02 makes steps far too large for weights of this width where Adam divides by the root of the
  /// squared gradient alone: attention saturates and BLEU stays below 4. A floor of 3e-3 under the root bounds the
  /// steps (docs/classic.md).
  double adam_eps = 3e-3;
  std::string schedule = "constant";  ///< constant, cosine or inverse-sqrt
  std::int64_t warmup = 0;
  double clip = 0;  ///< gradient norm; 0: no clipping
  double label_smoothing = 0;
  std::int64_t bleu_every = 5;  ///< epochs between BLEU scores on the validation set; 0: at the end alone
};

/// The position of a target's first token, if positions restart there: the table's second half is the target's. Else -1.
inline std::int64_t reset_position(const Options& options) { return options.restart_positions ? options.length / 2 : -1; }

/// The values of a preset. Throws UsageError for an unknown name.
Options preset(const std::string& name);

using Entry = apps::Entry<Options>;
const std::vector<Entry>& entries();

/// Options that may change when a run goes on.
inline const std::vector<std::string> changeable = {"epochs", "updates"};

/// The fault of options that are each in their range, e.g. "heads: expected a divisor of ..."; "" if nothing is.
std::string conflict(const Options& options);

/// Of a run, whose options have been checked.
train::Precision precision(const Options& options);
nn::DecoderLMOptions model_options(const Options& options, std::int64_t vocab, Device device);

/// The options of an earlier run. Throws FileError, which begins with the file's name, for a value that is missing, of
/// another type or out of range.
Options from_json(const io::JsonObject& config, const std::filesystem::path& file);

}  // namespace tern::translate
