#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/training_loop.h"
#include "common/training_run.h"
#include "nn/parameter_buffer.h"

namespace tern::apps {

/// A measurement on the validation set.
struct Validation {
  /// By which the best model is chosen, the greater the better, and what decides between equal ones: {BLEU, -loss}. Without one the
  /// model is no candidate, and is kept only as long as there is none.
  std::optional<std::pair<double, double>> rank;
  io::JsonObject numbers;  ///< for the log and the summary: valid_loss, valid_bleu, ...
  bool is_enough = false;  ///< training ends here
};

/// A model and its data, trained by an EpochLoop. All that a training depends on besides its options and data stands in the tensors and
/// numbers below: a training whose loop() and these were restored goes on bitwise as if it had never ended. What is drawn outside of the
/// thread's generator (order, batches, BPE-dropout) has to be a pure function of the seed, the epoch and the place in the epoch.
class Trainable {
 public:
  virtual ~Trainable() = default;
  virtual TrainingLoop& loop() = 0;
  /// The updates of an epoch, counted from 0, but for its first `done`, until it ends or loop().updates() == loop().total_updates(); calls
  /// `after_update` after each, skipped ones too. Begins with loop().begin_epoch(done > 0), and ends with loop().end_epoch(). Exceptions
  /// come from `after_update` and from TrainingLoop::step(), and all of the state is then that between two updates.
  virtual void run_epoch(std::int64_t epoch, std::int64_t done, const std::function<void()>& after_update) = 0;
  /// Measures the weights of served(), after `epochs` epochs. Leaves every state as it was, also where it throws (Stopped).
  virtual Validation validate(std::int64_t epochs, bool is_last) = 0;
  /// A line of the log and of the terminal for that validation.
  virtual void report(std::int64_t epochs, const Validation& validation) = 0;

  /// The module's parameters, for their names.
  virtual const nn::Module& model() const = 0;
  /// Weights that are measured, saved as RUN/model.safetensors and tested, under the model's names: the masters, or an average of them.
  virtual std::vector<NamedTensor> served() { return nn::named_masters(model()); }
  /// State on any device beside the model's and the loop's, each name beginning with a word of its own ("ema."): an average, for instance.
  /// They are read and written in place.
  virtual std::vector<NamedTensor> state() { return {}; }
  /// Numbers beside the loop's.
  virtual io::JsonObject numbers() const { return {}; }
  virtual void restore(const io::JsonObject& /*numbers*/) {}
};

struct EpochLoopOptions {
  /// Early stopping: training ends after this many validations in a row that are no better than the best; 0: never.
  std::int64_t patience = 0;
};

/// Epochs with their validations, the best model, checkpoints, and signals.
///
/// Note [Checkpoints stand before validations]
/// A checkpoint is written between two updates, and at the end of an epoch before its validation. One that goes on from there does that
/// validation again, and does it as its own options have it: the last epoch of a short training, which is scored, may be one of many of a
/// longer one, which is not. Hence a training that was ended by --updates or --epochs and then goes on with more has the log and the model
/// of one that was never ended.
///
/// Note [Checkpoints take little time]
/// Without --checkpoint-every the end of an epoch has a checkpoint unless the time since the one before is less than twenty times what that
/// one took. Which updates have one never shows in what is trained.
///
/// Of several ranks each has a loop, and all do the same; rank 0's run alone writes, see Note [Ranks decide as one].
class EpochLoop {
 public:
  /// Without a run nothing is written, and the best model is all that is kept. The two outlive the loop.
  EpochLoop(Trainable& trainable, TrainingRun* run, const EpochLoopOptions& options);

  /// Goes on from the checkpoint of a run that is resumed, whose best model becomes the run's. Throws FileError, before the run has
  /// changed, for one that is damaged, or another model's; UsageError if it has done more updates than it now is to do.
  void resume();
  /// Trains to the end. The module then has the best model's weights. A signal ends it by Stopped, after a checkpoint.
  void run();

  /// Epochs that were begun.
  std::int64_t epochs() const { return epoch_; }
  /// Of the model that is kept: its validation, and after how many epochs and updates that was.
  struct Best {
    Validation validation;
    std::int64_t epoch = 0, update = 0;
    std::vector<NamedTensor> model;  ///< on the CPU, f32
  };
  const Best& best() const { return best_; }

 private:
  void run_epochs();
  void agree_on(Validation& validation) const;
  void keep_best(const Validation& validation);
  void save_checkpoint();
  std::vector<NamedTensor> tensors();
  io::JsonObject numbers() const;
  void restore(const io::JsonObject& numbers);

  Trainable& trainable_;
  TrainingRun* const run_;
  const EpochLoopOptions options_;
  Best best_;
  std::int64_t epoch_ = 0;             ///< that is running or was last, from 1; 0 before the first
  std::int64_t first_update_ = 0;      ///< updates before this epoch
  std::int64_t since_best_ = 0;        ///< validations with a rank
  bool goes_on_ = false;               ///< the next epoch is one that a checkpoint stands in
  std::optional<std::int64_t> saved_;  ///< the updates that the last checkpoint has
  double saved_at_ = 0, save_seconds_ = 0;
};

}  // namespace tern::apps
