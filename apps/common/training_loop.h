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
  double lr = 0;                                         ///< peak learning rate
  std::function<double(std::int64_t update)> lr_factor;  ///< factor of the peak rate for an update, from 1
  double clip = 0;                                       ///< maximum gradient norm; 0: no clipping
  std::int64_t updates = 0;                              ///< total number of updates
  const char* unit = "tokens";                           ///< unit of a batch's items
  /// Text to append to the message of a training that ends early, such as "; RUN keeps the model of epoch 3", and whether --resume is of
  /// use then, which the text says in that case. May be empty.
  std::function<std::string(bool can_resume)> remains = {};
  /// Called in each update after the optimizer's step, and captured with it; for example, to average the weights.
  std::function<void()> after_step = {};
  /// For a training in several processes; both have to outlive it. A step then gets this rank's part of the batch, and Loss is a sum.
  Ranks* ranks = nullptr;
  parallel::DataParallel* parallel = nullptr;
};

/// A part of an update's batch.
struct BatchPart {
  Tensors batch;
  double weight = 1;   ///< weight in the mean loss, such as the number of targets
  RankPart rank = {};  ///< with several ranks: the rows of `batch`; `weight` is that of all ranks' rows
};

/// Runs the updates of a training, each a captured step, and keeps the numbers for logs and progress. The loss stays on the device until it
/// is requested. A loss that is not finite is an exception, which names the update and the remedy. A request to stop (StopSignals) is
/// Stopped, between two updates.
///
/// Note [The loss of several ranks]
/// The loss is the weighted mean over all rows of a batch. Each rank computes the sum over its own rows and scales it by (number of ranks)
/// / (weight of the batch), which all ranks know. Since gradients are averaged over the ranks, the mean of these losses is that of the
/// batch. Each rank accumulates its own losses, and share_loss() averages the sums; a reading before that is this rank's estimate.
class TrainingLoop {
 public:
  /// The mean loss of a batch, recorded for backward; with several ranks the sum over its rows.
  using Loss = std::function<Tensor(const Tensors& batch)>;
  TrainingLoop(Loss loss, std::unique_ptr<train::Optimizer> optimizer, TrainingOptions options, Device device);
  TrainingLoop(const TrainingLoop&) = delete;  // the captured step has the loop's address
  TrainingLoop& operator=(const TrainingLoop&) = delete;

  /// Starts the clock, which runs until end_epoch(), and resets the mean loss unless the epoch resumes from a checkpoint.
  void begin_epoch(bool is_resumed = false);
  void end_epoch();
  /// Runs one update by a batch of `items` tokens or examples. Throws Stopped, before it, on a request to stop.
  void step(const Tensors& batch, std::int64_t items);
  /// Runs one update with gradient accumulation over parts of a batch. The loss is the mean of the parts by their weights, which are above
  /// 0.
  void step(const std::vector<BatchPart>& parts, std::int64_t items);
  /// Counts an update without a step, for a batch without targets.
  void skip() { ++update_; }

  /// Profiles updates from the next one on. finish_profile() ends the profile if the training ends earlier.
  void profile(StepProfileOptions options) {
    options.optimizer = optimizer_.get();
    profile_ = std::make_unique<StepProfile>(std::move(options));
  }
  void finish_profile() {
    if (profile_) profile_->finish();
  }

  /// Logs some 200 updates of the whole training, a line each: update, loss (mean since the previous line), lr, the gradient norm if
  /// gradients are clipped or scaled, items per second, and the peak of the device's memory. A collective.
  void log(RunView& view);
  /// The progress for the terminal. Its time is that of this session, validations included.
  Progress progress(std::int64_t epoch, std::int64_t epochs, double loss) const;

  std::int64_t updates() const { return update_; }
  std::int64_t total_updates() const { return options_.updates; }
  /// Updates of this epoch without skipped ones.
  std::int64_t steps_in_epoch() const { return steps_; }
  /// Seconds of all epochs, without the time between them.
  double seconds() const;
  double items_per_second() const;

  /// Gathers the masters of a sharded optimizer, before they are read. A collective.
  void gather_masters() { optimizer_->gather_masters(); }
  /// True if parameters are sharded, so that reading them is a collective.
  bool shards_parameters() const { return options_.parallel && options_.parallel->shard() == parallel::Shard::parameters; }
  /// Gathers sharded parameters on all ranks, after the training. A collective.
  void keep_parameters() {
    if (options_.parallel) options_.parallel->keep_parameters();
  }
  /// Averages the sums of the loss over the ranks. A collective.
  void share_loss();
  /// Null for a single process.
  Ranks* ranks() const { return options_.ranks; }
  /// TrainingOptions::remains().
  std::string remains(bool can_resume = true) const { return options_.remains ? options_.remains(can_resume) : ""; }
  /// The mean loss of the epoch so far. Waits for the device.
  double mean_loss() const;
  /// The state of mean_loss_since(), to be reset for each epoch.
  struct Reading {
    double sum = 0;
    std::int64_t steps = 0;
  };
  /// The mean loss since `last`, which it updates. Waits for the device.
  double mean_loss_since(Reading& last) const;
  /// Throws Stopped, on all ranks, if a signal has asked any of them to stop. A collective.
  void require_no_stop() const;
  /// Returns the loss. Throws std::runtime_error, which says at which update and what to try, if it is not finite.
  double require_finite(double loss) const;
  /// Throws as require_finite() does, of weights that are not finite.
  [[noreturn]] void fail_weights() const;

  /// The tensors of its state between two updates, for checkpoints, to be read and written in place. Names begin with "optimizer.",
  /// "scaler." or "loop.", and contain those of the model's parameters. Masters are the model's, and not included. numbers() is the rest of
  /// the state.
  std::vector<NamedTensor> state(const nn::Module& model);
  /// Writes loaded values of state() back if its tensors are copies, as for a sharded optimizer.
  void take_state(const nn::Module& model, const std::vector<NamedTensor>& loaded);
  io::JsonObject numbers() const;
  /// Sets the numbers. Throws FileError for impossible ones.
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
  [[noreturn]] void fail_not_finite(const std::string& what) const;
  void begin_update();

  const Loss loss_;
  const std::unique_ptr<train::Optimizer> optimizer_;
  const TrainingOptions options_;
  const Device device_;
  std::optional<train::GradScaler> scaler_;  ///< for fp16
  CapturedStep captured_update_;
  CapturedStep captured_first_, captured_next_, captured_apply_;  ///< for a batch in parts
  CapturedStep captured_last_;  ///< with several ranks: the last part, whose gradients are averaged, and the optimizer's step
  Tensor loss_sum_;             ///< of this epoch
  Tensor grad_norm_;            ///< of the last update before clipping; undefined if it is not computed
  Reading logged_;
  std::int64_t update_ = 0, steps_ = 0, items_ = 0;
  std::int64_t finite_update_ = 0;  ///< the last update whose loss was seen to be finite, as were those before
  std::optional<double> epoch_started_;
  double seconds_ = 0;
  std::optional<double> session_started_;
  std::int64_t session_update_ = 0;  ///< updates before this session
  std::unique_ptr<StepProfile> profile_;
};

}  // namespace tern::apps
