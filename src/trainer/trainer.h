#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "compile/compile.h"
#include "nn/module.h"
#include "tensor/sizes.h"
#include "train/train.h"
#include "trainer/ranks.h"
#include "trainer/run.h"
#include "trainer/terminal.h"

namespace tern::train {

/// A part of an update's batch.
struct BatchPart {
  /// Of a batch on the device.
  template <TensorStruct Batch>
  BatchPart(const Batch& batch, double share = 1, const RankPart& rows = {}) : tensors(tensors_of(batch)), weight(share), rank(rows) {}

  Tensors tensors;     ///< of the batch
  double weight = 1;   ///< weight in the mean loss, such as the number of targets
  RankPart rank = {};  ///< with several ranks: the rows of the batch; `weight` is that of all ranks' rows
};

/// The batch of an update: parts whose gradients add up (gradient accumulation). Without parts the update is counted, and nothing is
/// trained.
struct UpdateBatch {
  std::vector<BatchPart> parts;  ///< of the batch
  std::int64_t items = 0;        ///< tokens or examples, for the items per second
};

/// A measurement on a validation set.
struct Validation {
  /// Key for the choice of the best model, greater is better, with a tie-breaker: {BLEU, -loss}. A model without a rank is kept only until
  /// there is one with a rank.
  std::optional<std::pair<double, double>> rank = {};
  io::JsonObject numbers = {};         ///< for the log: valid_loss, valid_bleu, ...
  bool is_enough = false;              ///< end the training
  std::string shown = {};              ///< the line for the terminal; by default made of the numbers
  std::vector<Sample> samples = {};    ///< for TensorBoard
  std::optional<double> seconds = {};  ///< for the log; by default those of the updates
};

/// A loss or weights that are not finite, first seen after one of the updates first .. last.
struct NotFinite : std::runtime_error {
  /// Of these updates.
  NotFinite(const std::string& message, std::int64_t first_update, std::int64_t last_update)
      : std::runtime_error(message), first(first_update), last(last_update) {}
  std::int64_t first;  ///< number of an update, from 1
  std::int64_t last;   ///< first, or a later one
};

class StepProfile;
class Trainer;

/// Callbacks: the model that is trained, and its data. Random choices outside the thread's generator (order, batches) have to be pure
/// functions of the update's number, so that a training that resumes continues bitwise as if it had not ended.
struct Task {
  /// The mean loss of a batch, recorded for backward; with several ranks the sum over its rows. Captured on a GPU: see CapturedStep. With
  /// TrainerOptions::compile a part of a compiled function: see compile().
  StepFunction loss;
  /// The batch of an update, from 0.
  std::function<UpdateBatch(std::int64_t update)> batch;
  /// The optimizer of the model's parameters but frozen ones, in their final places and precision.
  std::function<std::unique_ptr<Optimizer>(const Tensors& parameters)> optimizer;
  /// Measures the model after each round; with TrainerOptions::ema its parameters are the averages then. Changes no state, also when it
  /// throws Stopped. Without it the last model is kept.
  std::function<Validation(Trainer& trainer)> validate = {};
};

/// Options of a Trainer.
struct TrainerOptions {
  std::int64_t updates = 0;            ///< total number of updates
  std::int64_t updates_per_epoch = 1;  ///< updates of an epoch
  std::int64_t valid_every = 0;        ///< updates of a round, after which the model is measured; 0: an epoch's
  std::int64_t patience = 0;           ///< the training ends after so many validations without a better model; 0: never
  double lr = 0;                       ///< the optimizer's learning rate, for the log
  std::string schedule = "constant";   ///< of schedule::by_name
  std::int64_t warmup = 0;             ///< updates until the learning rate has risen
  std::function<double(std::int64_t update)> lr_factor = {};  ///< a further factor of the learning rate, for an update from 1
  double clip = 0;                                            ///< maximum gradient norm; 0: no clipping
  double ema = 0;                                             ///< decay of Ema, whose averages are the model; 0: no averages
  bool saves_frozen = true;                                   ///< models and checkpoints hold frozen parameters, too
  Precision precision = Precision::fp32;                      ///< of the model and its updates
  const char* unit = "examples";                              ///< unit of UpdateBatch::items
  bool shows_progress = true;                                 ///< a status line on stderr; trainings in several threads have none
  bool may_end_early = false;                                 ///< a validation may be enough: the time left is an upper bound
  std::int64_t profile = 0;                                   ///< updates to profile after the first ones; 0: none
  bool compile = false;                                       ///< updates are compiled: see compile(); not with sharded gradients
};

/// A training: updates, each a captured or compiled step, epochs with their validations, the best model, checkpoints, logs, progress,
/// signals. A loss that is not finite is an exception, which names the update and the remedy. The loss stays on the device until it is
/// requested. A round is the part of a training between two validations. Prints on the terminal, and writes the run.
///
/// Note [The loss of several ranks]
/// The loss is the weighted mean over all rows of a batch. Each rank computes the sum over its own rows and scales it by (number of ranks)
/// / (weight of the batch), which all ranks know. Since gradients are averaged over the ranks, the mean of these losses is that of the
/// batch. Each rank accumulates its own losses, and share_loss() averages the sums; a reading before that is this rank's estimate.
///
/// Note [Checkpoints stand before validations]
/// A checkpoint is written between two updates; at the end of a round, before its validation. A training that resumes from it repeats this
/// validation by its own options: the last epoch of a short training is scored, but as one of many of a longer training it may not be.
/// Hence a training that ended by its number of updates and is resumed with more of them has the log and the model of one that never ended.
///
/// Note [Checkpoints take little time]
/// Without CheckpointOptions::every a checkpoint is written at the end of a round, unless the time since the previous one is less than
/// twenty times its duration. The choice does not affect the results.
///
/// Each rank has a trainer; all do the same, but only rank 0 writes (Note [Ranks decide as one]).
class Trainer {
 public:
  /// Sets the model's precision, makes it data parallel if the run has several ranks, and makes the optimizer. The model and the run have
  /// to outlive the trainer.
  Trainer(nn::Module& model, Task task, TrainerOptions options, Run& run);
  ~Trainer();
  Trainer(const Trainer&) = delete;  // its steps have its address
  Trainer& operator=(const Trainer&) = delete;

  /// Trains to the end, a resumed run from its checkpoint, after which the model has the best weights. On a signal (StopSignals) writes a
  /// checkpoint and throws Stopped. Throws FileError, before the run is changed, for a checkpoint that is damaged or of another model,
  /// Error if it has more updates than the training, NotFinite for a loss that is not finite.
  void run();
  /// Makes the updates of run() once more, up to that number, bit for bit, from the checkpoint or the start: without validations, and
  /// without writing. `before` is called before each, with the number of updates so far. Throws as run() does.
  void replay(std::int64_t update, const std::function<void(std::int64_t updates)>& before);

  std::int64_t updates() const { return update_; }                           ///< number of updates so far
  std::int64_t total_updates() const { return options_.updates; }            ///< number of updates of the whole training
  std::int64_t round() const { return round_; }                              ///< the present round, from 1
  bool is_last_round() const { return update_ >= options_.updates; }         ///< true in the validation after the last update
  std::int64_t epochs() const { return epochs_of(update_); }                 ///< number of epochs that have started
  std::int64_t total_epochs() const { return epochs_of(options_.updates); }  ///< number of epochs of the whole training
  double train_loss() const { return train_loss_; }                          ///< the mean loss over the last round's updates
  double seconds() const;                                                    ///< seconds of all rounds, without the time between them
  double elapsed() const { return seconds_now() - started_; }                ///< seconds of the training, validations included
  double items_per_second() const;                                           ///< tokens or examples for each of seconds()
  Progress progress() const;                                                 ///< for the terminal; its loss is that since the last call

  /// The best model, with its validation and the rounds and updates before that.
  struct Best {
    Validation validation;           ///< its numbers
    std::int64_t round = 0;          ///< rounds before it
    std::int64_t update = 0;         ///< updates before it
    std::vector<NamedTensor> model;  ///< weights on the CPU, f32
  };
  const Best& best() const { return best_; }  ///< so far

  /// Throws Stopped, on all ranks, if a signal has asked any of them to stop: for long validations. A collective.
  void require_no_stop() const;
  /// Returns a loss. Throws NotFinite, which says at which update and what to try, if it is not finite.
  double require_finite(double loss) const;

  io::JsonObject numbers;  ///< numbers of the user's own, which checkpoints keep

 private:
  std::int64_t epochs_of(std::int64_t updates) const { return ceil_div(updates, options_.updates_per_epoch); }
  double lr_factor(std::int64_t update) const;
  UpdateOptions update_options();

  // Of an update. Captured or compiled are update(), accumulate() and apply().
  Step kept(StepFunction part) const;
  Tensor forward(const Tensors& batch) const;
  Tensor share_of_loss(const Tensors& batch_and_share) const;
  Tensor update(const Tensors& batch);
  Tensor accumulate(const Tensors& batch_and_share, bool is_first);
  void apply();
  void finish_update(const Tensor& norm);
  void step();
  Tensor step_parts(const std::vector<BatchPart>& parts);

  /// A reading of the summed loss.
  struct Reading {
    double sum = 0;
    std::int64_t steps = 0;
  };
  double mean_loss_since(Reading& last) const;
  void share_loss();
  [[noreturn]] void fail_not_finite(const std::string& what) const;
  void log();
  void report_programs() const;

  void run_rounds();
  void run_round();
  void validate();
  void agree_on(Validation& validation) const;
  void keep_best(const Validation& validation);
  void report(const Validation& validation);

  /// The trained weights, under the model's names: in full precision, and as they are measured, saved as RUN/model.safetensors and kept.
  std::vector<NamedTensor> weights() const { return nn::named_masters(model_, options_.saves_frozen); }
  std::vector<NamedTensor> served() const { return ema_ ? ema_->averaged(weights()) : weights(); }
  std::vector<NamedTensor> optimizer_state();
  std::vector<NamedTensor> tensors();
  void require_finite_weights(const std::vector<NamedTensor>& weights) const;
  void save_checkpoint();
  io::JsonObject checkpoint_numbers() const;
  void resume();
  void restore(const io::JsonObject& saved);

  nn::Module& model_;
  const Task task_;
  const TrainerOptions options_;
  Run& run_;
  Ranks* const ranks_;  ///< null for a single process
  const Device device_;
  std::unique_ptr<parallel::DataParallel> parallel_;  ///< null for a single process
  std::optional<Ema> ema_;
  std::unique_ptr<Optimizer> optimizer_;
  std::optional<GradScaler> scaler_;  ///< for fp16
  Step whole_step_;
  Step first_step_, next_step_, apply_step_;  ///< for a batch in parts
  Step last_step_;                            ///< with several ranks: the last part, whose gradients are averaged, and the optimizer's step
  std::unique_ptr<StepProfile> profile_;
  ProgressLine line_;

  Tensor loss_sum_;   ///< of this round
  Tensor grad_norm_;  ///< of the last update before clipping; undefined if it is not computed
  Reading logged_;
  mutable Reading shown_;
  std::int64_t update_ = 0, steps_ = 0, items_ = 0;  ///< steps: updates of this round without skipped ones
  std::int64_t finite_update_ = 0;                   ///< the last update whose loss was seen to be finite, as were those before
  double train_loss_ = 0;
  double seconds_ = 0, started_ = 0;
  std::optional<double> round_started_, session_started_;
  std::int64_t session_update_ = 0;  ///< updates before this session

  Best best_;
  std::int64_t round_ = 0;             ///< the current or last round, from 1; 0 before the first
  std::int64_t first_update_ = 0;      ///< updates before this round
  std::int64_t since_best_ = 0;        ///< validations with a rank since the best model
  bool resumes_round_ = false;         ///< the next round to run is the one of the restored checkpoint
  std::optional<std::int64_t> saved_;  ///< updates of the last checkpoint
  double saved_at_ = 0, save_seconds_ = 0;
};

}  // namespace tern::train
