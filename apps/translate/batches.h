#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "tensor/random.h"
#include "text/batching.h"
#include "translate/model.h"

namespace tern::translate {

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
