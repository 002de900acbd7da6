#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/prepare.h"
#include "lm/options.h"
#include "nn/transformer.h"
#include "trainer/trainer.h"

namespace tern::lm {

using data::PreparedData, data::TokenList;

/// The training of a language model: the next token of each of --length tokens, at places of the text that are a function of the seed and
/// the update's number.
class Training {
 public:
  struct Batch {
    Tensor ids;     ///< (B, T) of i64
    Tensor labels;  ///< (B, T) of i64: the tokens after them
  };

  /// Makes the model with this thread's generator, or with the weights of options.base. The options have to be checked; the data and the
  /// run have to outlive it. Throws UsageError for data that are too short.
  Training(const Options& options, const PreparedData& data, Device device, train::Run& run);

  train::Trainer& trainer() { return *trainer_; }
  nn::DecoderLM& model() { return model_; }

  /// First tokens, in the list of training tokens, of the rows of an update, from 0.
  std::vector<std::int64_t> rows(std::int64_t update) const;
  /// The windows that begin there.
  Batch load(const TokenList& tokens, std::span<const std::int64_t> first) const;
  /// Text that the model, as it is, writes after the beginning of the validation text.
  train::Sample sample() const;

 private:
  train::UpdateBatch batch(std::int64_t update) const;
  std::unique_ptr<train::Optimizer> optimizer(const Tensors& parameters) const;
  train::Validation validate(const train::Trainer& trainer);

  const Options options_;
  const FusedKernels kernels_;  ///< as the options say, as long as it lives
  const PreparedData& data_;
  const Device device_;
  nn::DecoderLM model_;
  train::Ranks* const ranks_;  ///< null for a single process
  std::int64_t windows_ = 0, per_epoch_ = 0;
  mutable std::int64_t epoch_ = -1;  ///< epoch of order_
  mutable std::vector<std::size_t> order_;
  std::optional<train::Trainer> trainer_;
};

/// Trains, and writes the run to options.out. Throws UsageError or Error for invalid options, before anything is written.
void train(const Options& options);

/// Prints the memory of an update, as two small ones have it, and the largest batch that fits. Throws as train() does.
void fit(const Options& options);

/// Makes the updates up to `last` of the run in options.out once more, from its last checkpoint before `first`, and
/// prints the last one's loss, weights and worst rows. If a loss is not finite, or unless `is_finite`, every op from update `first` on is
/// checked, and the first op and module whose result is not finite are named. Throws UsageError for other data.
void replay(const Options& options, std::int64_t first, std::int64_t last, bool is_finite);

}  // namespace tern::lm
