#pragma once
#include <functional>
#include <optional>

#include "common/epoch_loop.h"
#include "common/program.h"
#include "common/ranks.h"
#include "common/run_view.h"
#include "common/training_loop.h"
#include "nn/nn.h"
#include "recall/data_set.h"
#include "recall/options.h"
#include "recall/score.h"

namespace tern::recall {

/// Trains a model on a data set, which is stored on the device. The input of a step is the indices of its examples, (B) of i64.
class Trainer final : public apps::Trainable {
 public:
  /// Initialises the model with this thread's generator. The options have to be checked. `remains` is that of apps::TrainingOptions.
  /// `ranks`, null for a single process, has to outlive the trainer.
  Trainer(const Options& options, const DataSet& data, Device device, std::function<std::string(bool)> remains,
          apps::Ranks* ranks = nullptr);

  /// Trains until all epochs are done or the target is reached, for a resumed run from its checkpoint. The model is then the best one.
  /// `run` may be null.
  void run(apps::RunView& view, apps::TrainingRun* run = nullptr);

  /// The score on the test examples.
  Score test();
  /// The loss of each target of the test examples, (count, columns), including those that training ignores.
  std::vector<float> test_losses();

  const nn::DecoderLM& model() const override { return model_; }
  apps::TrainingLoop& loop() override { return *loop_; }
  std::int64_t total_updates() const { return loop_->total_updates(); }
  std::int64_t updates() const { return loop_->updates(); }
  std::int64_t epoch() const { return epoch_; }
  /// The epoch of the best model: highest validation accuracy, least loss among equals.
  std::int64_t best_epoch() const { return best_epoch_; }
  /// The mean loss over the last epoch's updates.
  double train_loss() const { return train_loss_; }
  /// Seconds of training and its validations.
  double seconds() const { return seconds_; }
  double examples_per_second() const { return loop_->items_per_second(); }

  /// The first validation with an accuracy of 90% or more.
  struct Passed {
    std::int64_t epoch = 0;
    double seconds = 0;
  };
  const std::optional<Passed>& passed() const { return passed_; }

 private:
  /// Examples on the device.
  struct DeviceExamples {
    std::int64_t count = 0;
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
  apps::BatchPart own_part(const std::vector<std::size_t>& picked) const;
  /// Calls `visit` with each batch of the examples, in evaluation mode.
  void for_each_batch(const DeviceExamples& examples, const std::function<void(const Forward&)>& visit);
  Score score(const DeviceExamples& examples);
  void run_epoch(std::int64_t epoch, std::int64_t done, const std::function<void()>& after_update) override;
  apps::Validation validate(std::int64_t epochs, bool is_last) override;
  void report(std::int64_t epochs, const apps::Validation& validation) override;
  io::JsonObject numbers() const override;
  void restore(const io::JsonObject& numbers) override;
  double lr_factor(std::int64_t update, std::int64_t total) const;

  const Options options_;
  const Device device_;
  nn::DecoderLM model_;
  const DeviceExamples train_, valid_examples_, test_;
  apps::Ranks* const ranks_;                               ///< null for a single process
  std::vector<std::int64_t> target_counts_;                ///< with several ranks: targets of each training example in the loss
  std::unique_ptr<parallel::DataParallel> data_parallel_;  ///< null for a single process
  std::optional<apps::TrainingLoop> loop_;
  apps::RunView* view_ = nullptr;
  apps::TrainingRun* run_ = nullptr;
  std::int64_t epoch_ = 0, best_epoch_ = 0;
  double train_loss_ = 0, started_ = 0, seconds_ = 0;
  Score valid_;
  std::optional<Passed> passed_;
};

}  // namespace tern::recall
