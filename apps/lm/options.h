#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "common/training_settings.h"
#include "nn/transformer.h"

namespace tern::lm {

/// The configuration of a training run, stored in RUN/config.json: a preset's values, some of which options of the command line change.
/// Models are of GPT-2's or Llama's shape, so that each can be exported; some of their options follow from others: see model_options().
struct Options : apps::TrainingSettings, nn::DecoderLMOptions {
  Options() {
    preset = "small", batch_size = 8, lr = 6e-4, beta2 = 0.95, weight_decay = 0.1, schedule = "cosine", warmup = 200, clip = 1;
    length = 1024, width = 768, layers = 12, heads = 12, dropout = 0, tied_head = true;
    vocab = 0;  // the tokenizer's
    ff = 0;     // 4 width, of llama's three matrices 8/3 width
    head_bias = false, initialization = nn::Initialization::gpt2;
  }
  using apps::Processors::device, apps::TrainingSettings::activation_checkpointing;  // texts of options

  std::string base;  ///< directory or file of the model to go on from; "": random weights
  std::string architecture = "gpt2";
  std::string activation_text = "default";  ///< default: gelu_tanh of gpt2, silu of llama
  std::string scaling_text = "none";        ///< none, linear,FACTOR or llama3,FACTOR,LENGTH,LOW,HIGH: see RopeScaling
  std::int64_t lora = 0;                    ///< rank of adapters, which alone are trained; 0: the model is trained
  double lora_alpha = 16;
  std::string lora_layers = "blocks.";  ///< words of nn::LowRankOptions::layers
  std::int64_t end_of_text = -1;        ///< token between documents; -1: none. Set from the data.
  std::string optimizer = "adamw";
  double muon_lr = 0.02;                  ///< Muon's, of the blocks' matrices
  std::int64_t valid_tokens = 1'000'000;  ///< of the validation text, at most
};

/// All presets, in the order in which help shows them.
std::vector<Options> presets();

using Entry = apps::Entry<Options>;
const std::vector<Entry>& entries();

/// Options that may change when a run is resumed.
inline const std::vector<std::string> changeable = {"epochs", "updates", "valid_every", "valid_tokens", "patience"};
/// Options that a model to go on from has decided.
inline const std::vector<std::string> of_model = {"architecture", "layers",   "width",     "heads",       "kv_heads",
                                                  "head_dim",     "ff",       "vocab",     "activation",  "bias",
                                                  "tied_head",    "norm_eps", "rope_base", "rope_scaling"};

/// Throws UsageError for options that are out of range or do not fit together.
void require_valid(const Options& options);

/// Of options that have been checked. `vocab` is the tokenizer's, if the options have none.
nn::DecoderLMOptions model_options(const Options& options, std::int64_t vocab, Device device);
/// Adds the adapters of the options to a model, if they have any.
void add_adapters(const Options& options, nn::DecoderLM& model);
/// Sets the options of a model's shape and length from a model.
void set_shape(Options& options, const nn::DecoderLMOptions& model);

}  // namespace tern::lm
