#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "tensor/random.h"
#include "tensor/tensor.h"
#include "text/batching.h"
#include "translate/options.h"

namespace tern::translate {

/// A batch on the device, as TranslationModel::loss takes it.
struct DeviceBatch {
  Tensors inputs;
  std::int64_t tokens = 0;  ///< of a decoder-only LM's input, or of source and target, without padding
  double weight = 0;        ///< the sum of the weights: target tokens
};

/// Examples as a model's batches: which ones go together, in which shape, and how they come to the device.
class Batches {
 public:
  Batches(const Options& options, const text::SequenceOptions& tokens, Device device);

  /// The batches of an epoch, counted from 0, in the order of training: `batch_size` pairs each, or `batch_tokens` tokens. A pure function
  /// of the seed, the epoch and the examples.
  std::vector<text::ShapedBatch> epoch(const std::vector<text::Example>& examples, std::uint64_t epoch) const;
  /// All examples, in their order.
  std::vector<text::ShapedBatch> in_order(const std::vector<text::Example>& examples) const;
  /// With a part, `inputs` are its rows alone; the numbers are the whole batch's.
  DeviceBatch load(const std::vector<text::Example>& examples, const text::ShapedBatch& batch,
                   const std::optional<BatchRows>& part = {}) const;

  /// Columns that an example needs, and gets at most.
  std::int64_t columns(const text::Example& example) const;
  std::int64_t max_columns() const;
  /// Whether the model has room for all of it.
  bool is_cut(const text::Example& example) const;
  /// Whether the model has room for any of its target.
  bool has_target(const text::Example& example) const;

 private:
  text::ShapedBatch fitted(const std::vector<text::Example>& examples, std::vector<std::size_t> picks) const;
  std::int64_t needed(const text::Example& example) const;

  const Options& options_;
  const text::SequenceOptions tokens_;
  const Device device_;
};

}  // namespace tern::translate
