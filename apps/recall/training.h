#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "nn/nn.h"
#include "recall/data_set.h"
#include "recall/options.h"
#include "trainer/trainer.h"

namespace tern::recall {

/// Callbacks of train::Trainer for a model and a data set, which is stored on the device.
class Training {
 public:
  /// The batch of a step: which examples.
  struct Batch {
    Tensor picks;  ///< (B) of i64
  };

  /// Initialises the model with this thread's generator. The options have to be checked. The run has to outlive it.
  Training(const Options& options, const DataSet& data, Device device, train::Run& run, bool shows_progress = true);

  /// The score on the test examples.
  Score test() { return score(test_); }
  /// The scores on each of DataSet::longer.
  std::vector<Score> test_longer();
  /// The loss of each target of the test examples, (count, columns), including those that training ignores.
  std::vector<float> test_losses();

  const nn::DecoderLM& model() const { return model_; }
  train::Trainer& trainer() { return *trainer_; }
  const train::Trainer& trainer() const { return *trainer_; }
  /// Seconds of training and its validations.
  double seconds() const { return seconds_; }

  /// The first validation with an accuracy of 90% or more.
  struct Passed {
    std::int64_t epoch = 0;
    double seconds = 0;
  };
  std::optional<Passed> passed() const;

 private:
  /// Examples on the device.
  struct DeviceExamples {
    std::int64_t count = 0;
    std::vector<std::int64_t> answers;  ///< of each
    Tensor inputs, targets, answer_columns;
  };
  /// Hidden states for the head, (N, width), and the targets of its predictions, (N).
  struct HeadInput {
    Tensor hidden, targets;
  };
  /// The hidden states of a batch, one row for each column of an example, and the indices of the rows of answers.
  struct Forward {
    HeadInput all;
    Tensor answer_rows;
  };

  DeviceExamples upload(const Examples& examples) const;
  Forward forward(const DeviceExamples& examples, const Tensor& picks) const;
  static HeadInput select_rows(const HeadInput& all, const Tensor& rows);
  Tensor loss(const Forward& batch, Reduction reduction = Reduction::mean) const;
  train::UpdateBatch batch(std::int64_t update);
  /// Calls `visit` with each batch of the examples and the number of its answers, in evaluation mode.
  void for_each_batch(const DeviceExamples& examples, const std::function<void(const Forward&, std::int64_t)>& visit);
  Score score(const DeviceExamples& examples);
  train::Validation validate(const train::Trainer& trainer);

  const Options options_;
  const FusedKernels kernels_;  ///< as the options say, as long as it lives
  const Device device_;
  nn::DecoderLM model_;
  const DeviceExamples train_, valid_, test_;
  std::vector<DeviceExamples> longer_;
  train::Ranks* const ranks_;                ///< null for a single process
  std::vector<std::int64_t> target_counts_;  ///< with several ranks: targets of each training example in the loss
  std::int64_t per_epoch_;
  std::int64_t epoch_ = -1;  ///< epoch of batches_
  std::vector<std::vector<std::size_t>> batches_;
  std::optional<train::Trainer> trainer_;
  double seconds_ = 0;
};

/// Checks the options, also against this machine, and returns the device. Throws UsageError.
Device require_trainable(const Options& options);

}  // namespace tern::recall
