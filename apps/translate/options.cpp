#include "translate/options.h"

#include <fmt/format.h>

#include "common/program.h"

namespace tern::translate {

Options preset(const std::string& name) {
  Options options;
  options.preset = name;
  if (name == "classic") return options;
  if (name == "quick") {
    // A small model for the embedded corpus: two CPU cores train it in about two minutes.
    options.vocab = 1000;
    options.word_limit = 0;
    options.samples = 0;
    options.length = 80;
    options.pad_to_length = false;
    options.prefix_lm = true;
    options.width = 128;
    options.layers = 3;
    options.heads = 4;
    options.ff = 512;
    options.dropout = 0;
    options.epochs = 12;
    options.batch_size = 64;
    options.lr = 2e-3;
    options.beta2 = 0.98;
    options.adam_eps = 1e-9;
    options.schedule = "cosine";
    options.warmup = 200;
    options.clip = 1;
    options.bleu_every = 0;
    return options;
  }
  throw apps::UsageError(fmt::format("--preset {}: expected classic or quick", name));
}

nn::DecoderLMOptions model_options(const Options& options, std::int64_t vocab, Device device) {
  nn::DecoderLMOptions model;
  model.vocab = vocab;
  model.length = options.length;
  model.width = options.width;
  model.layers = options.layers;
  model.heads = options.heads;
  model.ff = options.ff;
  model.dropout = options.dropout;
  if (options.init == "gpt2") model.initialization = nn::Initialization::gpt2;
  model.use_fused_kernel = options.use_fused_kernel;
  model.device = device;
  return model;
}

namespace {

/// Shows every option that a run is remembered by to f, under its name: written once, used in both directions.
template <class O, class F>
void each_member(O& options, F f) {
  f("preset", options.preset);
  f("src", options.src);
  f("tgt", options.tgt);
  f("use_fused_kernel", options.use_fused_kernel);
  f("seed", options.seed);
  f("vocab", options.vocab);
  f("word_limit", options.word_limit);
  f("length", options.length);
  f("samples", options.samples);
  f("pad_to_length", options.pad_to_length);
  f("prefix_lm", options.prefix_lm);
  f("width", options.width);
  f("layers", options.layers);
  f("heads", options.heads);
  f("ff", options.ff);
  f("dropout", options.dropout);
  f("init", options.init);
  f("epochs", options.epochs);
  f("updates", options.updates);
  f("batch_size", options.batch_size);
  f("lr", options.lr);
  f("beta2", options.beta2);
  f("adam_eps", options.adam_eps);
  f("schedule", options.schedule);
  f("warmup", options.warmup);
  f("clip", options.clip);
  f("label_smoothing", options.label_smoothing);
  f("bleu_every", options.bleu_every);
}

}  // namespace

io::JsonObject to_json(const Options& options) {
  io::JsonObject json;
  each_member(options, [&](const char* name, const auto& value) { json.set(name, value); });
  return json;
}

Options from_json(const io::JsonObject& config) {
  Options options;
  each_member(options, [&]<class T>(const char* name, T& value) {
    if constexpr (std::is_same_v<T, std::string>) value = config.get_string(name);
    else if constexpr (std::is_same_v<T, bool>) value = config.get_bool(name);
    else if constexpr (std::is_same_v<T, double>) value = config.get_double(name);
    else value = config.get_int(name);
  });
  return options;
}

}  // namespace tern::translate
