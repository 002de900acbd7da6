#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "common/program.h"
#include "io/run_directory.h"
#include "nn/nn.h"
#include "ops/loss.h"
#include "text/batching.h"
#include "train/train.h"
#include "translate/translator.h"

namespace tern::translate {

/// Updates a translator's model, epoch by epoch. The loss stays on the device and is read only for a line that is shown
/// or logged. A loss that is not finite ends the training with an exception that names the update and what to change.
class Trainer {
 public:
  /// The translator outlives the trainer. Throws UsageError where no pair has room for a target.
  Trainer(Translator& translator, std::vector<text::Example> train, std::vector<text::Example> valid);

  /// One pass over an epoch's pairs, counted from 0; false when the last update is done.
  bool run_epoch(std::int64_t epoch, io::JsonLog& log, apps::ProgressLine& progress);
  /// The loss of a token on the validation set, without dropout.
  double valid_loss();

  std::int64_t epochs() const { return (total_ + per_epoch_ - 1) / per_epoch_; }
  std::int64_t total_updates() const { return total_; }
  std::int64_t updates() const { return update_; }
  /// The mean over the last epoch's updates.
  double train_loss() const { return train_loss_; }
  double seconds() const { return seconds_; }
  /// Input tokens that are not padding, for each second of training.
  double tokens_per_second() const { return seconds_ > 0 ? static_cast<double>(tokens_seen_) / seconds_ : 0; }
  /// Training pairs that `length` cuts.
  std::size_t cut() const;

 private:
  /// A batch on the device.
  struct DeviceBatch {
    Tensors inputs;           ///< ids, labels and weights (B, T), and how much of each row is source (B)
    std::int64_t tokens = 0;  ///< inputs that are not padding
    double weight = 0;        ///< the sum of the weights
  };

  /// The mean loss since the last time that it was asked for, from the running sum on the device.
  struct Mean {
    double sum = 0;
    std::int64_t count = 0;
    double since(const Tensor& running_sum, std::int64_t now);
  };

  void require_targets(const std::vector<text::Example>& examples, const char* split) const;
  std::vector<std::vector<std::size_t>> epoch_batches(std::int64_t epoch) const;
  std::int64_t columns(const text::Example& example) const;
  DeviceBatch load(const std::vector<text::Example>& examples, const std::vector<std::size_t>& picks) const;
  Tensor loss(const Tensors& inputs, Reduction reduction) const;
  double lr_factor() const;
  Tensor step(const Tensors& inputs);
  double require_finite(double loss) const;

  const Options& options_;
  Translator& translator_;
  nn::DecoderLM& model_;
  const std::vector<text::Example> train_, valid_;
  const text::SequenceOptions tokens_;
  std::optional<train::Adam> optimizer_;
  std::optional<train::GradScaler> scaler_;  ///< in fp16
  train::CapturedStep captured_step_;
  Tensor loss_sum_;
  std::int64_t epoch_ = 0, update_ = 0, per_epoch_ = 0, total_ = 0, log_every_ = 1, tokens_seen_ = 0;
  double train_loss_ = 0, seconds_ = 0;
};

}  // namespace tern::translate
