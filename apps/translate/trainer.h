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
#include "train/ema.h"
#include "translate/batches.h"
#include "translate/pairs.h"
#include "translate/translator.h"

namespace tern::translate {

/// Trains a translator's model. A round is the part of a training between two validations.
///
/// Note [The number of an update]
/// All epochs have as many updates as the first one needs for its pairs. With batches of a number of tokens a later epoch, with other
/// samples or other tokens by BPE-dropout, may have more or fewer batches: surplus batches are left out, and missing ones are updates
/// without a batch. The number of an update so determines its epoch and its batches, which is all that a resumed training needs.
class Trainer {
 public:
  /// The translator, the pairs and `ranks` (null for a single process) have to outlive the trainer. `remains` is that of
  /// apps::TrainingOptions. Throws UsageError if truncation leaves no pair a target.
  Trainer(Translator& translator, TrainingPairs& train, std::vector<text::Example> valid, std::function<std::string(bool)> remains,
          apps::Ranks* ranks = nullptr);

  /// Runs the updates of the present round (apps::Trainable::run_epoch): an epoch, or --valid-every updates. The number of updates so far
  /// determines the round: Note [The number of an update].
  void run_round(std::int64_t done, const std::function<void()>& after_update, apps::RunView& view);
  /// The mean loss of a token on the validation set, without dropout. With the training's label smoothing it compares with its loss.
  double valid_loss(double label_smoothing = 0);
  /// Sets the model's weights to their averages, if there are any, while the result lives.
  std::unique_ptr<train::EmaScope> measured();
  /// Null without --ema.
  const train::Ema* average() const { return ema_ ? &*ema_ : nullptr; }
  /// Throws apps::Stopped if a signal asks for a stop.
  void require_no_stop() const { loop_->require_no_stop(); }

  apps::TrainingLoop& loop() { return *loop_; }
  std::int64_t epochs() const { return epochs_of(total_updates()); }
  /// Number of epochs that have started after `updates` updates.
  std::int64_t epochs_of(std::int64_t updates) const { return ceil_div(updates, per_epoch_); }
  std::int64_t total_updates() const { return loop_->total_updates(); }
  std::int64_t updates() const { return loop_->updates(); }
  /// The mean loss over the last round's updates.
  double train_loss() const { return train_loss_; }
  double seconds() const { return loop_->seconds(); }
  /// Input tokens without padding per second of training.
  double tokens_per_second() const { return loop_->items_per_second(); }
  /// Number of training pairs that `length` truncates.
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
  apps::Ranks* const ranks_;                               ///< null for a single process
  std::unique_ptr<parallel::DataParallel> data_parallel_;  ///< null for a single process
  std::optional<train::Ema> ema_;
  std::optional<apps::TrainingLoop> loop_;
  std::int64_t per_epoch_ = 0;
  std::int64_t epoch_ = -1;  ///< epoch of examples_ and epoch_batches_
  const std::vector<text::Example>* examples_ = nullptr;
  std::vector<text::ShapedBatch> epoch_batches_;
  double train_loss_ = 0;
};

}  // namespace tern::translate
