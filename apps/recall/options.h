#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "common/checkpoint.h"
#include "common/option_table.h"
#include "common/ranks.h"
#include "nn/decoder_lm.h"
#include "recall/data_set.h"
#include "train/precision.h"

namespace tern::recall {

/// Everything that a training run depends on. A preset fills it, options on the command line change single values, and
/// RUN/config.json keeps it.
struct Options {
  std::string preset = "quick";
  std::string task = "recall";  ///< recall or mqar: see Task
  std::string out;
  std::string device = "auto";
  bool use_fused_kernel = true;
  std::string activation_checkpointing = "none";
  std::string precision = "fp32";  ///< fp32, tf32, tf32x3, bf16 or fp16: train::Precision
  int threads = 0;                 ///< 0: one for each processor
  std::int64_t seed = 1;
  std::int64_t profile = 0;  ///< updates to profile; 0: none
  apps::CheckpointOptions checkpoints;
  apps::RankOptions ranks;

  // Data
  std::int64_t pairs = 50, keys = 9, values = 10;
  std::int64_t length = 64, vocab = 8192;  ///< of mqar
  std::int64_t train_examples = 10000;
  std::int64_t valid_examples = 1000;  ///< on which training sees, once an epoch, how far it is
  std::int64_t test_examples = 5000;   ///< on which the end is measured, once

  // Model
  std::int64_t layers = 2, width = 64, heads = 4;
  std::int64_t mlp = 4;  ///< hidden units for each unit of width; 0: layers of attention alone
  std::string norm = "layer";
  std::string positions = "learned";
  double dropout = 0;         ///< of embeddings and attention probabilities
  double branch_dropout = 0;  ///< of each branch before it is added to the residual stream
  bool tied_head = false;
  bool causal = true;
  std::string init = "default";  ///< default: each layer's own, as PyTorch's; gpt2: N(0, 0.02)

  // Training
  std::string loss = "all";  ///< all tokens, or the answer alone
  std::int64_t epochs = 50;
  std::int64_t batch_size = 32;
  double lr = 5e-4;
  double beta2 = 0.999;
  double weight_decay = 0.01;
  std::string schedule = "cosine";  ///< constant, cosine (each update), cosine-epoch, linear, wsd or one-cycle
  std::int64_t warmup = 0;
  double clip = 0;    ///< gradient norm; 0: no clipping
  double target = 0;  ///< training stops at this validation accuracy; 0: when the epochs are done
};

/// The values of a preset. Throws UsageError for an unknown name.
Options preset(const std::string& name);
/// All presets, in the order in which help shows them.
std::vector<Options> presets();

using Entry = apps::Entry<Options>;
const std::vector<Entry>& entries();

/// Options that may change when a run goes on.
inline const std::vector<std::string> changeable = {"epochs", "target"};

/// The task that alone has this option, or "" where both have it.
std::string task_of(const Entry& entry);

/// Throws UsageError for options that are out of range or do not fit together.
void require_valid(const Options& options);

/// Of options that have been checked.
Task task(const Options& options);
train::Precision precision(const Options& options);
nn::DecoderLMOptions model_options(const Options& options, Device device);

}  // namespace tern::recall
