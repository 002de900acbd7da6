#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/ranks.h"
#include "common/run_view.h"
#include "common/step_profile.h"
#include "nn/module.h"
#include "ops/captured_step.h"
#include "train/train.h"

namespace tern::apps {

struct TrainingOptions {
  train::Precision precision = train::Precision::fp32;
  double lr = 0;                                         ///< the peak rate
  std::function<double(std::int64_t update)> lr_factor;  ///< of the peak rate, for an update counted from 1
  double clip = 0;                                       ///< largest gradient norm; 0: any
  std::int64_t updates = 0;                              ///< in all
  const char* unit = "tokens";                           ///< of a batch's items
  /// Ends the message of a training that ends early, e.g. "; RUN keeps the model of epoch 3". May be empty.
  std::function<std::string()> remains = {};
  /// Called in each update, after the optimizer's step, as a part of what is captured: an average of the weights, for instance.
  std::function<void()> after_step = {};
  /// Of a training in several processes, which both outlive it: what a step gets is this rank's part, and Loss is a sum and no mean.
  Ranks* ranks = nullptr;
  dist::DataParallel* parallel = nullptr;
};

/// A part of an update's batch.
struct BatchPart {
  Tensors batch;
  double weight = 1;   ///< its share of the loss is by this, e.g. its number of targets
  RankPart rank = {};  ///< of several ranks: the rows that `batch` is; `weight` is then that of all rows
};

/// The updates of a training, each a captured step, and the numbers that a program shows and logs of them. The loss stays on the device
/// and is read only when it is asked for. A loss that is not finite is an exception that names the update and what to change. A signal
/// that asks for a stop (StopSignals) is one between two updates.
///
/// Note [The loss of several ranks]
/// The loss is a mean over all rows of a batch, by their weights. A rank has the sum over its own rows, and scales it by the number of
/// ranks over the batch's weight, which each rank knows: gradients are averaged over the ranks, and so the mean of these losses is the
/// batch's. Each rank adds up its own, and share_loss() makes the sums what they are together; a reading in between is this rank's
/// estimate.
class TrainingLoop {
 public:
  /// The mean loss of a batch, recorded for backward; with several ranks the sum over its rows.
  using Loss = std::function<Tensor(const Tensors& batch)>;
  TrainingLoop(Loss loss, std::unique_ptr<train::Optimizer> optimizer, TrainingOptions options, Device device);
  TrainingLoop(const TrainingLoop&) = delete;  // the captured step knows where the loop is
  TrainingLoop& operator=(const TrainingLoop&) = delete;

  /// Means of the loss begin anew, but for an epoch that goes on from a checkpoint, and the clock runs until end_epoch().
  void begin_epoch(bool goes_on = false);
  void end_epoch();
  /// One update by a batch of `items` tokens or examples. Throws Stopped before it, if that is asked for.
  void step(const Tensors& batch, std::int64_t items);
  /// The same by a batch in several parts, one after the other, each with a weight above 0: the loss is the parts' mean by their weights.
  void step(const std::vector<BatchPart>& parts, std::int64_t items);
  /// Counts an update whose batch has nothing to learn from.
  void skip() { ++update_; }

  /// Profiles updates from the next one on. Those that are left when the training is over are not waited for: finish_profile().
  void profile(StepProfileOptions options) {
    options.optimizer = optimizer_.get();
    profile_ = std::make_unique<StepProfile>(std::move(options));
  }
  void finish_profile() {
    if (profile_) profile_->finish();
  }

  /// A collective. In some 200 updates of the whole training a line: update, loss (the mean since the line before), lr, the gradient norm
  /// of the update where it is clipped or scaled, items a second, and the peak of the device's memory.
  void log(RunView& view);
  /// For the terminal. The time is that of this session, with what is between the epochs.
  Progress progress(std::int64_t epoch, std::int64_t epochs, double loss) const;

  std::int64_t updates() const { return update_; }
  std::int64_t total_updates() const { return options_.updates; }
  /// The updates of this epoch that were no skips.
  std::int64_t steps_in_epoch() const { return steps_; }
  /// Of all epochs, without what is between them.
  double seconds() const;
  double items_per_second() const;

  /// Makes the masters whole that a sharded optimizer updates in part: a collective, before they are read.
  void gather_masters() { optimizer_->gather_masters(); }
  /// True where ranks have their part of the parameters alone: what is read of them is a collective.
  bool shards_parameters() const { return options_.parallel && options_.parallel->shard() == dist::Shard::parameters; }
  /// Each rank has all parameters from now on, and trains no more: a collective.
  void keep_parameters() {
    if (options_.parallel) options_.parallel->keep_parameters();
  }
  /// Several ranks have the same sums of the loss afterwards: a collective.
  void share_loss();
  /// Null for a process that is alone.
  Ranks* ranks() const { return options_.ranks; }
  /// The end of the message of a training that ends early.
  std::string remains() const { return options_.remains ? options_.remains() : ""; }
  /// The mean loss of the epoch so far. Waits for the device.
  double mean_loss() const;
  /// A reader's last reading, to be made anew for each epoch.
  struct Reading {
    double sum = 0;
    std::int64_t steps = 0;
  };
  /// The mean loss since that reading, which becomes this one. Waits for the device.
  double mean_loss_since(Reading& last) const;
  /// Throws Stopped if a signal asks for a stop, on all ranks at once: a collective.
  void require_no_stop() const;
  /// The loss itself. Throws std::runtime_error if it is not finite.
  double require_finite(double loss) const;

  /// All of its state between two updates, for checkpoints: tensors that are read and written in place, each named "optimizer.", "scaler."
  /// or "loop.", with the names of the model's parameters, whose masters are the model's; and numbers.
  std::vector<NamedTensor> state(const nn::Module& model);
  /// Takes over what was loaded into state()'s tensors, where these are copies: those of a sharded optimizer.
  void take_state(const nn::Module& model, const std::vector<NamedTensor>& loaded);
  io::JsonObject numbers() const;
  /// Throws FileError for numbers that no training has.
  void restore(const io::JsonObject& numbers);

 private:
  train::UpdateOptions update_options();
  void note_norm(const Tensor& norm);
  Tensor forward(const Tensors& batch) const;
  Tensor update(const Tensors& batch);
  Tensors with_share(Tensors batch, double share) const;
  Tensor share_of_loss(const Tensors& batch_and_share) const;
  Tensor accumulate(const Tensors& batch_and_share, bool is_first);
  void step_of_ranks(const std::vector<BatchPart>& parts, std::int64_t items);
  void apply();
  void after_step();
  void count(const Tensor& loss, std::int64_t items);
  void begin_update();

  const Loss loss_;
  const std::unique_ptr<train::Optimizer> optimizer_;
  const TrainingOptions options_;
  const Device device_;
  std::optional<train::GradScaler> scaler_;  ///< in fp16
  CapturedStep captured_update_;
  CapturedStep captured_first_, captured_next_, captured_apply_;  ///< of a batch in parts
  CapturedStep captured_last_;  ///< of several ranks: the last part, whose gradients meet, with the optimizer's step
  Tensor loss_sum_;             ///< of this epoch
  Tensor grad_norm_;            ///< of the last update, before it was clipped; undefined where no one asks for it
  Reading logged_;
  std::int64_t update_ = 0, steps_ = 0, items_ = 0;
  std::optional<double> epoch_started_;
  double seconds_ = 0;
  std::optional<double> session_started_;
  std::int64_t session_update_ = 0;  ///< updates before this session
  std::unique_ptr<StepProfile> profile_;
};

}  // namespace tern::apps
