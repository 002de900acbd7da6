#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "common/training_settings.h"
#include "nn/transformer.h"

namespace tern::lm {

/// The configuration of a training run, stored in RUN/config.json: a preset's values, some of which options of the command line change.
/// Models are of GPT-2's or Llama's shape, so that each can be exported.
struct Options : apps::RunSettings, apps::TrainingSettings {
  Options()
      : TrainingSettings{.preset = "small",
                         .seed = 1,
                         .batch_size = 8,
                         .lr = 6e-4,
                         .beta2 = 0.95,
                         .weight_decay = 0.1,
                         .schedule = "cosine",
                         .warmup = 200,
                         .clip = 1} {}

  std::string data;  ///< directory that prepare wrote; a resumed run has its own

  // Model
  std::string base;  ///< directory or file of the model to go on from; "": random weights
  std::string architecture = "gpt2";
  std::int64_t layers = 12, width = 768, heads = 12, length = 1024;
  std::int64_t kv_heads = 0;           ///< 0: as many as heads
  std::int64_t head_dim = 0;           ///< 0: width / heads
  std::int64_t ff = 0;                 ///< hidden units; 0: 4 width, of llama's three matrices 8/3 width
  std::int64_t vocab = 0;              ///< 0: the tokenizer's
  std::string activation = "default";  ///< default: gelu_tanh of gpt2, silu of llama
  bool bias = true;                    ///< of gpt2
  bool tied_head = true;
  double norm_eps = 1e-5;
  double rope_base = 10000;
  std::string rope_scaling = "none";  ///< none, linear,FACTOR or llama3,FACTOR,LENGTH,LOW,HIGH: see RopeScaling
  double dropout = 0;
  std::int64_t lora = 0;  ///< rank of adapters, which alone are trained; 0: the model is trained
  double lora_alpha = 16;
  std::string lora_layers = "blocks.";  ///< words of nn::LowRankOptions::layers
  std::int64_t end_of_text = -1;        ///< token between documents; -1: none. Set from the data.

  // Training
  std::int64_t updates = 0;     ///< 0: `epochs` passes over the tokens
  std::int64_t accumulate = 1;  ///< batches of an update
  std::string optimizer = "adamw";
  double muon_lr = 0.02;  ///< Muon's, of the blocks' matrices
  double ema = 0;
  std::int64_t valid_every = 0;           ///< updates; 0: an epoch's
  std::int64_t valid_tokens = 1'000'000;  ///< of the validation text, at most
  std::int64_t patience = 0;
};

/// The values of a preset. Throws UsageError for an unknown name.
Options preset(const std::string& name);
/// All presets, in the order in which help shows them.
std::vector<Options> presets();

using Entry = apps::Entry<Options>;
const std::vector<Entry>& entries();

/// Options that may change when a run is resumed.
inline const std::vector<std::string> changeable = {"epochs", "updates", "valid_every", "valid_tokens", "patience"};
/// Options that a model to go on from has decided.
bool is_of_model(const std::string& key);

/// Throws UsageError for options that are out of range or do not fit together.
void require_valid(const Options& options);

/// Of options that have been checked. `vocab` is the tokenizer's, if the options have none.
nn::DecoderLMOptions model_options(const Options& options, std::int64_t vocab, Device device);
/// Adds the adapters of the options to a model, if they have any.
void add_adapters(const Options& options, nn::DecoderLM& model);
/// Sets the options of a model's shape from a model.
void set_shape(Options& options, const nn::DecoderLMOptions& model);

}  // namespace tern::lm
