#include "recall/options.h"

#include <algorithm>
#include <sstream>

namespace tern::recall {

using apps::Check, apps::one_of, apps::real_number, apps::truth_value, apps::whole_number;

namespace {

std::vector<std::string> names_in(const std::string& list) {
  std::vector<std::string> names;
  std::istringstream text(list + ",");
  for (std::string name; std::getline(text, name, ',');) names.push_back(name);
  return names;
}

Check list_of_mixers() {
  return [one = one_of(apps::mixer_names())](const std::string& list) {
    for (const std::string& name : names_in(list))
      if (std::string wrong = one(name); !wrong.empty()) return wrong;
    return std::string();
  };
}

/// The layers' mixers; none if all are attention.
std::vector<nn::MixerOptions> mixers(const Options& options) {
  std::vector<nn::MixerOptions> result;
  for (const std::string& name : names_in(options.mixer))
    result.push_back({.kind = nn::mixer_kind_of(name).value(), .window = options.window});
  const bool has_others =
      std::any_of(result.begin(), result.end(), [](const auto& mixer) { return mixer.kind != nn::MixerKind::attention; });
  return has_others ? result : std::vector<nn::MixerOptions>();
}

/// Small enough for two CPU cores. Learned positions would end at a lower accuracy than rotary ones (docs/recall.md).
Options quick() {
  Options options;
  options.preset = "quick";
  options.heads = 2;
  options.mlp = 2;
  options.positions = "rotary";
  options.epochs = 6;
  options.lr = 2e-3;
  options.beta2 = 0.98;
  options.warmup = 100;
  options.clip = 1;
  return options;
}

/// Model and settings of Stanford CS229S, project 0.
Options classic() {
  Options options;
  options.preset = "classic";
  options.layers = 4;
  options.width = 256;
  options.dropout = 0.1;
  options.schedule = "cosine-epoch";
  options.target = 0.98;
  return options;
}

/// Zoology's attention baseline: two layers, one attention head, no MLP, a tied output head. With its learned positions the model only
/// knows the set of possible values after three epochs, by when rotary positions have solved the task.
Options mqar() {
  Options options;
  options.preset = "mqar";
  options.task = "mqar";
  options.pairs = 4;
  options.heads = 1;
  options.mlp = 0;
  options.positions = "rotary";
  options.tied_head = true;
  options.loss = "answer";
  options.train_examples = 100000;
  options.epochs = 16;
  options.lr = 1e-3;
  options.weight_decay = 0.1;
  options.warmup = 200;
  options.clip = 1;
  options.target = 0.995;
  return options;
}

}  // namespace

std::vector<Options> presets() { return {quick(), classic(), mqar()}; }

const std::vector<Entry>& entries() {
  static const apps::TrainingEntries<Options> shared(
      {.seeded = "data, weights, order and dropout", .examples = "training examples", .optimizer = "AdamW"});
  static const Check count = apps::positive_count();
  static const std::vector<Entry> table = {
      {"preset", &Options::preset, one_of(apps::preset_names(presets())), ""},
      {"task", &Options::task, one_of({"recall", "mqar"}), ""},
      shared.use_fused_kernel,
      shared.activation_checkpointing,
      shared.precision,
      shared.seed,
      {"pairs", &Options::pairs, whole_number(1, 100'000), "pairs of a key and its value in an example"},
      {"keys", &Options::keys, whole_number(1, 100'000), "different keys of recall"},
      {"values", &Options::values, whole_number(1, 100'000), "different values of recall"},
      {"length", &Options::length, whole_number(4, 100'000), "tokens of an example of mqar"},
      {"vocab", &Options::vocab, whole_number(4, 500'000), "tokens that mqar knows: half keys, half values"},
      {"harder", &Options::harder, truth_value(),
       "mqar of several sizes up to the length and its pairs, tested at twice and four times as many, too"},
      {"train_examples", &Options::train_examples, whole_number(1, 10'000'000), "examples of an epoch"},
      {"valid_examples", &Options::valid_examples, count, "examples that measure each epoch"},
      {"test_examples", &Options::test_examples, count, "examples that measure the end"},
      {"layers", &Options::layers, whole_number(1, 1024), "transformer layers"},
      {"width", &Options::width, whole_number(1, 65536), "of the residual stream"},
      {"heads", &Options::heads, whole_number(1, 4096), "attention heads, a divisor of the width"},
      {"mlp", &Options::mlp, whole_number(0, 64), "the MLP's hidden units for each unit of width, 0 for no MLP"},
      {"mixer", &Options::mixer, list_of_mixers(),
       fmt::format("of the tokens: {}, or several for the layers in turn", fmt::join(apps::mixer_names(), ", "))},
      {"window", &Options::window, whole_number(1, 100'000), "tokens that one sees by the mixer window"},
      {"norm", &Options::norm, one_of({"layer", "rms", "none"}), "layer, rms or none"},
      {"positions", &Options::positions, one_of({"learned", "rotary", "none"}), "learned, rotary or none"},
      {"dropout", &Options::dropout, real_number(0, 0.99), "probability, for embeddings and attention"},
      {"branch_dropout", &Options::branch_dropout, real_number(0, 0.99), "probability, for what joins the residual stream"},
      {"tied_head", &Options::tied_head, truth_value(), "the head shares the token table"},
      {"causal", &Options::causal, truth_value(), "a token sees none that follow it"},
      {"init", &Options::init, one_of({"default", "gpt2"}), "of the weights: default (each layer's own, as PyTorch's) or gpt2"},
      {"loss", &Options::loss, one_of({"all", "answer"}), "over all tokens, or the answer alone"},
      shared.epochs,
      {"batch_size", &Options::batch_size, count, "examples in an update"},
      shared.lr,
      shared.beta2,
      {"weight_decay", &Options::weight_decay, real_number(0, 1e3), "AdamW's"},
      {"schedule", &Options::schedule, one_of({"constant", "cosine", "cosine-epoch", "linear", "wsd", "one-cycle"}),
       "constant, cosine, cosine-epoch, which keeps an epoch's rate, linear, wsd, which falls in the last fifth, or one-cycle"},
      shared.warmup,
      shared.clip,
      {"target", &Options::target, real_number(0, 1), "stop at this validation accuracy, 0 for when the epochs are done"},
      {"patience", &Options::patience, whole_number(0, 1'000'000), "stop after so many epochs without a better model, 0 for never", true},
      {"gain", &Options::gain, real_number(0, 1), "validation accuracy by which a model is better, for --patience"},
  };
  return table;
}

std::string task_of(const Entry& entry) {
  if (entry.key == "keys" || entry.key == "values") return "recall";
  if (entry.key == "length" || entry.key == "vocab" || entry.key == "harder") return "mqar";
  return "";
}

static std::string conflict(const Options& options) {
  const bool is_mqar = options.task == "mqar";
  if (options.width % options.heads != 0)
    return fmt::format("heads: expected a divisor of the width {} but got {}", options.width, options.heads);
  if (options.positions == "rotary" && options.width / options.heads % 2 != 0)
    return fmt::format("positions: rotary ones turn pairs, expected heads of an even size but got {}", options.width / options.heads);
  if (!options.causal && !mixers(options).empty()) return "mixer: expected attention with causal False but got " + options.mixer;
  if (is_mqar && 4 * options.pairs > options.length)
    return fmt::format("pairs: expected at most a quarter of the length {} but got {}", options.length, options.pairs);
  if (const std::int64_t pairs = (options.harder ? 4 : 1) * options.pairs; is_mqar && pairs > options.vocab / 2 - 1)
    return fmt::format("pairs: expected at most {} keys, half the vocabulary, but got {}{}", options.vocab / 2 - 1, pairs,
                       options.harder ? " in the longest test" : "");
  if (options.harder && options.length < 16) return fmt::format("length: expected 16 or more with harder but got {}", options.length);
  if (is_mqar && options.loss == "all") return "loss: mqar asks for answers alone; expected answer but got all";
  return "";
}

void require_valid(const Options& options) { apps::require_valid(entries(), options, conflict); }

Task task(const Options& options) {
  return {.is_mqar = options.task == "mqar",
          .pairs = options.pairs,
          .keys = options.keys,
          .values = options.values,
          .length = options.length,
          .vocab = options.vocab,
          .harder = options.harder};
}

nn::DecoderLMOptions model_options(const Options& options, Device device) {
  nn::DecoderLMOptions model;
  model.vocab = task(options).ids();
  const std::vector<Task> longer = task(options).longer();
  model.length = (longer.empty() ? task(options) : longer.back()).columns();
  model.width = options.width;
  model.layers = options.layers;
  model.heads = options.heads;
  model.ff = options.mlp * options.width;
  model.dropout = options.dropout;
  model.norm = options.norm == "layer" ? nn::NormKind::layer : options.norm == "rms" ? nn::NormKind::rms : nn::NormKind::none;
  model.positions = apps::positions_of(options.positions);
  model.tied_head = options.tied_head;
  model.mixers = mixers(options);
  model.head_bias = false;
  model.initialization = apps::initialization_of(options.init);
  model.activation_checkpointing = checkpoint_policy_of(options.activation_checkpointing).value();
  model.device = device;
  return model;
}

}  // namespace tern::recall
