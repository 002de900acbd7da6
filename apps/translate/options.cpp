#include "translate/options.h"

#include <fmt/format.h>

#include <algorithm>

namespace tern::translate {

using apps::Check, apps::one_of, apps::real_number, apps::truth_value, apps::whole_number;

static Check one_of_presets() { return one_of({"best", "quick", "classic"}); }

/// The settings that the presets best and quick share. On corpora of these sizes regularisation and an average of the weights gain more
/// than width, and an encoder-decoder is better than a decoder-only LM (bench/translator.md).
static Options recipe() {
  Options options;
  options.word_limit = 0;
  options.length = 256;
  options.samples = 0;
  options.pad_to_length = false;
  options.prefix_lm = true;
  options.architecture = "encoder-decoder";
  options.heads = 4;
  options.positions = "rotary";
  options.attention_dropout = 0.1;
  options.tied_head = true;
  options.init = "xavier";
  options.batch_size = 64;
  options.beta2 = 0.98;
  options.adam_eps = 1e-9;
  options.clip = 1;
  options.label_smoothing = 0.1;
  options.bleu_every = 2;
  options.patience = 5;
  options.beam = 5;
  return options;
}

/// For real data and a GPU: narrow and deep, with R-Drop.
static Options best() {
  Options options = recipe();
  options.layers = 6;
  options.ff = 1024;
  options.dropout = 0.3;
  options.epochs = 40;
  options.batch_tokens = 4096;
  options.lr = 2e-3;
  options.schedule = "inverse-sqrt";
  options.warmup = 1000;
  options.r_drop = 1;
  options.ema = 0.999;
  return options;
}

/// For the embedded corpus: trains on two CPU cores in about two minutes. For its 800 updates the learning rate is higher and decays to 0.
static Options quick() {
  Options options = recipe();
  options.vocab = 1500;
  options.width = 128;
  options.layers = 3;
  options.ff = 512;
  options.epochs = 5;
  options.batch_tokens = 2048;
  options.lr = 5e-3;
  options.schedule = "cosine";
  options.warmup = 200;
  options.ema = 0.99;
  return options;
}

Options preset(const std::string& name) {
  Options options;
  if (name == "best") options = best();
  else if (name == "quick") options = quick();
  else if (name != "classic") throw apps::UsageError("--preset: " + one_of_presets()(name));
  options.preset = name;
  return options;
}

namespace {

/// Check of a language, which is the suffix of a file's name and a part of a special token.
std::string check_language(const std::string& text) {
  const bool is_plain = std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 127 && c != '/'; });
  return is_plain && !text.empty() && text.size() <= 64 ? "" : "expected a language as in train.de, without spaces and slashes";
}

/// Check of names separated by commas, none of them empty.
std::string check_list(const std::string& text) {
  if (text.empty()) return "";
  const std::vector<std::string> words = apps::words(text);
  return std::none_of(words.begin(), words.end(), [](const std::string& word) { return word.empty(); })
             ? ""
             : "expected names with one comma between them";
}

}  // namespace

const std::vector<Entry>& entries() {
  static const apps::TrainingEntries<Options> shared(
      {.seeded = "weights, order and dropout", .examples = "training pairs", .optimizer = "Adam"});
  static const Check count_or_none = apps::count_or_none();
  static const std::vector<Entry> table = {
      {"preset", &Options::preset, one_of_presets(), ""},
      {"src", &Options::src, check_language, ""},
      {"tgt", &Options::tgt, check_language, ""},
      shared.use_fused_kernel,
      shared.activation_checkpointing,
      shared.precision.or_lacking(),
      shared.seed,
      shared.epochs,
      {"updates", &Options::updates, count_or_none, "stop after so many updates, 0 for when the epochs are done"},
      {"batch_size", &Options::batch_size, apps::positive_count(), "pairs in a batch; with --batch-tokens those of validation alone"},
      {"batch_tokens", &Options::batch_tokens, count_or_none,
       "tokens in a batch of pairs of similar length, with padding, 0 for --batch-size pairs", true},
      {"accumulate", &Options::accumulate, whole_number(1, 10'000), "batches in an update", true},
      shared.lr,
      shared.beta2,
      {"adam_eps", &Options::adam_eps, real_number(0, 1), "added to the root of Adam's squared gradients"},
      {"schedule", &Options::schedule, one_of({"constant", "cosine", "inverse-sqrt", "linear", "wsd", "one-cycle"}),
       "constant, cosine, inverse-sqrt, linear, wsd, which falls in the last fifth, or one-cycle learning rate"},
      shared.warmup,
      shared.clip,
      {"weight_decay", &Options::weight_decay, real_number(0, 1e6), "AdamW's, times the learning rate", true},
      {"dropout", &Options::dropout, real_number(0, 0.99), "probability, of embeddings and of what joins the residual stream"},
      {"attention_dropout", &Options::attention_dropout, real_number(-1, 0.99), "of attention probabilities, -1 for --dropout", true},
      {"activation_dropout", &Options::activation_dropout, real_number(0, 0.99), "of the feed-forward layers' hidden units", true},
      {"bpe_dropout", &Options::bpe_dropout, real_number(0, 1), "of the merges in training pairs, drawn for each epoch", true},
      {"r_drop", &Options::r_drop, real_number(0, 1e6), "each pair goes through twice, with so much weight on agreement, 0 for once", true},
      {"ema", &Options::ema, real_number(0, 0.9999999), "decay of an average of the weights, which is the model then, 0 for none", true},
      {"label_smoothing", &Options::label_smoothing, real_number(0, 0.99), "share of a target that is spread over the vocabulary"},
      // A vocabulary contains at least the 256 bytes and three special tokens.
      {"vocab", &Options::vocab, whole_number(259, 500'000), "size of the joint vocabulary"},
      {"word_limit", &Options::word_limit, count_or_none, "leave out training pairs of so many words or more, 0 for none"},
      {"length", &Options::length, whole_number(4, 100'000),
       "tokens of source, target and their ends, in an encoder-decoder of each; longer pairs are cut"},
      {"pad_to_length", &Options::pad_to_length, truth_value(), "pad every pair to the length"},
      {"samples", &Options::samples, count_or_none, "pairs drawn for an epoch, 0 for all"},
      {"architecture", &Options::architecture, one_of({"prefix-lm", "encoder-decoder"}),
       "prefix-lm (one decoder for source and target) or encoder-decoder", true},
      {"prefix_lm", &Options::prefix_lm, truth_value(), "source tokens see the whole source; an encoder's always do"},
      {"width", &Options::width, whole_number(1, 65'536), "of the model"},
      {"layers", &Options::layers, whole_number(1, 1024), "of the decoder"},
      {"encoder_layers", &Options::encoder_layers, whole_number(0, 1024), "of an encoder-decoder, 0 for as many as the decoder has", true},
      {"heads", &Options::heads, whole_number(1, 1024), "of attention"},
      {"ff", &Options::ff, whole_number(1, 1'048'576), "inner width of the feed-forward layers"},
      {"restart_positions", &Options::restart_positions, truth_value(),
       "count a target's positions from its first token; a decoder's are its own"},
      {"positions", &Options::positions, one_of({"learned", "sinusoidal", "rotary"}), "learned, sinusoidal or rotary", true},
      {"tied_head", &Options::tied_head, truth_value(), "use the token table, which source and target share, as the weight of the head"},
      {"init", &Options::init, one_of({"default", "gpt2", "xavier"}),
       "of the weights: default (each layer's own, as PyTorch's), gpt2 or xavier"},
      {"bleu_every", &Options::bleu_every, count_or_none, "epochs between validation BLEU scores, 0 for the end alone"},
      {"valid_every", &Options::valid_every, count_or_none, "updates between validations with a score, 0 for the ends of epochs", true},
      {"patience", &Options::patience, count_or_none, "end after so many validation scores without a better one, 0 for never", true},
      {"beam", &Options::beam, whole_number(1, 1000), "hypotheses of a sentence of the test sets and of a teacher, 1 for greedy", true},
      {"length_penalty", &Options::length_penalty, real_number(0, 100), "power of its length that a hypothesis's score is divided by",
       true},
      {"test", &Options::test, check_list, "test sets with commas between, e.g. test_2016,test_2017; \"\": all test*, none: none", true,
       "all"},
      {"teacher", &Options::teacher, check_list,
       "runs with commas between, whose translations of the training sources are learned beside the targets", true, "none"},
  };
  return table;
}

std::string conflict(const Options& options) {
  if (options.src == options.tgt) return fmt::format("tgt: expected another language than the source's {}", options.src);
  if (options.width % options.heads != 0)
    return fmt::format("heads: expected a divisor of the width {} but got {}", options.width, options.heads);
  const bool is_rotary = options.positions == "rotary";
  if (is_rotary && options.width / options.heads % 2 != 0)
    return fmt::format("heads: expected heads of an even width for rotary positions but got {} / {}", options.width, options.heads);
  if (is_rotary && options.restart_positions && !is_encoder_decoder(options))
    return "restart-positions: expected False with rotary positions, which have no table to start anew in";
  if (options.batch_tokens > 0 && options.pad_to_length)
    return "pad-to-length: expected False with --batch-tokens, which puts pairs of similar length together";
  if (options.batch_tokens > 0 && options.batch_tokens < options.length)
    return fmt::format("batch-tokens: expected as many as a pair may have, --length {}, or more, but got {}", options.length,
                       options.batch_tokens);
  if (options.attention_dropout < 0 && options.attention_dropout != -1)
    return fmt::format("attention-dropout: expected a probability, or -1 for that of --dropout, but got {}", options.attention_dropout);
  return "";
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
  model.attention_dropout = options.attention_dropout;
  model.activation_dropout = options.activation_dropout;
  model.tied_head = options.tied_head;
  model.positions = apps::positions_of(options.positions);
  model.initialization = apps::initialization_of(options.init);
  model.activation_checkpointing = checkpoint_policy_of(options.activation_checkpointing).value();
  model.device = device;
  return model;
}

nn::EncoderDecoderOptions encoder_decoder_options(const Options& options, std::int64_t vocab, Device device) {
  nn::EncoderDecoderOptions model;
  static_cast<nn::TransformerOptions&>(model) = model_options(options, vocab, device);
  model.encoder_layers = options.encoder_layers;
  return model;
}

std::optional<QuantFormat> quant_format_of(const std::string& text) {
  for (const QuantFormat format : quant_formats)
    if (text == name(format)) return format;
  return std::nullopt;
}

std::optional<QuantFormat> quantization_of(const io::JsonObject& config, const std::filesystem::path& file) {
  if (!config.contains(quantization_key)) return std::nullopt;
  const std::string text = config.get_string(quantization_key);
  if (const auto format = quant_format_of(text)) return format;
  throw io::FileError(fmt::format("{}: {}: expected int8, dynamic-int8, q8_0 or q4_0 but got \"{}\"", file.string(), quantization_key,
                                  text::printable(text, 60)));
}

Options from_json(const io::JsonObject& config, const std::filesystem::path& file) {
  Options options = apps::from_json(entries(), config, file);
  options.quantization = quantization_of(config, file);
  if (const std::string fault = conflict(options); !fault.empty()) throw io::FileError(fmt::format("{}: {}", file.string(), fault));
  return options;
}

}  // namespace tern::translate
