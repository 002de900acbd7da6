#pragma once
#include <cstdint>
#include <functional>
#include <future>
#include <optional>
#include <vector>

#include "tensor/random.h"
#include "text/batching.h"
#include "text/bpe.h"
#include "text/corpus.h"
#include "translate/options.h"
#include "translate/translator.h"

namespace tern::translate {

/// The tokens of a line; none for a line that shows nothing (text::is_blank), from which a model would make something up.
std::vector<std::int32_t> line_tokens(const text::Tokenizer& tokenizer, const std::string& line);

/// Encodes all pairs of a corpus. Calls `on_step` between them, and passes on its exceptions.
std::vector<text::Example> encode(const text::Tokenizer& tokenizer, const text::ParallelCorpus& corpus,
                                  const std::function<void()>& on_step);

/// The training pairs as ids, with new BPE-dropout for each epoch. The pairs of the next epoch are encoded while an epoch runs.
class TrainingPairs {
 public:
  TrainingPairs(const Options& options, const text::Tokenizer& tokenizer, const text::ParallelCorpus& corpus,
                const std::function<void()>& on_step);

  /// The pairs without dropout.
  const std::vector<text::Example>& plain() const { return plain_; }
  /// The pairs of an epoch, from 0, valid until the next call. A pure function of the options' seed and the epoch.
  const std::vector<text::Example>& of_epoch(std::uint64_t epoch);

 private:
  std::vector<text::Example> encoded(std::uint64_t epoch) const;

  std::vector<text::Example> plain_, now_;
  std::optional<text::EpochEncoder> src_, tgt_;  ///< set if there is dropout
  std::uint64_t next_epoch_ = 0;
  std::future<std::vector<text::Example>> next_;  ///< last, so that it is destroyed before the members that it uses
};

/// A batch with its counts, also those of rows that other ranks have.
struct LoadedBatch {
  Batch batch;
  std::int64_t tokens = 0;  ///< tokens without padding: of the input of a decoder-only LM, or of source and target
  double weight = 0;        ///< sum of the weights: number of target tokens
};

/// Batches for a model: the grouping of examples, their shapes, and the copy to the device.
class Batches {
 public:
  Batches(const Options& options, const text::SequenceOptions& tokens, Device device);

  /// The batches of an epoch, from 0, in the order of training, of `batch_size` pairs or `batch_tokens` tokens each. A pure function of the
  /// seed, the epoch and the examples.
  std::vector<text::ShapedBatch> epoch(const std::vector<text::Example>& examples, std::uint64_t epoch) const;
  /// Batches of all examples in their order, for validation.
  std::vector<text::ShapedBatch> in_order(const std::vector<text::Example>& examples) const;
  /// Copies a batch to the device. With `part`, its tensors have these rows only; the counts are those of the whole batch.
  LoadedBatch load(const std::vector<text::Example>& examples, const text::ShapedBatch& batch,
                   const std::optional<BatchRows>& part = {}) const;

  /// Columns that an example needs, and the maximum that it gets.
  std::int64_t columns(const text::Example& example) const;
  std::int64_t max_columns() const;
  /// True if an example is not truncated.
  bool is_cut(const text::Example& example) const;
  /// True if truncation leaves a part of an example's target.
  bool has_target(const text::Example& example) const;

 private:
  text::ShapedBatch fitted(const std::vector<text::Example>& examples, std::vector<std::size_t> picks) const;
  std::int64_t needed(const text::Example& example) const;

  const Options& options_;
  const text::SequenceOptions tokens_;
  const Device device_;
};

}  // namespace tern::translate
