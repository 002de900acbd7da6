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

/// The run directory of a training, which continues if the disk fails: the first failure to write a line of the log, a model or a
/// checkpoint is reported on stderr, earlier content stays, and later writes try again.
class TrainingRun {
 public:
  /// Creates or, with CheckpointOptions::resume, resumes a run (io::RunDirectory), with `config` as its configuration. `program` is the
  /// prefix of messages. With several ranks the others wait until rank 0 has opened the directory; they read checkpoints, but write
  /// nothing.
  TrainingRun(std::string program, const std::filesystem::path& out, const io::JsonObject& config, const CheckpointOptions& options = {},
              Ranks* ranks = nullptr);

  /// To be called on rank 0 only.
  const io::RunDirectory& directory() const { return *run_; }
  bool is_resumed() const { return head_.has_value(); }
  /// The metadata of a resumed run's checkpoint.
  const CheckpointHead& head() const { return *head_; }
  /// The tokenizer file of a resumed run.
  std::filesystem::path tokenizer() const;
  const CheckpointOptions& checkpoint_options() const { return options_; }

  /// Sets the data of the training and its checksum, for checkpoints. Throws UsageError if a run is resumed with other data.
  void set_data(const std::filesystem::path& path, const std::string& digest);
  void write_tokenizer(const std::string& json) {
    if (run_) run_->write_tokenizer(json);
  }
  void log(const io::JsonObject& line);
  /// Writes the model of an epoch, and syncs the log.
  void save(std::span<const NamedTensor> model, std::int64_t epoch, std::int64_t update);

  /// Writes a checkpoint, syncs the log, and removes old checkpoints: all but the newest ones and that of the best model. False if the disk
  /// failed.
  bool save_checkpoint(std::int64_t update, std::span<const NamedTensor> tensors, io::JsonObject numbers, std::int64_t best_update);
  /// Loads tensors from a resumed run's checkpoint. Throws FileError, before any tensor is changed, if they do not match it.
  void load_checkpoint(std::span<const NamedTensor> tensors) const;
  /// Resumes the run at an update, with the best model of that time, or with the run's model if `best` is empty. Throws FileError, and then
  /// leaves the run as it was.
  void restart(std::span<const NamedTensor> best, std::int64_t epoch, std::int64_t update);

  /// Closes the log and writes the summary. Throws std::runtime_error if the last model could not be written, FileError for the summary.
  void finish(const io::JsonObject& summary);

  /// The text "; RUN keeps the model of epoch 3", or a similar one for the state of the run, behind what --resume goes on from.
  std::string remains(bool can_resume = true) const;

 private:
  void try_log(const std::function<void()>& write) { log_attempt_(write); }
  std::vector<NamedTensor> model_in_place(std::int64_t& epoch, std::int64_t& update) const;

  const std::string program_;
  const std::filesystem::path path_;
  const io::JsonObject config_;
  CheckpointOptions options_;
  std::optional<io::RunDirectory> run_;  ///< none on ranks other than 0
  std::optional<CheckpointHead> head_;
  std::optional<io::JsonLog> log_;  ///< in a resumed run set by restart()
  std::string data_, data_digest_;
  std::filesystem::path checkpoint_;  ///< the last checkpoint
  std::int64_t saved_epoch_ = 0;
  Attempt log_attempt_;
  std::string model_fault_, checkpoint_fault_;  ///< of the last attempt; "" if it succeeded
};

}  // namespace tern::apps
