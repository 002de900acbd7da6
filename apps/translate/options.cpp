#include "translate/options.h"

#include <fmt/format.h>

#include <algorithm>

namespace tern::translate {

using apps::Check, apps::one_of, apps::real_number, apps::truth_value, apps::whole_number;

static Check one_of_presets() { return one_of({"quick", "classic"}); }

Options preset(const std::string& name) {
  Options options;
  options.preset = name;
  if (name == "classic") return options;
  if (name == "quick") {
    // A small model for the embedded corpus: two CPU cores train it in about two minutes.
    options.vocab = 1500;
    options.word_limit = 0;
    options.samples = 0;
    options.length = 80;
    options.pad_to_length = false;
    options.prefix_lm = true;
    options.restart_positions = true;
    options.width = 128;
    options.layers = 3;
    options.heads = 4;
    options.ff = 512;
    options.dropout = 0.1;
    options.epochs = 8;
    options.batch_size = 64;
    options.lr = 5e-3;
    options.beta2 = 0.98;
    options.adam_eps = 1e-9;
    options.schedule = "cosine";
    options.warmup = 200;
    options.clip = 1;
    options.bleu_every = 0;
    return options;
  }
  throw apps::UsageError("--preset: " + one_of_presets()(name));
}

namespace {

/// A language is the end of a file's name, and part of a special token.
std::string check_language(const std::string& text) {
  const bool is_plain = std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 127 && c != '/'; });
  return is_plain && !text.empty() && text.size() <= 64 ? "" : "expected a language as in train.de, without spaces and slashes";
}

}  // namespace

const std::vector<Entry>& entries() {
  // The upper ends only keep absurd values from reaching arithmetic and allocation.
  static const Check count = whole_number(1, 1'000'000), count_or_none = whole_number(0, 1'000'000'000);
  static const std::vector<Entry> table = {
      {"preset", &Options::preset, one_of_presets(), ""},
      {"src", &Options::src, check_language, ""},
      {"tgt", &Options::tgt, check_language, ""},
      {"use_fused_kernel", &Options::use_fused_kernel, truth_value(), "attention, norms and losses as fused kernels"},
      {"precision", &Options::precision, one_of({"fp32", "tf32", "tf32x3", "bf16", "fp16"}),
       "fp32, tf32, tf32x3, bf16 or fp16; 16 bits with float32 master weights", true},
      {"seed", &Options::seed, whole_number(0, std::int64_t{1} << 53), "of weights, order and dropout"},
      {"epochs", &Options::epochs, count, "passes over the training pairs"},
      {"updates", &Options::updates, count_or_none, "stop after so many updates, 0 for when the epochs are done"},
      {"batch_size", &Options::batch_size, count, "pairs in an update"},
      {"lr", &Options::lr, real_number(1e-12, 1e12), "Adam's learning rate, its peak under a schedule"},
      {"beta2", &Options::beta2, real_number(0, 0.9999999), "Adam's decay of squared gradients"},
      {"adam_eps", &Options::adam_eps, real_number(0, 1), "added to the root of Adam's squared gradients"},
      {"schedule", &Options::schedule, one_of({"constant", "cosine", "inverse-sqrt"}), "constant, cosine or inverse-sqrt learning rate"},
      {"warmup", &Options::warmup, count_or_none, "updates until the learning rate has risen"},
      {"clip", &Options::clip, real_number(0, 1e9), "largest gradient norm, 0 for any"},
      {"dropout", &Options::dropout, real_number(0, 0.99), "probability"},
      {"label_smoothing", &Options::label_smoothing, real_number(0, 0.99), "share of a target that is spread over the vocabulary"},
      // A vocabulary begins with the 256 bytes and three special tokens.
      {"vocab", &Options::vocab, whole_number(259, 500'000), "size of the joint vocabulary"},
      {"word_limit", &Options::word_limit, count_or_none, "leave out training pairs of so many words or more, 0 for none"},
      {"length", &Options::length, whole_number(4, 100'000), "tokens of source, target and their ends; longer pairs are cut"},
      {"pad_to_length", &Options::pad_to_length, truth_value(), "pad every pair to the length"},
      {"samples", &Options::samples, count_or_none, "pairs drawn for an epoch, 0 for all"},
      {"prefix_lm", &Options::prefix_lm, truth_value(), "source tokens see the whole source"},
      {"width", &Options::width, whole_number(1, 65'536), "of the model"},
      {"layers", &Options::layers, whole_number(1, 1024), "of the model"},
      {"heads", &Options::heads, whole_number(1, 1024), "of attention"},
      {"ff", &Options::ff, whole_number(1, 1'048'576), "inner width of the feed-forward layers"},
      {"restart_positions", &Options::restart_positions, truth_value(), "count a target's positions from its first token"},
      {"tied_head", &Options::tied_head, truth_value(), "use the token table as the weight of the head"},
      {"init", &Options::init, one_of({"default", "gpt2"}), "of the weights: default (each layer's own, as PyTorch's) or gpt2"},
      {"bleu_every", &Options::bleu_every, count_or_none, "epochs between validation BLEU scores, 0 for the end alone"},
  };
  return table;
}

std::string conflict(const Options& options) {
  if (options.src == options.tgt) return fmt::format("tgt: expected another language than the source's {}", options.src);
  if (options.width % options.heads != 0)
    return fmt::format("heads: expected a divisor of the width {} but got {}", options.width, options.heads);
  return "";
}

train::Precision precision(const Options& options) { return train::precision_of(options.precision).value(); }

nn::DecoderLMOptions model_options(const Options& options, std::int64_t vocab, Device device) {
  nn::DecoderLMOptions model;
  model.vocab = vocab;
  model.length = options.length;
  model.width = options.width;
  model.layers = options.layers;
  model.heads = options.heads;
  model.ff = options.ff;
  model.dropout = options.dropout;
  model.tied_head = options.tied_head;
  if (options.init == "gpt2") model.initialization = nn::Initialization::gpt2;
  model.use_fused_kernel = options.use_fused_kernel;
  model.device = device;
  return model;
}

Options from_json(const io::JsonObject& config, const std::filesystem::path& file) {
  Options options = apps::from_json(entries(), config, file);
  if (const std::string fault = conflict(options); !fault.empty()) throw io::FileError(fmt::format("{}: {}", file.string(), fault));
  return options;
}

}  // namespace tern::translate
