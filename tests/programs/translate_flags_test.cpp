// Options of tern-translate that change what a training computes: its losses and weights are held against those of a training that is
// written out here. Each case fails where its option is ignored; every_flag_test.cpp reads the names of the cases.
#include <numeric>
#include <regex>

#include "ops/join.h"
#include "reference.h"
#include "text/batching.h"
#include "text/bpe.h"
#include "text/corpus.h"
#include "train/r_drop.h"
#include "train/schedule.h"
#include "translate_run.h"

using namespace tern;
using namespace tern::programs::test;

namespace {

/// A training as the options of `arguments()` have it; a case changes what its option is to change.
struct Setting {
  ReferenceOptimizer optimizer;
  nn::DecoderLMOptions model{.vocab = 320, .length = 40, .width = 16, .layers = 1, .heads = 2, .ff = 24, .dropout = 0};
  std::uint64_t seed = 3;
  double label_smoothing = 0;
  bool prefix_lm = true, restart_positions = true, pad_to_length = true;
  std::size_t batch_size = 100, samples = 0, word_limit = 0;
  std::size_t batch_tokens = 0;
  bool is_encoder_decoder = false;  ///< of the model's options, with two layers in the encoder
  double bpe_dropout = 0, r_drop = 0, ema = 0;
  int updates = 3;
  std::string src = "de", tgt = "en";
};

/// The library's parts, put together anew.
class Reference {
 public:
  /// The tokenizer is the program's, in a run's directory.
  Reference(const Setting& setting, const fs::path& data, const fs::path& run)
      : setting_(setting), tokenizer_(text::Tokenizer::load(run / "tokenizer.json")) {
    if (setting.bpe_dropout == 0) train_ = examples(data, "train");
    data_ = data;
    valid_ = examples(data, "valid");
    tokens_ = {id("<eos_" + setting.src + ">"), id("<eos_" + setting.tgt + ">"), id("<pad>")};
    setting_.model.vocab = static_cast<std::int64_t>(tokenizer_.vocab_size());  // a small corpus has not always so many pairs to merge
    manual_seed(setting.seed);
    if (!setting.is_encoder_decoder) {
      model_ = std::make_unique<nn::DecoderLM>(setting_.model);
      return;
    }
    nn::EncoderDecoderOptions options;
    static_cast<nn::TransformerOptions&>(options) = setting_.model;
    options.encoder_layers = 2;
    model_ = std::make_unique<nn::EncoderDecoder>(options);
  }

  /// The loss of each update; the model is trained.
  std::vector<double> train() {
    ReferenceAdam adam(*model_, setting_.optimizer);
    average_ = weights_of(*model_);
    std::vector<double> losses;
    for (std::uint64_t epoch = 0; static_cast<int>(losses.size()) < setting_.updates; ++epoch) {
      if (setting_.bpe_dropout > 0) train_ = examples(data_, "train", epoch);
      for (const auto& picks : batches(epoch)) {
        if (static_cast<int>(losses.size()) == setting_.updates) break;
        losses.push_back(adam.update(loss(train_, picks, setting_.label_smoothing, setting_.r_drop)));
        average(static_cast<double>(losses.size() - 1));
      }
    }
    return losses;
  }
  /// Of the model that is kept.
  double valid_loss() {
    if (setting_.ema > 0) put_average();
    model_->eval();
    std::vector<std::size_t> all(valid_.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    const double result = loss(valid_, all, 0).item<double>();
    model_->train();
    return result;
  }
  Weights weights() const { return setting_.ema > 0 ? average_ : weights_of(*model_); }
  std::size_t pairs() const { return train_.size(); }

 private:
  std::int32_t id(const std::string& token) const { return tokenizer_.token_to_id(token).value(); }

  void average(double update) {
    const double decay = std::min(setting_.ema, (1 + update) / (10 + update));
    for (const auto& [name, values] : weights_of(*model_))
      for (std::size_t i = 0; i < values.size(); ++i)
        average_[name][i] = static_cast<float>(decay * double(average_[name][i]) + (1 - decay) * double(values[i]));
  }
  void put_average() {
    const NoGrad unrecorded;
    for (const NamedTensor& entry : nn::named_parameters(*model_))
      copy_(entry.tensor, Tensor::from(average_.at(entry.name), entry.tensor.shape()));
  }

  std::vector<text::Example> examples(const fs::path& data, const std::string& split, std::uint64_t epoch = 0) const {
    const auto src = text::read_lines(data / (split + "." + setting_.src)), tgt = text::read_lines(data / (split + "." + setting_.tgt));
    std::vector<text::Example> result;
    for (std::size_t i = 0; i < src.size(); ++i) {
      const std::size_t words = text::count_words(src[i]) + text::count_words(tgt[i]);
      if (split == "train" && setting_.word_limit > 0 && words >= setting_.word_limit) continue;
      text::EncodeOptions options{.dropout = split == "train" ? setting_.bpe_dropout : 0, .seed = setting_.seed, .epoch = epoch, .line = i};
      const std::vector<std::int32_t> source = tokenizer_.encode(src[i], options);
      options.line += src.size();
      result.push_back({source, tokenizer_.encode(tgt[i], options)});
    }
    return result;
  }

  std::vector<std::vector<std::size_t>> batches(std::uint64_t epoch) const {
    std::vector<std::size_t> order = text::epoch_order(train_.size(), setting_.seed, epoch, setting_.samples);
    if (setting_.batch_tokens > 0) {
      std::vector<std::int64_t> lengths;
      for (const text::Example& example : train_)
        lengths.push_back(setting_.is_encoder_decoder ? text::pair_columns(example) : text::sequence_columns(example));
      std::vector<std::vector<std::size_t>> result;
      const text::BucketOptions buckets{.token_budget = setting_.batch_tokens, .multiple = 8, .row_multiple = 8};
      for (const text::ShapedBatch& batch : text::shaped_batches(order, lengths, buckets, setting_.seed, epoch))
        result.push_back(batch.picks);
      return result;
    }
    if (setting_.pad_to_length) return text::fixed_batches(order, setting_.batch_size);
    const auto length = [&](std::size_t i) {
      return std::min(train_[i].src.size() + train_[i].tgt.size() + 2, std::size_t(setting_.model.length));
    };
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return length(a) < length(b); });
    const auto sorted = text::fixed_batches(order, setting_.batch_size);
    std::vector<std::vector<std::size_t>> result;
    for (std::size_t i : text::epoch_order(sorted.size(), setting_.seed + 1, epoch)) result.push_back(sorted[i]);
    return result;
  }

  /// Of the examples, each in a row of the full length.
  Tensor loss(const std::vector<text::Example>& examples, const std::vector<std::size_t>& picks, double label_smoothing,
              double r_drop = 0) const {
    return setting_.is_encoder_decoder ? pair_loss(examples, picks, label_smoothing, r_drop)
                                       : sequence_loss(examples, picks, label_smoothing, r_drop);
  }
  /// Of R-Drop both passes at once.
  static Tensor twice(const Tensor& x, double r_drop) { return r_drop > 0 ? cat({x, x}) : x; }

  Tensor pair_loss(const std::vector<text::Example>& examples, const std::vector<std::size_t>& picks, double label_smoothing,
                   double r_drop) const {
    const auto& model = static_cast<const nn::EncoderDecoder&>(*model_);
    const auto rows = static_cast<std::int64_t>(picks.size());
    const text::PairBatch batch = text::make_pair_batch(examples, picks, tokens_, {.rows = rows, .columns = setting_.model.length});
    const Shape shape{rows, setting_.model.length};
    const Tensor logits =
        model.forward(twice(Tensor::from(batch.src, shape), r_drop), twice(Tensor::from(batch.src_length, {rows}), r_drop),
                      twice(Tensor::from(batch.tgt_in, shape), r_drop));
    const Tensor labels = twice(Tensor::from(batch.labels, shape), r_drop);
    const CrossEntropyOptions options{.token_weights = twice(Tensor::from(batch.weights, shape), r_drop),
                                      .label_smoothing = label_smoothing};
    return r_drop > 0 ? train::r_drop_loss(logits, labels, r_drop, options) : cross_entropy(logits, labels, options);
  }

  Tensor sequence_loss(const std::vector<text::Example>& examples, const std::vector<std::size_t>& picks, double label_smoothing,
                       double r_drop) const {
    const auto& model = static_cast<const nn::DecoderLM&>(*model_);
    const std::int64_t length = setting_.model.length;
    const text::Batch batch = text::make_batch(examples, picks, tokens_, length);
    const Shape shape{batch.rows, batch.length};
    std::vector<std::int64_t> positions;
    for (std::int64_t prefix : batch.prefix)
      for (std::int64_t column = 0; column < batch.length; ++column)
        positions.push_back(column < prefix ? column : std::min(length / 2 + column - prefix, length - 1));
    AttentionMask mask{.causal = true};
    if (setting_.prefix_lm) mask.prefix = twice(Tensor::from(batch.prefix, {batch.rows}), r_drop);
    const Tensor logits = model.forward(twice(Tensor::from(batch.ids, shape), r_drop), mask,
                                        setting_.restart_positions ? twice(Tensor::from(positions, shape), r_drop) : Tensor());
    const Tensor labels = twice(Tensor::from(batch.labels, shape), r_drop);
    const CrossEntropyOptions options{.token_weights = twice(Tensor::from(batch.weights, shape), r_drop),
                                      .label_smoothing = label_smoothing};
    return r_drop > 0 ? train::r_drop_loss(logits, labels, r_drop, options) : cross_entropy(logits, labels, options);
  }

  Setting setting_;
  text::Tokenizer tokenizer_;
  std::vector<text::Example> train_, valid_;
  text::SequenceOptions tokens_;
  fs::path data_;
  std::unique_ptr<nn::Module> model_;
  Weights average_;
};

/// Trains with the options, and checks every loss and weight against the setting's. The weights that the plain setting leads to are far
/// from these, so that an option without effect shows.
void check_training(const Arguments& options, const Setting& setting) {
  static const Run plain;
  const Run run(options);
  Reference reference(setting, run.data, run.path);
  check_equal(logged(run.path, "loss"), reference.train());
  CHECK(logged(run.path, "valid_loss").back() == Approx(reference.valid_loss()).epsilon(1e-5));
  const Weights found = weights_of(run.path);
  CHECK(distance(found, reference.weights()) < 2e-5);
  if (!options.empty()) CHECK(distance(found, weights_of(plain.path)) > 2e-4);
}

}  // namespace

TEST_CASE("A training of the translator is the one that is written out here") { check_training({}, {}); }

TEST_CASE("tern-translate train --label-smoothing (training's loss alone is smoothed)") {
  check_training({"--label-smoothing", "0.3"}, {.label_smoothing = 0.3});
}

TEST_CASE("tern-translate train --clip (the gradient's norm is bounded)") {
  check_training({"--clip", "0.1"}, {.optimizer = {.clip = 0.1}});
}

TEST_CASE("tern-translate train --beta2 --adam-eps (Adam's own numbers)") {
  check_training({"--beta2", "0.5"}, {.optimizer = {.beta2 = 0.5}});
  check_training({"--adam-eps", "0.1"}, {.optimizer = {.eps = 0.1}});
}

TEST_CASE("tern-translate train --lr --schedule --warmup (the rates of the updates)") {
  check_training({"--lr", "0.2"}, {.optimizer = {.lr = 0.2}});
  const auto check_rates = [](const Arguments& options, const std::vector<double>& factors) {
    const Run run(options);
    std::vector<double> rates;
    for (double factor : factors) rates.push_back(0.5 * factor);
    check_equal(logged(run.path, "lr"), rates, 1e-12);
  };
  const auto check = [&](const Arguments& options, const std::vector<double>& factors) {
    check_training(options, {.optimizer = {.factor = [&](int update) { return factors[std::size_t(update - 1)]; }}});
    check_rates(options, factors);
  };
  check({"--warmup", "4"}, {0.25, 0.5, 0.75});
  check({"--schedule", "cosine"}, {0.75, 0.25, 0});
  check({"--schedule", "inverse-sqrt", "--warmup", "2"}, {0.5, 1, std::sqrt(2.0 / 3)});
  check_rates({"--schedule", "linear"}, {2.0 / 3, 1.0 / 3, 0});
  check_rates({"--schedule", "wsd"}, {1, 1, 0});
  check_rates({"--schedule", "one-cycle", "--warmup", "1"}, {1, 0.5 + 2e-6, 4e-6});
}

TEST_CASE("tern-translate train --prefix-lm (source tokens see the whole source)") {
  // With one layer nothing that a target sees depends on what the source tokens saw.
  Setting setting;
  setting.model.layers = 2;
  check_training({"--layers", "2"}, setting);
  setting.prefix_lm = false;
  check_training({"--layers", "2", "--prefix-lm", "False"}, setting);
  const Run seen({"--layers", "2"}), hidden({"--layers", "2", "--prefix-lm", "False"});
  CHECK(distance(weights_of(seen.path), weights_of(hidden.path)) > 2e-4);
}

TEST_CASE("tern-translate train --restart-positions (a target counts from half the length)") {
  check_training({"--restart-positions", "False"}, {.restart_positions = false});
}

TEST_CASE("tern-translate train --pad-to-length (rows of one length are not sorted by it)") {
  const Arguments small{"--batch-size", "8"};
  check_training(small, {.batch_size = 8});
  check_training({"--batch-size", "8", "--pad-to-length", "False"}, {.pad_to_length = false, .batch_size = 8});
  const Run padded(small), sorted({"--batch-size", "8", "--pad-to-length", "False"});
  CHECK(distance(weights_of(padded.path), weights_of(sorted.path)) > 2e-4);
}

TEST_CASE("tern-translate train --samples --batch-size (pairs of an epoch, and of an update)") {
  check_training({"--samples", "12"}, {.samples = 12});
  check_training({"--batch-size", "16"}, {.batch_size = 16});
  const Run run({"--samples", "12", "--batch-size", "5", "--epochs", "2", "--updates", "0"});
  CHECK(logged(run.path, "update").back() == 6);
}

TEST_CASE("tern-translate train --seed (of the weights and of the order)") {
  check_training({"--seed", "4", "--batch-size", "16"}, {.seed = 4, .batch_size = 16});
}

TEST_CASE("tern-translate train --weight-decay (of the weights themselves)") {
  check_training({"--weight-decay", "0.05"}, {.optimizer = {.weight_decay = 0.05}});
}

TEST_CASE("tern-translate train --accumulate (an update of several batches is one of their union)") {
  check_training({"--batch-size", "8", "--accumulate", "3"}, {.batch_size = 24});
  const Run parts({"--batch-size", "8", "--accumulate", "3", "--updates", "0", "--epochs", "2"});
  CHECK(logged(parts.path, "update").back() == 4);  // 40 pairs are 24 and 16
  check_training({"--batch-size", "8", "--accumulate", "3", "--clip", "0.1"}, {.optimizer = {.clip = 0.1}, .batch_size = 24});
}

TEST_CASE("The recipe's steps on a GPU, recorded and replayed, are those of a CPU", "[cuda]") {
  const auto losses = [](const Arguments& more) {
    Arguments options{"--updates", "12", "--epochs", "12", "--lr", "0.05"};
    options.insert(options.end(), more.begin(), more.end());
    const Run run(options);
    std::vector<double> result = logged(run.path, "loss");
    for (double loss : logged(run.path, "valid_loss")) result.push_back(loss);
    return result;
  };
  const std::vector<Arguments> settings = {
      {"--batch-size", "8", "--accumulate", "3", "--clip", "0.5"},
      {"--architecture", "encoder-decoder", "--ema", "0.9", "--r-drop", "1", "--label-smoothing", "0.1", "--batch-tokens", "300",
       "--pad-to-length", "False"},
  };
  for (const Arguments& setting : settings) {
    INFO(setting[0]);
    Arguments gpu = setting;
    gpu.insert(gpu.end(), {"--device", "cuda"});
    check_equal(losses(gpu), losses(setting), 1e-3);
  }
}

TEST_CASE("tern-translate train --batch-tokens (pairs of similar length, as many as fit)") {
  check_training({"--batch-tokens", "400", "--pad-to-length", "False"}, {.batch_tokens = 400});
  const Run run({"--batch-tokens", "400", "--pad-to-length", "False"});
  CHECK(contains(run.result.out, "updates of 400 tokens"));
  Arguments both = arguments(run.data, run.directory / "other", {"--batch-tokens", "400"});
  check_refused(tern::programs::test::run(translate, both), "--pad-to-length: expected False with --batch-tokens");
  both.insert(both.end(), {"--pad-to-length", "False", "--batch-tokens", "30"});
  check_refused(tern::programs::test::run(translate, both), "--batch-tokens: expected as many as a pair may have");
}

TEST_CASE("tern-translate train --bpe-dropout (pairs are cut into other tokens in each epoch)") {
  check_training({"--bpe-dropout", "0.3"}, {.bpe_dropout = 0.3});
}

TEST_CASE("tern-translate train --r-drop (two passes that are to agree)") {
  // The draws of dropout are those of the reference, which begins with the same seed.
  const auto check = [](const char* alpha, double r_drop) {
    Setting setting{.r_drop = r_drop};
    setting.model.dropout = 0.2;
    check_training({"--dropout", "0.2", "--r-drop", alpha}, setting);
  };
  check("0", 0);
  check("2", 2);
}

TEST_CASE("tern-translate train --ema (the model is an average of its weights)") {
  check_training({"--ema", "0.99"}, {.ema = 0.99});
  check_training({"--ema", "0.15"}, {.ema = 0.15});
}

TEST_CASE("tern-translate train --architecture --encoder-layers (an encoder and a decoder)") {
  Setting setting{.is_encoder_decoder = true};
  check_training({"--architecture", "encoder-decoder", "--encoder-layers", "2"}, setting);
  setting.label_smoothing = 0.1;
  setting.model.tied_head = true;
  const auto more = [](const Arguments& options) {
    Arguments all{"--architecture", "encoder-decoder", "--encoder-layers", "2", "--label-smoothing", "0.1", "--tied-head"};
    all.insert(all.end(), options.begin(), options.end());
    return all;
  };
  setting.batch_tokens = 200;
  check_training(more({"--batch-tokens", "200", "--pad-to-length", "False"}), setting);
  setting.batch_tokens = 0;
  setting.r_drop = 1;
  setting.model.dropout = 0.1;
  check_training(more({"--r-drop", "1", "--dropout", "0.1"}), setting);
  const Run run({"--architecture", "encoder-decoder", "--encoder-layers", "3"});
  CHECK(contains(run.result.out, "3 + 1 layers"));
}

TEST_CASE("tern-translate train --attention-dropout --activation-dropout (where dropout is)") {
  const auto losses = [](const Arguments& more) {
    Arguments still{"--lr", "1e-12", "--updates", "2"};
    still.insert(still.end(), more.begin(), more.end());
    const Run run(still);
    std::vector<double> result = logged(run.path, "loss");
    result.push_back(logged(run.path, "valid_loss").back());
    return result;
  };
  const std::vector<double> plain = losses({});
  for (const char* flag : {"--attention-dropout", "--activation-dropout"}) {
    INFO(flag);
    const std::vector<double> dropped = losses({flag, "0.5"});
    CHECK(std::abs(dropped[0] - plain[0]) > 1e-5);
    CHECK(std::abs(dropped[0] - dropped[1]) > 1e-5);
    CHECK(dropped[2] == Approx(plain[2]).epsilon(1e-9));
  }
  Setting setting;
  setting.model.dropout = 0.3;
  setting.model.attention_dropout = 0;
  check_training({"--dropout", "0.3", "--attention-dropout", "0"}, setting);
}

TEST_CASE("tern-translate train --positions (how the model knows them)") {
  Setting setting{.restart_positions = false};
  setting.model.positions = nn::Positions::rotary;
  check_training({"--positions", "rotary", "--restart-positions", "False"}, setting);
  setting.model.positions = nn::Positions::sinusoidal;
  check_training({"--positions", "sinusoidal", "--restart-positions", "False"}, setting);
  const TempDirectory directory;
  check_refused(run(translate, arguments(directory / "data", directory / "run", {"--positions", "rotary"})),
                "--restart-positions: expected False with rotary positions");
}

TEST_CASE("tern-translate train --width --layers --heads --ff --tied-head --init (the model)") {
  const Setting plain;
  const std::vector<std::pair<Arguments, std::function<void(nn::DecoderLMOptions&)>>> cases = {
      {{"--width", "24"}, [](auto& model) { model.width = 24; }},
      {{"--layers", "2"}, [](auto& model) { model.layers = 2; }},
      {{"--heads", "4"}, [](auto& model) { model.heads = 4; }},
      {{"--ff", "16"}, [](auto& model) { model.ff = 16; }},
      {{"--tied-head"}, [](auto& model) { model.tied_head = true; }},
      {{"--init", "gpt2"}, [](auto& model) { model.initialization = nn::Initialization::gpt2; }},
      {{"--init", "xavier"}, [](auto& model) { model.initialization = nn::Initialization::xavier; }},
  };
  for (const auto& [options, change] : cases) {
    INFO(options[0]);
    Setting setting = plain;
    change(setting.model);
    check_training(options, setting);
  }
}

TEST_CASE("tern-translate train --vocab (the size of the tokenizer and of the tables)") {
  Setting setting;
  setting.model.vocab = 290;
  check_training({"--vocab", "290"}, setting);
  CHECK(weights_of(Run({"--vocab", "290"}).path)["head.bias"].size() == 290);
}

TEST_CASE("tern-translate train --length (longer pairs are cut)") {
  Setting setting;
  setting.model.length = 14;
  check_training({"--length", "14"}, setting);
  CHECK(contains(Run({"--length", "14"}).result.out, "cut      "));
}

TEST_CASE("tern-translate train --word-limit (long pairs are left out)") {
  check_training({"--word-limit", "16"}, {.word_limit = 16});
  CHECK(contains(Run({"--word-limit", "16"}).result.out, " of 16 words or more left out)"));
}

TEST_CASE("tern-translate train --src --tgt --data (what is read)") {
  check_training({"--src", "en", "--tgt", "de"}, {.src = "en", .tgt = "de"});
  const Run run;
  const fs::path fewer = run.directory / "fewer", out = run.directory / "other";
  write_sentences(fewer, 12);
  REQUIRE(tern::programs::test::run(translate, arguments(run.data, out, {"--data", fewer.string()})).code == 0);
  Reference reference({}, fewer, out);
  CHECK(reference.pairs() == 12);
  check_equal(logged(out, "loss"), reference.train());
}

TEST_CASE("tern-translate train --teacher (what other runs translate is learned as well)") {
  const Run first, second({"--seed", "4", "--updates", "2"});
  const auto decode = [&](const fs::path& model, const std::string& lines) {
    return run(translate, {"decode", "--model", model.string(), "--device", "cpu"}, lines).out;
  };
  const fs::path more = first.directory / "more";
  write_sentences(more);
  const std::string sources = slurp(more / "train.de"), targets = slurp(more / "train.en");
  spill(more / "train.de", sources + sources);
  spill(more / "train.en", targets + decode(first.path, sources));
  const fs::path out = first.directory / "student";
  const Result result = run(translate, arguments(first.data, out, {"--teacher", first.path.string()}));
  INFO(result.err);
  REQUIRE(result.code == 0);
  CHECK(contains(result.out, "teacher  40 more pairs"));
  CHECK(slurp(out / "tokenizer.json") == slurp(first.path / "tokenizer.json"));
  Reference reference({}, more, out);
  CHECK(reference.pairs() == 80);
  check_equal(logged(out, "loss"), reference.train());

  const fs::path both = first.directory / "both";
  REQUIRE(run(translate, arguments(first.data, both, {"--teacher", first.path.string() + "," + second.path.string()})).code == 0);
  CHECK(logged(both, "loss") != logged(out, "loss"));
  const Run other({"--vocab", "300"}), turned({"--src", "en", "--tgt", "de"});
  const auto refused = [&](const Run& teacher, const char* message) {
    const std::string runs = first.path.string() + "," + teacher.path.string();
    const Result failed = run(translate, arguments(first.data, first.directory / "none", {"--teacher", runs}));
    CHECK(failed.code == 2);
    CHECK(contains(failed.err, message));
  };
  refused(other, "expected the tokenizer of the first teacher");
  refused(turned, "expected a translator from de to en but got one from en to de");
}

TEST_CASE("tern-translate train --preset (where values come from that are not given)") {
  const Run base;
  Arguments few{"train", "--data", base.data.string(), "--src", "de", "--tgt", "en"};
  std::istringstream words("--device cpu --threads 1 --width 16 --heads 2 --layers 2 --ff 24 --dropout 0 --vocab 320 --updates 2 --seed 3");
  for (std::string word; words >> word;) few.push_back(word);
  const auto trained = [&](const char* preset, const Arguments& more = {}) {
    const fs::path out = base.directory / preset;
    Arguments all = few;
    all.insert(all.end(), {"--preset", preset, "--out", out.string()});
    all.insert(all.end(), more.begin(), more.end());
    REQUIRE(run(translate, all).code == 0);
    return out;
  };
  // classic: rows of 40 tokens, the whole corpus in a batch, no prefix, Adam(0.02) with an epsilon of 3e-3, BLEU every fifth epoch.
  Setting classic{.optimizer = {.lr = 0.02, .beta2 = 0.999, .eps = 3e-3}, .prefix_lm = false, .restart_positions = false, .updates = 2};
  classic.model.layers = 2;  // with one, a prefix would not show
  Reference reference(classic, base.data, trained("classic"));
  check_equal(logged(base.directory / "classic", "loss"), reference.train());
  CHECK(distance(weights_of(base.directory / "classic"), reference.weights()) < 2e-5);
  const Arguments brief{"--length", "40", "--beam", "1"};
  check_equal(logged(trained("quick", brief), "lr"), {0.005 / 200, 0.005 * 2 / 200}, 1e-12);   // a warm-up of 200 updates
  check_equal(logged(trained("best", brief), "lr"), {0.002 / 1000, 0.002 * 2 / 1000}, 1e-12);  // of 1000

  // best and quick are one recipe in two sizes: of what was not given above, this alone differs.
  const auto config = [&](const char* preset) { return Json::parse(slurp(base.directory / preset / "config.json")); };
  const Json large = config("best"), small = config("quick");
  std::map<std::string, std::string> differ;
  for (const auto& [key, value] : large.items())
    if (value != small[key]) differ[key] = value.dump() + " " + small[key].dump();
  CHECK(differ == std::map<std::string, std::string>{{"preset", "\"best\" \"quick\""},
                                                     {"epochs", "40 5"},
                                                     {"batch_tokens", "4096 2048"},
                                                     {"lr", "0.002 0.005"},
                                                     {"schedule", "\"inverse-sqrt\" \"cosine\""},
                                                     {"warmup", "1000 200"},
                                                     {"r_drop", "1.0 0.0"},
                                                     {"ema", "0.999 0.99"}});
  CHECK(small["architecture"] == "encoder-decoder");
  const std::string help = std::regex_replace(run(translate, {"train", "--help"}).out, std::regex("\\s+"), " ");
  for (const char* shown : {"(best 256, quick 128, classic 256)", "(best 6, quick 3, classic 4)", "(best 1024, quick 512, classic 256)",
                            "(best 10000, quick 1500, classic 10000)", "(best 0.3, quick 0.1, classic 0.1)",
                            "(best 256, quick 256, classic 40)", "(best 5, quick 5, classic 1)"}) {
    INFO(shown);
    CHECK(contains(help, shown));
  }
}
