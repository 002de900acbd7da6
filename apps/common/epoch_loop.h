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
  /// Key for the choice of the best model, greater is better, with a tie-breaker: {BLEU, -loss}. A model without a rank is kept only until
  /// there is one with a rank.
  std::optional<std::pair<double, double>> rank;
  io::JsonObject numbers;  ///< for the log and the summary: valid_loss, valid_bleu, ...
  bool is_enough = false;  ///< end the training
};

/// A model and its data, for an EpochLoop. state(), numbers() and loop() have to hold all state of a training besides its options and data,
/// so that a training that restores them continues bitwise as if it had not ended. Random choices outside the thread's generator (order,
/// batches, BPE-dropout) have to be pure functions of the seed, the epoch and the position in the epoch.
class Trainable {
 public:
  virtual ~Trainable() = default;
  virtual TrainingLoop& loop() = 0;
  /// Runs the updates of epoch `epoch`, from 0, without its first `done`, until the epoch ends or loop().updates() ==
  /// loop().total_updates(). Calls loop().begin_epoch(done > 0), `after_update` after each update, skipped ones too, and
  /// loop().end_epoch(). Passes on exceptions of `after_update` and TrainingLoop::step(), with the state as between two updates.
  virtual void run_epoch(std::int64_t epoch, std::int64_t done, const std::function<void()>& after_update) = 0;
  /// Measures the weights of served() after `epochs` epochs. Changes no state, also when it throws Stopped.
  virtual Validation validate(std::int64_t epochs, bool is_last) = 0;
  /// Writes a validation to the log and the terminal.
  virtual void report(std::int64_t epochs, const Validation& validation) = 0;

  /// The module, for the names of its parameters.
  virtual const nn::Module& model() const = 0;
  /// Weights that are measured, saved as RUN/model.safetensors and tested, under the model's names: the masters, or an average of them.
  virtual std::vector<NamedTensor> served() { return nn::named_masters(model()); }
  /// Further tensors of the state besides the model's and the loop's, on any device, such as an average of the weights. Names begin with a
  /// prefix of their own ("ema."). They are read and written in place.
  virtual std::vector<NamedTensor> state() { return {}; }
  /// Further numbers of the state besides the loop's; restore() sets them.
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
/// A checkpoint is written between two updates; at the end of an epoch, before its validation. A training that resumes from it repeats this
/// validation by its own options: the last epoch of a short training is scored, but as one of many of a longer training it may not be.
/// Hence a training that ended by --updates or --epochs and is resumed with more of them has the log and the model of one that never ended.
///
/// Note [Checkpoints take little time]
/// Without --checkpoint-every a checkpoint is written at the end of an epoch, unless the time since the previous one is less than twenty
/// times its duration. The choice does not affect the results.
///
/// Each rank has a loop; all do the same, but only rank 0 writes (Note [Ranks decide as one]).
class EpochLoop {
 public:
  /// `trainable` and `run` have to outlive the loop. A null run: nothing is written, and only the best model is kept.
  EpochLoop(Trainable& trainable, TrainingRun* run, const EpochLoopOptions& options);

  /// Restores the state of the run's checkpoint, with the best model of that time. Throws FileError, before the run is changed, for a
  /// checkpoint that is damaged or of another model; UsageError if it has more updates than the training.
  void resume();
  /// Trains to the end, after which the module has the best model's weights. On a signal writes a checkpoint and throws Stopped.
  void run();

  /// Number of epochs that have started.
  std::int64_t epochs() const { return epoch_; }
  /// The best model, with its validation and the epochs and updates before that.
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
  std::int64_t epoch_ = 0;             ///< the current or last epoch, from 1; 0 before the first
  std::int64_t first_update_ = 0;      ///< updates before this epoch
  std::int64_t since_best_ = 0;        ///< validations with a rank since the best model
  bool resumes_epoch_ = false;         ///< the next epoch to run is the one of the restored checkpoint
  std::optional<std::int64_t> saved_;  ///< updates of the last checkpoint
  double saved_at_ = 0, save_seconds_ = 0;
};

}  // namespace tern::apps
