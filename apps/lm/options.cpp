#include "lm/options.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/hugging_face.h"
#include "nn/low_rank.h"

namespace tern::lm {

using apps::Check, apps::count_or_none, apps::one_of, apps::positive_count, apps::real_number, apps::truth_value, apps::whole_number;

namespace {

Options gpt2(const char* name, std::int64_t layers, std::int64_t width, std::int64_t heads, double lr) {
  Options options;
  options.preset = name;
  options.layers = layers;
  options.width = width;
  options.heads = heads;
  options.lr = lr;
  return options;
}

Options llama(const char* name, std::int64_t layers, std::int64_t width, std::int64_t heads, std::int64_t kv_heads, std::int64_t ff) {
  Options options = gpt2(name, layers, width, heads, 3e-4);
  options.architecture = "llama";
  options.kv_heads = kv_heads;
  options.ff = ff;
  options.bias = false;
  options.length = 2048;
  options.rope_base = 500'000;
  return options;
}

/// Two minutes on two CPU cores.
Options tiny() {
  Options options = llama("tiny", 4, 128, 4, 0, 0);
  options.length = 128;
  options.rope_base = 10000;
  options.batch_size = 16;
  options.lr = 3e-3;
  options.warmup = 50;
  options.dropout = 0.1;
  options.updates = 600;
  options.valid_every = 100;
  return options;
}

/// The model of Stanford's CS336, assignment 1, on TinyStories.
Options cs336() {
  Options options = llama("cs336", 4, 512, 16, 0, 1344);
  options.length = 256;
  options.rope_base = 10000;
  options.tied_head = false;
  options.batch_size = 128;
  options.lr = 1e-3;
  return options;
}

/// Llama 3.1's, over Llama 3's vocabulary as those of 3.2, whose heads are tied.
Options llama_8b() {
  Options options = llama("llama-8b", 32, 4096, 32, 8, 14336);
  options.tied_head = false;
  return options;
}

/// The scaling of a text; none for another text.
std::optional<RopeScaling> scaling_of(const std::string& text) {
  const std::vector<std::string> words = apps::words(text);
  std::vector<double> x;
  for (std::size_t i = 1; i < words.size(); ++i) {
    if (!real_number(1e-6, 1e9)(words[i]).empty()) return {};
    x.push_back(std::stod(words[i]));
  }
  if (text == "none") return RopeScaling{};
  if (x.size() == 1 && words[0] == "linear") return RopeScaling{.factor = x[0]};
  if (x.size() == 4 && words[0] == "llama3")
    return RopeScaling{.factor = x[0], .original_length = static_cast<std::int64_t>(x[1]), .low_turns = x[2], .high_turns = x[3]};
  return {};
}

std::string check_scaling(const std::string& text) {
  return scaling_of(text) ? "" : "expected none, linear,FACTOR or llama3,FACTOR,LENGTH,LOW,HIGH but got " + text;
}

std::string text_of(const RopeScaling& scaling) {
  if (scaling.original_length > 0)
    return fmt::format("llama3,{},{},{},{}", scaling.factor, scaling.original_length, scaling.low_turns, scaling.high_turns);
  return scaling.factor == 1 ? "none" : fmt::format("linear,{}", scaling.factor);
}

}  // namespace

std::vector<Options> presets() {
  return {tiny(),
          gpt2("small", 12, 768, 12, 6e-4),
          gpt2("medium", 24, 1024, 16, 3e-4),
          gpt2("large", 36, 1280, 20, 2.5e-4),
          gpt2("xl", 48, 1600, 25, 2e-4),
          cs336(),
          llama("llama-1b", 16, 2048, 32, 8, 8192),
          llama("llama-3b", 28, 3072, 24, 8, 8192),
          llama_8b()};
}

const std::vector<Entry>& entries() {
  static const apps::TrainingEntries<Options> shared(
      {.seeded = "weights, order and dropout", .examples = "tokens, if --updates is 0", .optimizer = "AdamW"});
  static const std::vector<Entry> table = {
      {"preset", &Options::preset, one_of(apps::preset_names(presets())), ""},
      {"base", &Options::base, [](const std::string&) { return std::string(); }, ""},
      shared.use_fused_kernel,
      shared.activation_checkpointing,
      shared.precision,
      shared.seed,
      {"architecture", &Options::architecture, one_of({"gpt2", "llama"}),
       "gpt2 (LayerNorm, learned positions) or llama (RMSNorm, rotary positions, gated feed-forward blocks)"},
      {"layers", &Options::layers, whole_number(1, 1024), "transformer layers"},
      {"width", &Options::width, whole_number(1, 65536), "of the residual stream"},
      {"heads", &Options::heads, whole_number(1, 4096), "attention heads"},
      {"kv_heads", &Options::kv_heads, whole_number(0, 4096), "key and value heads, a divisor of the heads; 0: as many"},
      {"head_dim", &Options::head_dim, whole_number(0, 4096), "elements of a head; 0: width / heads"},
      {"ff", &Options::ff, whole_number(0, 1'000'000), "hidden units of the feed-forward blocks; 0: 4 width, of llama 8/3 width"},
      {"length", &Options::length, whole_number(1, 1'000'000), "tokens that the model sees"},
      {"vocab", &Options::vocab, whole_number(0, 1'000'000), "tokens that the model knows; 0: as many as the tokenizer"},
      {"activation", &Options::activation_text, one_of({"default", "gelu", "gelu_tanh", "relu", "silu"}),
       "default (gelu_tanh of gpt2, silu of llama), gelu, gelu_tanh, relu or silu"},
      {"bias", &Options::bias, truth_value(), "biases of the linear layers; gpt2 has them"},
      {"tied_head", &Options::tied_head, truth_value(), "the head shares the token table"},
      {"norm_eps", &Options::layer_norm_eps, real_number(1e-12, 1), "added to a norm's variance"},
      {"rope_base", &Options::rope_base, real_number(1, 1e12), "base of rotary positions"},
      {"rope_scaling", &Options::scaling_text, check_scaling, "of rotary positions: none, linear,FACTOR or llama3,FACTOR,LENGTH,LOW,HIGH"},
      {"dropout", &Options::dropout, real_number(0, 0.99), "probability, for embeddings, attention and branches"},
      {"lora", &Options::lora, whole_number(0, 65536), "rank of the adapters of --init's model, which alone are trained; 0 for none"},
      {"lora_alpha", &Options::lora_alpha, real_number(1e-6, 1e6), "the adapters are scaled by this / --lora"},
      {"lora_layers", &Options::lora_layers, apps::list_of([](const std::string&) { return std::string(); }),
       "parts of the names of layers with adapters: qkv,ff. for instance"},
      {"end_of_text", &Options::end_of_text, whole_number(-1, 1'000'000), ""},
      shared.epochs,
      {"updates", &Options::updates, count_or_none(), "of the whole training; 0: as many as --epochs has"},
      {"batch_size", &Options::batch_size, positive_count(), "rows of --length tokens in a batch"},
      {"accumulate", &Options::accumulate, positive_count(), "batches in an update"},
      {"optimizer", &Options::optimizer, one_of({"adamw", "muon"}), "adamw, or muon for the blocks' matrices and AdamW for the rest"},
      shared.lr,
      {"muon_lr", &Options::muon_lr, real_number(1e-12, 1e12), "Muon's learning rate, its peak under a schedule"},
      shared.beta2,
      {"weight_decay", &Options::weight_decay, real_number(0, 1e3), "of matrices"},
      {"schedule", &Options::schedule, one_of({"constant", "cosine", "linear", "wsd", "one-cycle", "inverse-sqrt"}),
       "constant, cosine, linear, wsd, which falls in the last fifth, one-cycle or inverse-sqrt"},
      shared.warmup,
      shared.clip,
      {"ema", &Options::ema, real_number(0, 0.9999999), "decay of weight averages, which are the model then; 0 for none"},
      {"valid_every", &Options::valid_every, count_or_none(), "updates between validations; 0: an epoch's"},
      {"valid_tokens", &Options::valid_tokens, positive_count(), "most tokens of the validation text to measure"},
      {"patience", &Options::patience, whole_number(0, 1'000'000), "end after so many validations without a better model; 0 for never"},
  };
  return table;
}

static std::string conflict(const Options& options) {
  if (options.head_dim == 0 && options.width % options.heads != 0)
    return fmt::format("heads: expected a divisor of the width {}, or a --head-dim, but got {}", options.width, options.heads);
  if (options.kv_heads > 0 && options.heads % options.kv_heads != 0)
    return fmt::format("kv-heads: expected a divisor of the heads {} but got {}", options.heads, options.kv_heads);
  const std::int64_t head_dim = options.head_dim > 0 ? options.head_dim : options.width / options.heads;
  if (options.architecture == "llama" && head_dim % 2 != 0)
    return fmt::format("heads: rotary positions turn pairs, expected heads of an even size but got {}", head_dim);
  if (options.lora > 0 && options.base.empty()) return "lora: adapters change a model: name it by --init";
  try {
    static_cast<void>(models::detail::config_of(model_options(options, 1, cpu)));
  } catch (const Error& error) {
    return fmt::format("architecture: {}: {}", options.architecture, error.what());
  }
  return "";
}

void require_valid(const Options& options) { apps::require_valid(entries(), options, conflict); }

nn::DecoderLMOptions model_options(const Options& options, std::int64_t vocab, Device device) {
  const bool is_llama = options.architecture == "llama";
  nn::DecoderLMOptions model = options;
  if (model.vocab == 0) model.vocab = vocab;
  if (model.ff == 0) model.ff = is_llama ? (8 * model.width / 3 + 63) / 64 * 64 : 4 * model.width;
  model.activation = is_llama ? nn::Activation::silu : nn::Activation::gelu_tanh;
  for (const nn::Activation each : {nn::Activation::gelu, nn::Activation::gelu_tanh, nn::Activation::relu, nn::Activation::silu})
    if (options.activation_text == nn::name(each)) model.activation = each;
  model.gated = is_llama;
  model.norm = is_llama ? nn::NormKind::rms : nn::NormKind::layer;
  model.positions = is_llama ? nn::Positions::rotary : nn::Positions::learned;
  model.rope_pairs = is_llama ? RopePairs::halves : RopePairs::adjacent;
  model.rope_scaling = scaling_of(options.scaling_text).value();
  model.activation_checkpointing = checkpoint_policy_of(options.activation_checkpointing).value();
  model.device = device;
  return model;
}

void add_adapters(const Options& options, nn::DecoderLM& model) {
  if (options.lora > 0)
    nn::add_low_rank(model, {.rank = options.lora, .alpha = options.lora_alpha, .layers = apps::words(options.lora_layers)});
}

void set_shape(Options& options, const nn::DecoderLMOptions& model) {
  options.length = model.length;
  Options base;
  static_cast<nn::DecoderLMOptions&>(base) = model;
  base.architecture = model.norm == nn::NormKind::rms ? "llama" : "gpt2";
  base.activation_text = nn::name(model.activation);
  base.scaling_text = text_of(model.rope_scaling);
  for (const Entry& entry : entries())
    if (apps::contains(of_model, entry.key)) entry.set(options, entry.text(base));
}

}  // namespace tern::lm
