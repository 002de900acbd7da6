#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/attempt.h"
#include "common/checkpoint.h"
#include "common/ranks.h"
#include "io/run_directory.h"
#include "nn/module.h"

namespace tern::apps {

/// The run directory of a training that goes on though its disk may fail: a line of the log, a model or a checkpoint that cannot be written
/// is said once on stderr, what was written before stays, and the next time it is tried again.
class TrainingRun {
 public:
  /// As io::RunDirectory::create(), or resume() where the options say so; `program` begins the messages. `config` is the run's from here
  /// on. Of several ranks the others come when rank 0 has made or opened the directory: they read a checkpoint, and write nothing.
  TrainingRun(std::string program, const std::filesystem::path& out, const io::JsonObject& config, const CheckpointOptions& options = {},
              Ranks* ranks = nullptr);

  /// Of rank 0.
  const io::RunDirectory& directory() const { return *run_; }
  bool is_resumed() const { return head_.has_value(); }
  /// Of the checkpoint that a run is resumed from.
  const CheckpointHead& head() const { return *head_; }
  /// The tokenizer of a run that is resumed.
  std::filesystem::path tokenizer() const;
  const CheckpointOptions& checkpoint_options() const { return options_; }

  /// The data of the training and its checksum, for checkpoints. Throws UsageError where a run is resumed with other data.
  void set_data(const std::filesystem::path& path, const std::string& digest);
  void write_tokenizer(const std::string& json) {
    if (run_) run_->write_tokenizer(json);
  }
  void log(const io::JsonObject& line);
  /// Writes the model of an epoch, with the log up to there.
  void save(std::span<const NamedTensor> model, std::int64_t epoch, std::int64_t update);

  /// Writes a checkpoint, with the log up to there, and removes those that are not to be kept: all but the newest ones and that of the best
  /// model. False where the disk has failed.
  bool save_checkpoint(std::int64_t update, std::span<const NamedTensor> tensors, io::JsonObject numbers, std::int64_t best_update);
  /// Fills the tensors from the checkpoint that a run is resumed from. Throws FileError, before one has changed, if they do not fit.
  void load_checkpoint(std::span<const NamedTensor> tensors) const;
  /// The run goes on from there, with the best model of then, or else with the one that it has. Throws FileError, and the run is as it was.
  void restart(std::span<const NamedTensor> best, std::int64_t epoch, std::int64_t update);

  /// Writes the log to its end, and the summary. Throws std::runtime_error if the last model could not be written, FileError for the
  /// summary.
  void finish(const io::JsonObject& summary);

  /// "; RUN keeps the model of epoch 3", or what else a training that ends now leaves there.
  std::string remains() const;

 private:
  void try_log(const std::function<void()>& write) { log_attempt_(write); }
  std::vector<NamedTensor> model_in_place(std::int64_t& epoch, std::int64_t& update) const;

  const std::string program_;
  const std::filesystem::path path_;
  const io::JsonObject config_;
  CheckpointOptions options_;
  std::optional<io::RunDirectory> run_;  ///< none for a rank that writes nothing
  std::optional<CheckpointHead> head_;
  std::optional<io::JsonLog> log_;  ///< of a resumed run: after restart()
  std::string data_, data_digest_;
  std::filesystem::path checkpoint_;  ///< the last one
  std::int64_t saved_epoch_ = 0;
  Attempt log_attempt_;
  std::string model_fault_, checkpoint_fault_;  ///< of the last attempt; "" where it went well
};

}  // namespace tern::apps
