#pragma once
#include <numeric>

#include "ops/join.h"
#include "ops/view.h"
#include "reference.h"
#include "text/batching.h"
#include "text/bpe.h"
#include "text/corpus.h"
#include "train/r_drop.h"
#include "translate_run.h"

/// A training of the translator that is written out: losses and weights of the program's runs are held against it.
namespace tern::programs::test {

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
  double valid_loss(double label_smoothing = 0) {
    if (setting_.ema > 0) put_average();
    model_->eval();
    std::vector<std::size_t> all(valid_.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    const double result = loss(valid_, all, label_smoothing).item<double>();
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
  /// Of R-Drop both passes at once: each row and its copy.
  static Tensor twice(const Tensor& x, double r_drop) {
    if (r_drop == 0) return x;
    Tensors rows;
    for (std::int64_t i = 0; i < x.size(0); ++i) rows.insert(rows.end(), 2, slice(x, 0, i, i + 1));
    return cat(rows);
  }

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
  PlainKernels kernels_;  ///< as the runs have it
  Weights average_;
};

/// Trains with the options, and checks every loss and weight against the setting's. The weights that the plain setting leads to are far
/// from these, so that an option without effect shows.
inline void check_training(const Arguments& options, const Setting& setting) {
  static const Run plain;
  const Run run(options);
  Reference reference(setting, run.data, run.path);
  check_equal(logged(run.path, "loss"), reference.train());
  CHECK(logged(run.path, "valid_loss").back() == Approx(reference.valid_loss()).epsilon(1e-5));
  const std::vector<double> smoothed = logged(run.path, "valid_smoothed_loss");
  CHECK(smoothed.empty() == (setting.label_smoothing == 0));
  if (!smoothed.empty()) CHECK(smoothed.back() == Approx(reference.valid_loss(setting.label_smoothing)).epsilon(1e-5));
  const Weights found = weights_of(run.path);
  CHECK(distance(found, reference.weights()) < 2e-5);
  if (!options.empty()) CHECK(distance(found, weights_of(plain.path)) > 2e-4);
}

}  // namespace tern::programs::test
