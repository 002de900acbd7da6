#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/prepare.h"
#include "lm/options.h"
#include "trainer/trainer.h"

namespace tern::lm {

/// The ground of a training: what its options name.
struct Ground {
  /// Of options that have been checked. Throws UsageError for a model that the memory is too small for, FileError for damaged data.
  explicit Ground(const Options& options);

  const Device device;
  const data::PreparedData data;
  const nn::DecoderLMOptions shape;  ///< of the model
  const std::int64_t parameters;     ///< of the model, without adapters
};

/// The training of a language model: the next token of each of --length tokens, at places of the text that are a function of the seed and
/// the update's number.
class Training {
 public:
  struct Batch {
    Tensor ids;     ///< (B, T) of i64
    Tensor labels;  ///< (B, T) of i64: the tokens after them
  };

  /// Makes the model with this thread's generator, or with the weights of options.base. The ground and the run have to outlive it. Throws
  /// UsageError for data that are too short.
  Training(const Options& options, const Ground& ground, train::Run& run);

  train::Trainer& trainer() { return *trainer_; }
  nn::DecoderLM& model() { return model_; }

  /// First tokens, in the list of training tokens, of the rows of an update, from 0.
  std::vector<std::int64_t> rows(std::int64_t update) const;
  /// The rows of training tokens that begin there.
  Batch load(std::span<const std::int64_t> first) const { return load(windows_of_rows_, first); }
  /// Text that the model, as it is, writes after the beginning of the validation text.
  train::Sample sample() const;

 private:
  Batch load(const data::TokenWindows& windows, std::span<const std::int64_t> indices) const;
  train::UpdateBatch batch(std::int64_t update) const;
  std::unique_ptr<train::Optimizer> optimizer(const Tensors& parameters) const;
  train::Validation validate(const train::Trainer& trainer);

  const Options options_;
  const FusedKernels kernels_;  ///< as the options say, as long as it lives
  const data::PreparedData& data_;
  const Device device_;
  nn::DecoderLM model_;
  train::Ranks* const ranks_;                 ///< null for a single process
  const data::TokenWindows windows_of_rows_;  ///< one for each token
  std::int64_t windows_ = 0, per_epoch_ = 0;
  mutable std::int64_t epoch_ = -1;  ///< epoch of order_
  mutable std::vector<std::size_t> order_;
  std::optional<train::Trainer> trainer_;
};

/// Makes the updates up to `last` of the run in options.out once more, from its last checkpoint before `first`, and
/// prints the last one's loss, weights and worst rows. If a loss is not finite, or unless `is_finite`, every op from update `first` on is
/// checked, and the first op and module whose result is not finite are named. Throws UsageError for other data.
void replay(const Options& options, std::int64_t first, std::int64_t last, bool is_finite);

}  // namespace tern::lm
