#pragma once
#include <functional>
#include <optional>

#include "common/program.h"
#include "io/run_directory.h"
#include "nn/nn.h"
#include "recall/data_set.h"
#include "recall/options.h"
#include "recall/score.h"
#include "train/train.h"

namespace tern::recall {

/// Trains a model on a data set, epoch by epoch. The data lie on the device, and a step gets nothing but the numbers of its
/// examples. A loss that is not finite ends the training with an exception that names the update and what to change.
class Trainer {
 public:
  /// The options have been checked. The weights are drawn here, from this thread's generator.
  Trainer(const Options& options, const DataSet& data, Device device);

  /// Epochs until they are done or the target is reached; `after_epoch` is called after each. The log may be null.
  void run(apps::ProgressLine& progress, io::JsonLog* log = nullptr, const std::function<void()>& after_epoch = {});

  /// The score on the test examples.
  Score test();
  /// The loss of each of their targets, (count, columns), whatever training looks at.
  std::vector<float> test_losses();

  const nn::DecoderLM& model() const { return model_; }
  std::int64_t total_updates() const { return options_.epochs * per_epoch_; }
  std::int64_t updates() const { return update_; }
  std::int64_t epoch() const { return epoch_; }
  /// The mean over the last epoch's updates.
  double train_loss() const { return train_loss_; }
  /// On the validation examples, after the last epoch.
  const Score& valid() const { return valid_; }
  /// Of training and its validations.
  double seconds() const { return seconds_; }
  double examples_per_second() const { return static_cast<double>(examples_seen_) / training_seconds_; }

  /// When the validation accuracy first was 90%.
  struct Passed {
    std::int64_t epoch = 0;
    double seconds = 0;
  };
  const std::optional<Passed>& passed() const { return passed_; }

 private:
  /// Examples on the device.
  struct DeviceExamples {
    std::int64_t count = 0;
    Tensor inputs, targets, places;
  };
  /// What the head gets at some places, (N, width), and what it is to say there, (N).
  struct Asked {
    Tensor hidden, targets;
  };
  /// All places of some examples, and the numbers of those among them that ask for an answer.
  struct Read {
    Asked all;
    Tensor answers;
  };

  DeviceExamples upload(const Examples& examples) const;
  Read read(const DeviceExamples& examples, const Tensor& picks) const;
  static Asked at(const Asked& all, const Tensor& places);
  Tensor loss(const Read& read) const;
  Tensor step(const Tensors& inputs);
  /// Calls `visit` with what the model reads in each batch of the examples, in evaluation mode.
  void for_each_batch(const DeviceExamples& examples, const std::function<void(const Read&)>& visit);
  Score score(const DeviceExamples& examples);
  void run_epoch(apps::ProgressLine& progress, io::JsonLog* log);
  double lr_factor() const;
  double require_finite(double loss) const;

  const Options options_;
  const Device device_;
  nn::DecoderLM model_;
  const DeviceExamples train_, valid_examples_, test_;
  std::optional<train::AdamW> optimizer_;
  std::optional<train::GradScaler> scaler_;  ///< in fp16
  train::CapturedStep captured_step_;
  Tensor loss_sum_;
  std::int64_t epoch_ = 0, update_ = 0, per_epoch_ = 0, log_every_ = 1, examples_seen_ = 0;
  double train_loss_ = 0, started_ = 0, seconds_ = 0, training_seconds_ = 0;
  Score valid_;
  std::optional<Passed> passed_;
};

}  // namespace tern::recall
