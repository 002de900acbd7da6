#include "translate/batches.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "backend/device.h"
#include "text/unicode.h"

namespace tern::translate {

std::vector<std::int32_t> line_tokens(const text::Tokenizer& tokenizer, const std::string& line) {
  return text::is_blank(line) ? std::vector<std::int32_t>{} : tokenizer.encode(line);
}

std::vector<text::Example> encode(const text::Tokenizer& tokenizer, const text::ParallelCorpus& corpus,
                                  const std::function<void()>& on_step) {
  std::vector<text::Example> examples(corpus.size());
  for (std::size_t i = 0; i < corpus.size(); ++i) {
    on_step();
    examples[i] = {line_tokens(tokenizer, corpus.src[i]), line_tokens(tokenizer, corpus.tgt[i])};
  }
  return examples;
}

TrainingPairs::TrainingPairs(const Options& options, const text::Tokenizer& tokenizer, const text::ParallelCorpus& corpus,
                             const std::function<void()>& on_step)
    : plain_(encode(tokenizer, corpus, on_step)) {
  if (options.bpe_dropout == 0) return;
  const auto seed = static_cast<std::uint64_t>(options.seed);
  src_.emplace(tokenizer, corpus.src, options.bpe_dropout, seed);
  tgt_.emplace(tokenizer, corpus.tgt, options.bpe_dropout, seed, corpus.size());
}

std::vector<text::Example> TrainingPairs::encoded(std::uint64_t epoch) const {
  const int threads = std::max(num_threads() / 2, 1);  // the others are for the training
  auto src = src_->encode(epoch, threads), tgt = tgt_->encode(epoch, threads);
  std::vector<text::Example> examples(src.size());
  for (std::size_t i = 0; i < src.size(); ++i) examples[i] = {std::move(src[i]), std::move(tgt[i])};
  return examples;
}

const std::vector<text::Example>& TrainingPairs::of_epoch(std::uint64_t epoch) {
  if (!src_) return plain_;
  now_ = next_.valid() && next_epoch_ == epoch ? next_.get() : encoded(epoch);
  next_epoch_ = epoch + 1;
  next_ = std::async(std::launch::async, [this, next = epoch + 1] { return encoded(next); });
  return now_;
}

Batches::Batches(const Options& options, const text::SequenceOptions& tokens, Device device)
    : options_(options), tokens_(tokens), device_(device) {}

std::int64_t Batches::needed(const text::Example& example) const {
  return is_encoder_decoder(options_) ? text::pair_columns(example) : text::sequence_columns(example);
}

// A decoder-only LM does not read the last token of its `length`.
std::int64_t Batches::max_columns() const { return is_encoder_decoder(options_) ? options_.length : options_.length - 1; }

std::int64_t Batches::columns(const text::Example& example) const { return std::min(needed(example), max_columns()); }

bool Batches::is_cut(const text::Example& example) const { return needed(example) > max_columns(); }

bool Batches::has_target(const text::Example& example) const {
  return is_encoder_decoder(options_) || static_cast<std::int64_t>(example.src.size()) + 1 < options_.length;
}

text::ShapedBatch Batches::fitted(const std::vector<text::Example>& examples, std::vector<std::size_t> picks) const {
  text::ShapedBatch batch{std::move(picks), {}};
  batch.shape.rows = static_cast<std::int64_t>(batch.picks.size());
  batch.shape.columns = options_.pad_to_length ? max_columns() : 1;
  for (std::size_t pick : batch.picks) batch.shape.columns = std::max(batch.shape.columns, columns(examples[pick]));
  return batch;
}

/// Groups pairs of similar length, unless rows are padded to a fixed length.
std::vector<text::ShapedBatch> Batches::epoch(const std::vector<text::Example>& examples, std::uint64_t epoch) const {
  const auto seed = static_cast<std::uint64_t>(options_.seed);
  std::vector<std::size_t> order = text::epoch_order(examples.size(), seed, epoch, static_cast<std::size_t>(options_.samples));
  if (options_.batch_tokens > 0) {
    std::vector<std::int64_t> lengths(examples.size());
    std::transform(examples.begin(), examples.end(), lengths.begin(), [&](const text::Example& example) { return columns(example); });
    text::BucketOptions buckets{.token_budget = static_cast<std::size_t>(options_.batch_tokens), .multiple = 8, .row_multiple = 8};
    std::vector<text::ShapedBatch> batches = text::shaped_batches(order, lengths, buckets, seed, epoch);
    for (text::ShapedBatch& batch : batches) batch.shape.columns = std::min(batch.shape.columns, max_columns());
    return batches;
  }
  const auto rows = static_cast<std::size_t>(options_.batch_size);
  // Stable: pairs of one length stay in the epoch's random order.
  if (!options_.pad_to_length)
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return columns(examples[a]) < columns(examples[b]); });
  std::vector<std::vector<std::size_t>> batches = text::fixed_batches(order, rows);
  std::vector<std::size_t> places(batches.size());
  std::iota(places.begin(), places.end(), std::size_t{0});
  if (!options_.pad_to_length) places = text::epoch_order(batches.size(), seed + 1, epoch);
  std::vector<text::ShapedBatch> result;
  for (std::size_t i : places) result.push_back(fitted(examples, std::move(batches[i])));
  return result;
}

std::vector<text::ShapedBatch> Batches::in_order(const std::vector<text::Example>& examples) const {
  std::vector<std::size_t> order(examples.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::vector<text::ShapedBatch> result;
  for (std::vector<std::size_t>& picks : text::fixed_batches(order, static_cast<std::size_t>(options_.batch_size)))
    result.push_back(fitted(examples, std::move(picks)));
  return result;
}

LoadedBatch Batches::load(const std::vector<text::Example>& examples, const text::ShapedBatch& batch,
                          const std::optional<BatchRows>& part) const {
  LoadedBatch result;
  for (std::size_t pick : batch.picks) result.tokens += columns(examples[pick]);
  const auto sum_of = [](const std::vector<float>& weights) { return std::accumulate(weights.begin(), weights.end(), 0.0); };
  // The part's rows of values of shape (rows, ...).
  const auto upload = [&]<class T>(std::vector<T> values, Shape shape) {
    if (part) {
      const auto of_row = static_cast<std::ptrdiff_t>(values.size()) / shape[0];
      const auto first = values.begin() + part->first * of_row;
      values = std::vector<T>(first, first + part->count * of_row);
      shape[0] = part->count;
    }
    return Tensor::from(values, shape, device_);
  };
  const Shape shape{batch.shape.rows, batch.shape.columns};
  if (!is_encoder_decoder(options_)) {
    const text::Batch host = text::make_batch(examples, batch.picks, tokens_, batch.shape);
    result.batch = {.ids = upload(host.ids, shape),
                    .labels = upload(host.labels, shape),
                    .weights = upload(host.weights, shape),
                    .lengths = upload(host.prefix, {shape[0]}),
                    .sources = {}};
    result.weight = sum_of(host.weights);
    return result;
  }
  const text::PairBatch host = text::make_pair_batch(examples, batch.picks, tokens_, batch.shape);
  result.batch = {.ids = upload(host.tgt_in, shape),
                  .labels = upload(host.labels, shape),
                  .weights = upload(host.weights, shape),
                  .lengths = upload(host.src_length, {shape[0]}),
                  .sources = upload(host.src, shape)};
  result.weight = sum_of(host.weights);
  result.tokens = static_cast<std::int64_t>(result.weight);
  for (std::int64_t length : host.src_length) result.tokens += length;
  result.tokens -= shape[0] - static_cast<std::int64_t>(batch.picks.size());  // without the token of each empty row
  return result;
}

}  // namespace tern::translate
