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

/// Trains a model on a data set, epoch by epoch. The data lie on the device, and a step's input is the indices of its examples,
/// (B) of i64.
class Trainer final : public apps::Trainable {
 public:
  /// The options have been checked. The weights are drawn here, from this thread's generator.
  /// `remains` ends the message of a training that ends early. `ranks`, of a training in several processes, outlives the trainer.
  Trainer(const Options& options, const DataSet& data, Device device, std::function<std::string()> remains, apps::Ranks* ranks = nullptr);

  /// Epochs until they are done or the target is reached, from the checkpoint of a run that is resumed; then the model is the best one. The
  /// run may be null.
  void run(apps::RunView& view, apps::TrainingRun* run = nullptr);

  /// The score on the test examples.
  Score test();
  /// The loss of each of their targets, (count, columns), also of those that training ignores.
  std::vector<float> test_losses();

  const nn::DecoderLM& model() const override { return model_; }
  apps::TrainingLoop& loop() override { return *loop_; }
  std::int64_t total_updates() const { return loop_->total_updates(); }
  std::int64_t updates() const { return loop_->updates(); }
  std::int64_t epoch() const { return epoch_; }
  /// The epoch of the model that is kept: that of the highest validation accuracy, and of the least loss among equal ones.
  std::int64_t best_epoch() const { return best_epoch_; }
  /// The mean over the last epoch's updates.
  double train_loss() const { return train_loss_; }
  /// On the validation examples, after the last epoch.
  const Score& valid() const { return valid_; }
  /// Of training and its validations.
  double seconds() const { return seconds_; }
  double examples_per_second() const { return loop_->items_per_second(); }

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
    Tensor inputs, targets, answer_columns;
  };
  /// Hidden states that the head gets, (N, width), and the targets of its predictions there, (N).
  struct HeadInput {
    Tensor hidden, targets;
  };
  /// The hidden states of some examples, one row a column, and the numbers of those rows that ask for an answer.
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
  apps::Ranks* const ranks_;                           ///< null for a process that is alone
  std::vector<std::int64_t> target_counts_;            ///< of several ranks: targets of each training example that the loss looks at
  std::unique_ptr<dist::DataParallel> data_parallel_;  ///< likewise
  std::optional<apps::TrainingLoop> loop_;
  apps::RunView* view_ = nullptr;
  apps::TrainingRun* run_ = nullptr;
  std::int64_t epoch_ = 0, best_epoch_ = 0;
  double train_loss_ = 0, started_ = 0, seconds_ = 0;
  Score valid_;
  std::optional<Passed> passed_;
};

}  // namespace tern::recall
