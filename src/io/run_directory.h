#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/file.h"
#include "io/files.h"
#include "io/json_object.h"
#include "io/safetensors.h"

namespace tern::io {

/// Policy of create() for a directory that is not empty.
enum class Existing : std::uint8_t {
  replace_run,  ///< a run is replaced, and a directory with anything else is refused
  replace_any,  ///< a run is replaced, and files that belong to no run are left alone
};

/// A checkpoint of a run: the state of its training after some updates, from which resume() goes on.
struct CheckpointFile {
  std::int64_t update = 0;  ///< number of updates that the training had made
  std::string path;         ///< checkpoints/update-N.safetensors
};

/// The directory that a training writes: config.json, tokenizer.json, model.safetensors, log.jsonl, events.out.tfevents, curves.svg,
/// trace.json, ops.md, memory.svg, summary.json, and the directory checkpoints. A directory is a run's if its config.json has the key
/// `tern_run`, the version of this layout.
///
/// Note [Replacing a run]
/// A new run is written into the subdirectory .tern-staging, and an earlier run stays valid until the new one has its first whole model.
/// One rename, of .tern-staging to .tern-complete, commits the new run: from there on readers take a file from .tern-complete if it is
/// there, else from the directory itself. Then the files are moved up into the directory. A process may be killed at any point in between:
/// open() finds one whole run, and the next create() or resume() finishes the move. A file that the earlier run alone has, its summary for
/// instance, is removed too: .tern-complete marks it by an empty file NAME.removed. Each step is synced to the disk before the next one.
///
/// Note [Resuming a run]
/// A run that was interrupted before its first model resumes in .tern-staging, if there is a checkpoint. A run that was committed resumes
/// by replacing itself: config.json, the log up to the checkpoint and the model are staged, and committed together. The tokenizer, the
/// checkpoints, the events, the curves and the files of --profile stay where they are.
///
/// Note [Digests of a run]
/// The metadata of model.safetensors have a checksum of that file and one of each file that belongs to it ("tern.crc32:config.json"), which
/// require_whole() compares. Runs of earlier versions, with `tern_run` 1, have none, and are read without.
class RunDirectory {
 public:
  /// Begins a run: makes the directory and its parents if need be, locks it against other writers, removes what killed processes have left,
  /// and stages config.json. Call it before long work, so that a directory that cannot be written is found early. The destructor of a run
  /// without a model and a checkpoint removes what was written, directories included. Throws FileError if the directory holds something
  /// else, if another process writes a run there, or if it cannot be written.
  static RunDirectory create(const std::string& path, const JsonObject& config, Existing existing = Existing::replace_run);
  /// Throws FileError if create() would refuse the directory for its content. Changes nothing.
  static void check(const std::string& path, Existing existing = Existing::replace_run);
  /// Locks a run that has a checkpoint, to go on with its training: restart() and save_model() follow. The run may have lost its
  /// config.json; restart() writes it again. Throws FileError if there is no run with a checkpoint, or if another process writes it.
  static RunDirectory resume(const std::string& path);
  /// The checkpoints of the run that resume() would lock, the oldest first. Throws FileError if there is none.
  static std::vector<CheckpointFile> require_checkpoints(const std::string& path);
  /// Opens a run for reading. Throws FileError unless `path` is a run directory of this or an earlier version.
  static RunDirectory open(const std::string& path);

  ~RunDirectory();
  RunDirectory(RunDirectory&& other) noexcept;  ///< takes over the lock and the removals
  RunDirectory& operator=(RunDirectory&&) = delete;

  const std::string& path() const noexcept { return path_; }  ///< as it was given
  /// The run's options, as JSON. This path and those below change once, when the run is committed: Note [Replacing a run].
  std::string config() const { return file("config.json"); }
  std::string tokenizer() const { return file("tokenizer.json"); }    ///< Hugging Face's format
  std::string model() const { return file("model.safetensors"); }     ///< the last model that save_model() wrote
  std::string log() const { return file("log.jsonl"); }               ///< a JSON object a line, as training goes on
  std::string summary() const { return file("summary.json"); }        ///< results of a run that ended
  std::string events() const { return file("events.out.tfevents"); }  ///< curves for TensorBoard
  std::string curves() const { return file("curves.svg"); }           ///< of loss and scores
  std::string trace() const { return file("trace.json"); }            ///< of --profile: for ui.perfetto.dev
  std::string op_table() const { return file("ops.md"); }             ///< of --profile: time by op
  std::string memory() const { return file("memory.svg"); }           ///< of --profile: memory by category
  std::string checkpoints() const { return file("checkpoints"); }     ///< directory of update-N.safetensors

  /// The content of config(). Throws FileError.
  JsonObject read_config() const;

  /// Writes tokenizer.json, of which models keep the digest. Throws FileError.
  void write_tokenizer(std::string_view json);
  /// Replaces the model, whose metadata get the digests of the run's files; the first one commits a staged run. Throws FileError, as a
  /// DiskError on a full disk; the model before stays then, and a later call may succeed.
  void save_model(std::span<const NamedTensor> tensors, Metadata metadata = {});
  /// Writes checkpoints/update-N.safetensors, with the digests of all files but config.json, which restart() may change. Throws FileError;
  /// older checkpoints stay.
  CheckpointFile save_checkpoint(std::int64_t update, std::span<const NamedTensor> tensors, Metadata metadata);
  /// Removes all checkpoints but the newest `keep` and that of update `also`. Throws FileError.
  void prune_checkpoints(std::size_t keep, std::int64_t also) const;
  /// After resume(): stages this configuration and the first `log_bytes` bytes of the log, whole lines alone. A run that was committed is
  /// staged again until save_model(): Note [Resuming a run]. Throws FileError, and the run stays as it was.
  void restart(const JsonObject& config, std::int64_t log_bytes);
  /// Writes summary.json, which ends a run. Throws FileError, also for a run without a model.
  void write_summary(const JsonObject& summary);

  /// False if the run has lost its config.json.
  bool has_config() const;
  /// True if this run is committed and has a model.
  bool has_model() const;
  /// True for a run in .tern-staging: before its first model, or after restart().
  bool is_staged() const noexcept { return is_staged_; }
  /// True while this run is staged and an earlier model, which stays valid, is there.
  bool keeps_earlier() const;
  /// True if there is a summary. A run without one was interrupted, or is still training.
  bool is_finished() const;
  /// Throws FileError, one line, unless there is a model and the run's files have the digests in it.
  void require_whole() const;
  /// Throws FileError, one line, unless the run's files have the digests in a checkpoint.
  void require_fits(const CheckpointFile& checkpoint) const;

 private:
  explicit RunDirectory(std::string path) : path_(std::move(path)) {}
  std::string file(const std::string& name) const;
  void write(const std::string& name, std::string_view text);
  void write_config(const JsonObject& config);
  void commit();
  void require_whole_now() const;
  void require_digests(const Metadata& metadata, const std::string& source) const;

  std::string path_;
  std::optional<DirectoryLock> lock_;           ///< of a run that is written
  std::map<std::string, std::string> digests_;  ///< of files that belong to the model, by their names
  bool is_staged_ = false;
  bool replaces_itself_ = false;  ///< the staged part resumes a run that was committed: Note [Resuming a run]
};

}  // namespace tern::io
