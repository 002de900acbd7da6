#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/run_directory.h"
#include "trainer/ranks.h"

namespace tern::io {
class EventFile;
}

namespace tern::train {

/// Options of checkpoints. They do not affect the results of a training.
struct CheckpointOptions {
  bool resume = false;                     ///< continue the run in the directory
  std::optional<std::int64_t> every = {};  ///< updates between checkpoints; 0: one at the end of each epoch
  std::optional<std::int64_t> keep = {};   ///< number of newest checkpoints to keep
};

/// More than the updates of any training.
inline constexpr std::int64_t no_update_limit = std::int64_t{1} << 62;

/// The metadata of a checkpoint: configuration, counts and position in the data. They are read before the file's checksum is verified, so
/// that users of a value have to check it.
struct CheckpointHead {
  io::CheckpointFile file;    ///< the update and the path
  io::JsonObject config;      ///< the run's configuration at that time
  io::JsonObject numbers;     ///< epoch, update and position in the data
  std::string data;           ///< directory of the data; "" if there is none
  std::string data_digest;    ///< checksum of the data
  CheckpointOptions options;  ///< of the run
};

/// Reads the metadata of a run's newest checkpoint, or of the newest one of at most so many updates. Throws FileError if there is none, or
/// if it is another program's.
CheckpointHead last_checkpoint(const std::string& program, const std::string& run, std::int64_t most_updates = no_update_limit);

/// A sentence of a validation set with its translation.
struct Sample {
  std::string source;       ///< the sentence
  std::string translation;  ///< the model's
  std::string reference;    ///< the data set's
};

/// Writes to an optional file of a training, which continues if a write fails. Only the first failure is reported on stderr, as a full disk
/// makes every write fail; later calls try again.
class Attempt {
 public:
  /// `program` is the prefix of the message.
  explicit Attempt(std::string program) : program_(std::move(program)) {}
  /// Calls `write`. False if it threw a FileError.
  bool operator()(const std::function<void()>& write);

 private:
  std::string program_;
  bool has_failed_ = false;
};

/// Files of a training: the run directory (io::RunDirectory) with its log, TensorBoard's events, curves.svg, models and checkpoints. The
/// training continues if the disk fails: the first failure to write a file is reported on stderr, earlier content stays, and later writes
/// try again. With several ranks, rank 0 alone writes; the others read checkpoints.
class Run {
 public:
  /// A run that is shown on the terminal alone. `program` is the prefix of messages, and `remains` the text of remains().
  explicit Run(std::string program, std::function<std::string(bool can_resume)> remains = {});
  /// A run that is shown on the terminal alone, and repeats a training from a checkpoint: Trainer::replay().
  Run(std::string program, CheckpointHead head);
  /// Creates or, with CheckpointOptions::resume, resumes a run in the directory `out`, with `config` as its configuration. With several
  /// ranks the others wait until rank 0 has opened the directory.
  Run(std::string program, const std::string& out, const io::JsonObject& config, const CheckpointOptions& options = {},
      Ranks* ranks = nullptr);
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  bool is_written() const { return !path_.empty(); }                        ///< false for a run on the terminal alone
  bool has_directory() const { return run_.has_value(); }                   ///< true if this process writes it
  const io::RunDirectory& directory() const { return *run_; }               ///< if this process writes it
  bool is_resumed() const { return head_.has_value(); }                     ///< true if there is a checkpoint to go on from
  const CheckpointHead& head() const { return *head_; }                     ///< of a resumed run
  std::string tokenizer() const;                                            ///< the tokenizer file of a resumed run
  const CheckpointOptions& checkpoint_options() const { return options_; }  ///< as given, or as the resumed run had them
  const std::string& program() const { return program_; }                   ///< prefix of messages
  /// The processes of the training; null for a single process.
  Ranks* ranks() const { return ranks_ && !ranks_->is_alone() ? ranks_ : nullptr; }

  /// The name of the log's "loss" in curves.svg, if it is more than the cross entropy.
  void name_loss(std::string name) { loss_name_ = std::move(name); }
  /// Sets the data of the training and its checksum, for checkpoints. Throws Error if a run is resumed with other data.
  void set_data(const std::string& path, const std::string& digest);
  /// Throws FileError unless the resumed checkpoint is large enough for a float32 model of `parameters` parameters with two moments each,
  /// before memory is allocated for the model that a damaged configuration may describe.
  void require_size(std::int64_t parameters) const;
  /// Writes tokenizer.json.
  void write_tokenizer(const std::string& json) {
    if (run_) run_->write_tokenizer(json);
  }
  /// Adds a line with an "update" to the log, and its numbers to the events and the curves.
  void log(const io::JsonObject& line);
  /// Draws curves.svg, and adds some of the samples to the events.
  void draw(std::int64_t update, const std::vector<Sample>& samples);
  /// Writes the model of an epoch, whose tensors are on the CPU and stay as they are, and syncs the log. The training goes on meanwhile:
  /// the next call that writes or tells of models waits for it.
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

  /// The text "; RUN keeps the model of epoch 3", or a similar one for the state of the run, behind what --resume goes on from. For
  /// messages of a training that ends early.
  std::string remains(bool can_resume = true);

 private:
  struct Saving;  // run.cpp's own
  void finish_save();
  void open(std::int64_t update);
  void add_to_curves(const io::JsonObject& line);
  void read_curves(std::int64_t last_update);
  std::string curves() const;
  std::vector<NamedTensor> model_in_place(std::int64_t& epoch, std::int64_t& update) const;

  const std::string program_;
  const std::string path_;
  const io::JsonObject config_;
  CheckpointOptions options_;
  Ranks* const ranks_ = nullptr;
  const std::function<std::string(bool)> remains_;
  std::optional<io::RunDirectory> run_;  ///< none on ranks other than 0
  std::optional<CheckpointHead> head_;
  std::optional<io::JsonLog> log_;  ///< in a resumed run set by restart()
  std::unique_ptr<io::EventFile> events_;
  std::map<std::string, std::map<std::int64_t, double>> curves_;  ///< by the log's key: the latest value at each update
  std::string loss_name_ = "training loss", data_, data_digest_;
  std::string checkpoint_;  ///< the last checkpoint
  std::int64_t saved_epoch_ = 0;
  bool is_open_ = false;
  Attempt try_log_, try_events_, try_curves_;
  std::string model_fault_, checkpoint_fault_;  ///< of the last attempt; "" if it succeeded
  std::unique_ptr<Saving> saving_;              ///< of a model, in a thread of its own
};

}  // namespace tern::train
