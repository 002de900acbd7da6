#pragma once
#include <numeric>

#include "ops/loss.h"
#include "ops/view.h"
#include "reference.h"
#include "text/batching.h"
#include "text/bpe.h"
#include "text/corpus.h"
#include "train/ema.h"
#include "train/step.h"

/// A training of the translator as a plain loop.
namespace tern::programs::test {

/// A decoder-only LM that takes a moment, with all that regularises, averages and stops early left out.
inline const Command training{
    translate,
    "train --data DATA --src de --tgt en --out OUT/run " + plain_lm +
        "--device cpu --threads 1 --precision fp32 --use-fused-kernel False --vocab 320 --length 40 --width 16 --layers 1 --heads 2 "
        "--ff 24 --dropout 0 --batch-size 100 --updates 3 --warmup 0 --schedule constant --lr 0.5 --adam-eps 1 --beta2 0.98 "
        "--clip 0 --seed 3 --pad-to-length True"};

/// What `training` says; a row changes what its flag is to change.
struct Setting {
  ReferenceOptimizer optimizer{{.lr = 0.5, .beta2 = 0.98, .eps = 1, .weight_decay = 0}};
  nn::DecoderLMOptions model{.vocab = 320, .length = 40, .width = 16, .layers = 1, .heads = 2, .ff = 24, .dropout = 0};
  std::uint64_t seed = 3;
  double label_smoothing = 0;
  bool prefix_lm = true, restart_positions = true, pad_to_length = true;
  std::size_t batch_size = 100, samples = 0, word_limit = 0, batch_tokens = 0;
  bool is_encoder_decoder = false;  ///< of the model's options, with two layers in the encoder
  double bpe_dropout = 0, r_drop = 0, ema = 0;
  std::size_t updates = 3;
  std::string src = "de", tgt = "en";
};

class Reference {
 public:
  /// The tokenizer is the program's, in a run's directory.
  Reference(const Setting& setting, const fs::path& data, const fs::path& run)
      : setting_(setting), data_(data), tokenizer_(text::Tokenizer::load(run / "tokenizer.json")) {
    train_ = examples("train");
    valid_ = examples("valid");
    tokens_ = {id("<eos_" + setting.src + ">"), id("<eos_" + setting.tgt + ">"), id("<pad>")};
    setting_.model.vocab = static_cast<std::int64_t>(tokenizer_.vocab_size());  // a small corpus has not always so many pairs to merge
    manual_seed(setting.seed);
    nn::EncoderDecoderOptions both;
    static_cast<nn::TransformerOptions&>(both) = setting_.model;
    both.encoder_layers = 2;
    if (setting.is_encoder_decoder) model_ = std::make_unique<nn::EncoderDecoder>(both);
    else model_ = std::make_unique<nn::DecoderLM>(setting_.model);
    if (setting.ema > 0) ema_.emplace(*model_, train::EmaOptions{.decay = setting.ema});
  }

  /// The loss of each update; the model is trained.
  std::vector<double> train() {
    PlainLoop loop(*model_, setting_.optimizer);
    std::vector<double> losses;
    for (std::uint64_t epoch = 0; losses.size() < setting_.updates; ++epoch) {
      if (setting_.bpe_dropout > 0) train_ = examples("train", epoch);
      for (const auto& picks : batches(epoch)) {
        if (losses.size() == setting_.updates) break;
        losses.push_back(loop.update(loss(train_, picks, setting_.label_smoothing, setting_.r_drop)));
        if (ema_) ema_->update();
      }
    }
    return losses;
  }
  /// Of the model that is kept.
  double valid_loss(double label_smoothing = 0) {
    std::optional<train::EmaScope> averages;
    if (ema_) averages.emplace(*ema_);
    model_->eval();
    std::vector<std::size_t> all(valid_.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    const double result = loss(valid_, all, label_smoothing, 0).item<double>();
    model_->train();
    return result;
  }
  Weights weights() {
    std::optional<train::EmaScope> averages;
    if (ema_) averages.emplace(*ema_);
    return weights_of(*model_);
  }
  std::size_t pairs() const { return train_.size(); }

 private:
  std::int32_t id(const std::string& token) const { return tokenizer_.token_to_id(token).value(); }

  std::vector<text::Example> examples(const std::string& split, std::uint64_t epoch = 0) const {
    const auto src = text::read_lines(data_ / (split + "." + setting_.src)), tgt = text::read_lines(data_ / (split + "." + setting_.tgt));
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
    std::vector<std::vector<std::size_t>> result;
    std::vector<std::int64_t> lengths;
    for (const text::Example& example : train_)
      lengths.push_back(setting_.is_encoder_decoder ? text::pair_columns(example) : text::sequence_columns(example));
    if (setting_.batch_tokens > 0) {
      const text::BucketOptions buckets{.token_budget = setting_.batch_tokens, .multiple = 8, .row_multiple = 8};
      for (const text::ShapedBatch& batch : text::shaped_batches(order, lengths, buckets, setting_.seed, epoch))
        result.push_back(batch.picks);
      return result;
    }
    if (setting_.pad_to_length) return text::fixed_batches(order, setting_.batch_size);
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return lengths[a] < lengths[b]; });
    const auto sorted = text::fixed_batches(order, setting_.batch_size);
    for (std::size_t i : text::epoch_order(sorted.size(), setting_.seed + 1, epoch)) result.push_back(sorted[i]);
    return result;
  }

  /// Of the examples, each in a row of the full length; for R-Drop each row is followed by its copy.
  Tensor loss(const std::vector<text::Example>& examples, const std::vector<std::size_t>& picks, double label_smoothing,
              double r_drop) const {
    const auto rows = [&](Tensor x) {
      Tensors twice;
      for (std::int64_t i = 0; i < x.size(0); ++i) twice.insert(twice.end(), 2, slice(x, 0, i, i + 1));
      return r_drop > 0 ? cat(twice) : x;
    };
    const auto of = [&](const Tensor& logits, const Tensor& labels, const Tensor& weights) {
      const CrossEntropyOptions options{.token_weights = rows(weights), .label_smoothing = label_smoothing};
      return r_drop > 0 ? train::r_drop_loss(logits, rows(labels), r_drop, options) : cross_entropy(logits, labels, options);
    };
    const auto count = static_cast<std::int64_t>(picks.size()), length = setting_.model.length;
    if (const auto* model = dynamic_cast<const nn::EncoderDecoder*>(model_.get())) {
      const text::PairBatch batch = text::make_pair_batch(examples, picks, tokens_, {.rows = count, .columns = length});
      const Shape shape{count, length};
      return of(model->forward(rows(Tensor::from(batch.src, shape)), rows(Tensor::from(batch.src_length, {count})),
                               rows(Tensor::from(batch.tgt_in, shape))),
                Tensor::from(batch.labels, shape), Tensor::from(batch.weights, shape));
    }
    const text::Batch batch = text::make_batch(examples, picks, tokens_, {.rows = count, .columns = length - 1});
    const Shape shape{count, length - 1};
    std::vector<std::int64_t> positions;
    for (std::int64_t prefix : batch.prefix)
      for (std::int64_t column = 0; column < shape[1]; ++column)
        positions.push_back(column < prefix ? column : std::min(length / 2 + column - prefix, length - 1));
    AttentionMask mask{.causal = true};
    if (setting_.prefix_lm) mask.prefix = rows(Tensor::from(batch.prefix, {count}));
    const Tensor at = setting_.restart_positions ? rows(Tensor::from(positions, shape)) : Tensor();
    return of(static_cast<const nn::DecoderLM&>(*model_).forward(rows(Tensor::from(batch.ids, shape)), mask, at),
              Tensor::from(batch.labels, shape), Tensor::from(batch.weights, shape));
  }

  PlainKernels plain_;  ///< as the program's
  Setting setting_;
  fs::path data_;
  text::Tokenizer tokenizer_;
  std::vector<text::Example> train_, valid_;
  text::SequenceOptions tokens_;
  std::unique_ptr<nn::Module> model_;
  std::optional<train::Ema> ema_;
};

/// The losses and weights of the setting's training. Those of the plain one are far from these.
inline Seen trains(const std::function<void(Setting&)>& change, const fs::path& data = sentences()) {
  return [=](const Ran& changed, const Ran& plain) {
    Setting setting;
    change(setting);
    Reference reference(setting, data, changed.path());
    check_equal(changed.log("loss"), reference.train());
    CHECK(changed.log("valid_loss").back() == Approx(reference.valid_loss()).epsilon(1e-5));
    const std::vector<double> smoothed = changed.log("valid_smoothed_loss");
    CHECK(smoothed.empty() == (setting.label_smoothing == 0));
    if (!smoothed.empty()) CHECK(smoothed.back() == Approx(reference.valid_loss(setting.label_smoothing)).epsilon(1e-5));
    CHECK(distance(changed.weights(), reference.weights()) < 2e-5);
    if (&changed != &plain) CHECK(distance(changed.weights(), plain.weights()) > 2e-4);
  };
}

}  // namespace tern::programs::test
