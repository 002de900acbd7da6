#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "common/program.h"
#include "common/ranks.h"
#include "common/run_view.h"
#include "common/training_loop.h"
#include "tensor/ceil_div.h"
#include "train/ema.h"
#include "translate/batches.h"
#include "translate/pairs.h"
#include "translate/translator.h"

namespace tern::translate {

/// Updates a translator's model, round by round.
///
/// Note [The number of an update]
/// An epoch has as many updates as the first one needs for its pairs. Batches of tokens may be more in a later epoch, or fewer, as its
/// pairs or their tokens are others: what is over is left out, and what is missing are updates without a batch. So the number of an update
/// tells its epoch and its batches, and a training that goes on from a checkpoint needs to know no more.
class Trainer {
 public:
  /// The translator and the pairs outlive the trainer. Throws UsageError where no pair has room for a target.
  /// `remains` ends the message of a training that ends early. `ranks`, of a training in several processes, outlives the trainer.
  Trainer(Translator& translator, TrainingPairs& train, std::vector<text::Example> valid, std::function<std::string()> remains,
          apps::Ranks* ranks = nullptr);

  /// The updates between two validations, as apps::Trainable::run_epoch() has it: one pass over the pairs, or --valid-every updates.
  /// The number of updates says which round it is: Note [The number of an update].
  void run_round(std::int64_t done, const std::function<void()>& after_update, apps::RunView& view);
  /// The loss of a token on the validation set, without dropout.
  double valid_loss();
  /// While it lives, the model has the weights that are measured and kept: their average, where there is one.
  std::unique_ptr<train::EmaScope> measured();
  /// Null where the model is no average.
  const train::Ema* average() const { return ema_ ? &*ema_ : nullptr; }
  /// Throws apps::Stopped if a signal asks for a stop.
  void require_no_stop() const { loop_->require_no_stop(); }

  apps::TrainingLoop& loop() { return *loop_; }
  std::int64_t epochs() const { return epochs_of(total_updates()); }
  /// Epochs that were begun after `updates` updates.
  std::int64_t epochs_of(std::int64_t updates) const { return ceil_div(updates, per_epoch_); }
  std::int64_t total_updates() const { return loop_->total_updates(); }
  std::int64_t updates() const { return loop_->updates(); }
  /// The mean over the last round's updates.
  double train_loss() const { return train_loss_; }
  double seconds() const { return loop_->seconds(); }
  /// Input tokens that are not padding, for each second of training.
  double tokens_per_second() const { return loop_->items_per_second(); }
  /// Training pairs that `length` cuts.
  std::size_t cut() const;

 private:
  void require_targets(const std::vector<text::Example>& examples, const char* split) const;
  void begin_epoch(std::int64_t epoch);
  bool step(std::int64_t place);
  double lr_factor(std::int64_t update, std::int64_t total) const;

  const Options& options_;
  Translator& translator_;
  TranslationModel& model_;
  TrainingPairs& train_;
  const std::vector<text::Example> valid_;
  const Batches batches_;
  apps::Ranks* const ranks_;                           ///< null for a process that is alone
  std::unique_ptr<dist::DataParallel> data_parallel_;  ///< likewise
  std::optional<train::Ema> ema_;
  std::optional<apps::TrainingLoop> loop_;
  std::int64_t per_epoch_ = 0;
  std::int64_t epoch_ = -1;  ///< that examples_ and epoch_batches_ are of
  const std::vector<text::Example>* examples_ = nullptr;
  std::vector<text::ShapedBatch> epoch_batches_;
  double train_loss_ = 0;
};

}  // namespace tern::translate
