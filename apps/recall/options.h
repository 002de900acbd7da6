#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "common/training_settings.h"
#include "nn/transformer.h"
#include "recall/data_set.h"

namespace tern::recall {

/// The configuration of a training run, stored in RUN/config.json: a preset's values, some of which options of the command line change.
struct Options : apps::TrainingSettings {
  Options() { preset = "quick", epochs = 50, lr = 5e-4, weight_decay = 0.01, schedule = "cosine"; }

  std::string task = "recall";  ///< recall or mqar: see Task

  // Data
  std::int64_t pairs = 50, keys = 9, values = 10;
  std::int64_t length = 64, vocab = 8192;  ///< for mqar
  bool harder = false;                     ///< for mqar: see Task
  std::int64_t train_examples = 10000;
  std::int64_t valid_examples = 1000;  ///< examples for the validation after each epoch
  std::int64_t test_examples = 5000;   ///< examples for the test at the end

  // Model
  std::int64_t layers = 2, width = 64, heads = 4;
  std::int64_t mlp = 4;             ///< hidden units for each unit of width; 0: no MLP
  std::string mixer = "attention";  ///< names of nn::MixerKind, with commas between: layer i has that of i mod their number
  std::int64_t window = 32;         ///< of the mixer `window`
  std::string norm = "layer";
  std::string positions = "learned";
  double dropout = 0;         ///< dropout of embeddings and attention probabilities
  double branch_dropout = 0;  ///< dropout of each branch before it is added to the residual stream
  bool tied_head = false;
  bool causal = true;
  std::string init = "default";  ///< default: each layer's own, as PyTorch's; gpt2: N(0, 0.02)

  // Training. The schedule is constant, cosine (each update), cosine-epoch, linear, wsd or one-cycle.
  std::string loss = "all";  ///< targets of the loss: all tokens, or the answer
  double target = 0;         ///< validation accuracy at which training stops; 0: after all epochs
  double gain = 0;           ///< validation accuracy by which a model is better, for patience
};

/// All presets, in the order in which help shows them.
std::vector<Options> presets();

using Entry = apps::Entry<Options>;
const std::vector<Entry>& entries();

/// Options that may change when a run is resumed.
inline const std::vector<std::string> changeable = {"epochs", "target"};

/// The only task with this option; "" if both have it.
std::string task_of(const Entry& entry);

/// Throws UsageError for options that are out of range or do not fit together.
void require_valid(const Options& options);

/// Of options that have been checked.
Task task(const Options& options);
nn::DecoderLMOptions model_options(const Options& options, Device device);

}  // namespace tern::recall
