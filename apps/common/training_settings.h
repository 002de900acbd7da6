#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "common/option_table.h"
#include "io/run_directory.h"
#include "nn/transformer.h"
#include "train/precision.h"
#include "trainer/ranks.h"
#include "trainer/run.h"

namespace tern::apps {

/// Texts of options for train::Precision and for CheckpointPolicy.
inline const std::vector<std::string> precision_names = {"fp32", "tf32", "tf32x3", "bf16", "fp16"};
inline const std::vector<std::string> checkpointing_names = {"none", "selective", "full"};

/// @{
/// The value of an option's text, which has been checked: learned, sinusoidal, rotary or none; default, gpt2 or xavier.
nn::Positions positions_of(const std::string& name);
nn::Initialization initialization_of(const std::string& name);
/// @}
/// The names of token mixers, in the order of nn::MixerKind.
std::vector<std::string> mixer_names();

/// The number of elements of a model's parameters, computed from the options alone. Tied parameters count once.
std::int64_t count_parameters(const nn::DecoderLMOptions& options);
std::int64_t count_parameters(const nn::EncoderDecoderOptions& options);

/// Throws UsageError if the training of a model of `parameters` parameters needs more than the device's memory. On the CPU the system would
/// otherwise grant the memory and kill the program when it is used. `remedy` names the options that reduce it.
void require_memory(std::int64_t parameters, Device device, const std::string& remedy);

/// Throws FileError if the file of a run's model is too small for so many parameters of so many bytes each, before memory is allocated for
/// a model that a damaged configuration may describe.
void require_weights(const io::RunDirectory& run, std::int64_t parameters, double bytes_each);

/// Throws UsageError for a precision that the device does not support.
void require_precision(train::Precision precision, Device device);

// Options that all training programs share: their declaration, their text in the help, their key in config.json.

/// Options of a training run that affect its results by rounding at most, and are not a part of config.json.
struct RunSettings : Processors {
  std::string out;           ///< the run directory
  std::string data;          ///< directory of the data, if the program reads one; "": the resumed run's
  std::int64_t profile = 0;  ///< updates to profile; 0: none
  bool compile = false;      ///< updates are compiled
  train::CheckpointOptions checkpoints;
  train::RankOptions ranks;
};

/// The part of a run's configuration that programs share. A program's Options inherit it, and set the defaults of its own; what is not in
/// its table of entries stays as it is here.
struct TrainingSettings : RunSettings {
  std::string preset;
  std::int64_t seed = 1;
  bool use_fused_kernel = true;
  std::string activation_checkpointing = "none";  ///< of checkpointing_names
  std::string precision = "fp32";                 ///< of precision_names
  std::int64_t epochs = 1;
  std::int64_t updates = 0;  ///< 0: those of the epochs
  std::int64_t batch_size = 32;
  std::int64_t accumulate = 1;  ///< batches of an update (gradient accumulation)
  double lr = 1e-3;             ///< peak learning rate
  double beta2 = 0.999;
  double weight_decay = 0;  ///< decoupled: AdamW's
  std::string schedule = "constant";
  std::int64_t warmup = 0;       ///< updates
  double clip = 0;               ///< gradient norm; 0: no clipping
  double ema = 0;                ///< decay of train::Ema, whose averages are the model; 0: no average
  std::int64_t valid_every = 0;  ///< updates between validations; 0: an epoch's
  std::int64_t patience = 0;     ///< the training ends after so many validations without a better model; 0: never
};

/// The precision of settings that have been checked.
inline train::Precision precision(const TrainingSettings& settings) { return train::precision_of(settings.precision).value(); }

/// Adds --gradient-sync, --bucket-size-mb and --shard, in the group `group` of the help.
void add_gradient_options(CLI::App& command, std::string& gradient_sync, double& bucket_size_mb, std::string& shard, const char* group);
/// Adds --profile [STEPS]. `steps` is 0 without the option, and default_profile_steps if it has no number.
inline constexpr std::int64_t default_profile_steps = 3;
inline const std::string profile_file_names = "trace.json, ops.md and memory.svg";
void add_profile_option(CLI::App& command, std::int64_t& steps);
/// Throws UsageError for an option with which a step needs its gradients at the same addresses each time.
void require_memory_that_stays(const char* option, parallel::Shard shard);
/// The device of a training. Throws UsageError for one that lacks the precision, and for --compile with sharded gradients.
Device device_of(const TrainingSettings& settings);
void add_compile_option(CLI::App& command, RunSettings& settings);  ///< adds --compile
/// Adds --compile, --resume, --checkpoint-every, --keep, --profile, the options of gradients and --rank-timeout.
void add_run_options(CLI::App& command, RunSettings& settings);

/// Words of a program for the help of the shared entries.
struct TrainingWords {
  std::string seeded;     ///< "weights, order and dropout": determined by the seed
  std::string examples;   ///< "training pairs": examples of an epoch
  std::string optimizer;  ///< "Adam"
};

/// The shared settings' entries for a program's table, which puts them in an order of its own.
template <class Options>
struct TrainingEntries {
  explicit TrainingEntries(const TrainingWords& words)
      : seed{"seed", &Options::seed, seed_value(), "of " + words.seeded},
        epochs{"epochs", &Options::epochs, positive_count(), "passes over the " + words.examples},
        lr{"lr", &Options::lr, real_number(1e-12, 1e12), words.optimizer + "'s learning rate, its peak under a schedule"},
        beta2{"beta2", &Options::beta2, real_number(0, 0.9999999), words.optimizer + "'s decay of squared gradients"} {}

  Entry<Options> use_fused_kernel{"use_fused_kernel", &Options::use_fused_kernel, truth_value(),
                                  "attention, norms and losses as fused kernels"};
  Entry<Options> activation_checkpointing{
      "activation_checkpointing", &Options::activation_checkpointing, one_of(checkpointing_names),
      "what backward computes again to save memory: none, selective (all but products and attention) or full (each layer)", true};
  Entry<Options> precision{"precision", &Options::precision, one_of(precision_names),
                           "fp32, tf32, tf32x3, bf16 or fp16; 16 bits with float32 master weights"};
  Entry<Options> warmup{"warmup", &Options::warmup, count_or_none(), "updates until the learning rate has risen"};
  Entry<Options> clip{"clip", &Options::clip, real_number(0, 1e9), "largest gradient norm, 0 for any"};
  Entry<Options> seed, epochs, lr, beta2;
};

}  // namespace tern::apps
