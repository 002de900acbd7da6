#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/atomic_file.h"
#include "io/directory_lock.h"
#include "io/file_error.h"
#include "io/json_log.h"
#include "io/json_object.h"
#include "io/safetensors.h"

namespace tern::io {

/// Policy of create() for a directory that is not empty.
enum class Existing : std::uint8_t {
  replace_run,  ///< an earlier run is replaced; anything else is refused
  replace_any,  ///< other people's files are left alone, and ours are written beside them
};

/// A file that a training can go on from.
struct CheckpointFile {
  std::int64_t update = 0;     ///< number of updates that the training had made
  std::filesystem::path path;  ///< checkpoints/update-N.safetensors
};

/// The directory that a training run writes: config.json, tokenizer.json, model.safetensors, log.jsonl, events.out.tfevents, curves.svg,
/// trace.json, ops.md, memory.svg, summary.json, and the directory checkpoints. It is known by its config.json, which carries a `tern_run`
/// key.
///
/// Note [A run takes an earlier one's place]
/// A run is written into the subdirectory .tern-staging, and an earlier one stays as it is until the first model is whole. Then the
/// subdirectory is renamed to .tern-complete, which is the one step that counts: from there on its files are the directory's, before
/// those of the same names beside it. Last they are moved to their places. Whatever ends a process in between, open() finds one whole
/// run, and the next create() ends the move. A file that the earlier run alone has (its summary) goes too: .tern-complete says so by an
/// empty file NAME.removed. Every step is synced before the next one relies on it.
///
/// Note [A run goes on in its place]
/// A run that was cut short before its first model goes on in .tern-staging, if that has a checkpoint. One that has its place goes on as a
/// run that takes the place of its own earlier part: config.json, the log up to the checkpoint and the model are written into
/// .tern-staging, and take their places together; the tokenizer, the checkpoints, the events, the curves and what --profile wrote stay
/// where they are.
///
/// Note [Digests of a run]
/// model.safetensors carries, as metadata, a checksum of itself and one of each file that has to fit it ("tern.crc32:config.json").
/// require_whole() compares them. Runs with `tern_run` 1, of versions before, have none, and are read without.
class RunDirectory {
 public:
  /// Locks the directory against other writers, makes it and its parents if need be, removes what killed processes have left, and writes
  /// config.json beside an earlier run. Call it before long work: it finds out that nothing can be written there. Without a model all is
  /// undone at the end, and directories that it made are removed. Throws FileError if the directory holds something else, if another
  /// process writes a run there, or if it cannot be written.
  static RunDirectory create(const std::filesystem::path& path, const JsonObject& config, Existing existing = Existing::replace_run);
  /// Throws as create() would for a directory that it would refuse by what it holds, and changes nothing.
  static void check(const std::filesystem::path& path, Existing existing = Existing::replace_run);
  /// Locks a run that was cut short, or that is to go on beyond its end; restart() and save_model() follow. Throws FileError if there is no
  /// run with a checkpoint, or if another process writes it.
  static RunDirectory resume(const std::filesystem::path& path);
  /// The checkpoints of the run that resume() would take, the oldest first. Throws FileError if there is none.
  static std::vector<CheckpointFile> require_checkpoints(const std::filesystem::path& path);
  /// An earlier run, to be read. Throws FileError unless `path` is a run directory of this or an earlier version.
  static RunDirectory open(const std::filesystem::path& path);

  ~RunDirectory();
  RunDirectory(RunDirectory&& other) noexcept;  ///< takes over the lock and the removals
  RunDirectory& operator=(RunDirectory&&) = delete;

  const std::filesystem::path& path() const noexcept { return path_; }  ///< as it was given
  /// The run's options, as JSON. This and each place below moves once, when a new run takes an earlier one's place.
  std::filesystem::path config() const { return file("config.json"); }
  std::filesystem::path tokenizer() const { return file("tokenizer.json"); }    ///< Hugging Face's form
  std::filesystem::path model() const { return file("model.safetensors"); }     ///< the last model that save_model() wrote
  std::filesystem::path log() const { return file("log.jsonl"); }               ///< a JSON object a line, as training goes on
  std::filesystem::path summary() const { return file("summary.json"); }        ///< of a run that ended
  std::filesystem::path events() const { return file("events.out.tfevents"); }  ///< curves for TensorBoard
  std::filesystem::path curves() const { return file("curves.svg"); }           ///< of loss and scores
  std::filesystem::path trace() const { return file("trace.json"); }            ///< of --profile: for ui.perfetto.dev
  std::filesystem::path op_table() const { return file("ops.md"); }             ///< likewise, time by op
  std::filesystem::path memory() const { return file("memory.svg"); }           ///< likewise, memory by category
  std::filesystem::path checkpoints() const { return file("checkpoints"); }     ///< directory of update-N.safetensors

  /// The content of config(). Throws FileError.
  JsonObject read_config() const;

  /// A text that the model has to fit. Throws FileError.
  void write_tokenizer(std::string_view json);
  /// Replaces the model, which gets the run's digests beside the metadata given; the first one lets the run take an earlier one's
  /// place. Throws FileError, as a DiskError on a full disk; the model before stays then, and a later call may succeed.
  void save_model(std::span<const NamedTensor> tensors, Metadata metadata = {});
  /// Writes checkpoints/update-N.safetensors, with the digests of files that do not change. Throws FileError; older checkpoints stay.
  CheckpointFile save_checkpoint(std::int64_t update, std::span<const NamedTensor> tensors, Metadata metadata);
  /// Removes all checkpoints but the newest `keep` and that of an update. Throws FileError.
  void prune_checkpoints(std::size_t keep, std::int64_t also) const;
  /// After resume(): the run goes on with this configuration, with the first `log_bytes` bytes of its log. A run that has
  /// its place is then staged, until save_model(); see Note [A run goes on in its place]. Throws FileError, and the run stays as it was.
  void restart(const JsonObject& config, std::int64_t log_bytes);
  /// Ends a run that has its last model. Throws FileError.
  void write_summary(const JsonObject& summary);

  /// True when this run has a model.
  bool has_model() const;
  /// True for a run without a model in its place: a first part, or one that restart() has begun.
  bool is_staged() const noexcept { return is_staged_; }
  /// True while an earlier run with a model is there, and is kept.
  bool keeps_earlier() const;
  /// False for a run without a summary: it was cut short, or goes on.
  bool is_finished() const;
  /// Throws FileError, one line, unless there is a model and the files fit it by their digests.
  void require_whole() const;
  /// Likewise for files that a checkpoint needs beside it.
  void require_fits(const CheckpointFile& checkpoint) const;

 private:
  explicit RunDirectory(std::filesystem::path path) : path_(std::move(path)) {}
  std::filesystem::path file(const std::string& name) const;
  void write(const std::string& name, std::string_view text);
  void write_config(const JsonObject& config);
  void take_place();
  void require_digests(const Metadata& metadata, const std::filesystem::path& of) const;

  std::filesystem::path path_;
  std::optional<DirectoryLock> lock_;           ///< of a run that is written
  std::map<std::string, std::string> digests_;  ///< of files that the model has to fit
  bool is_staged_ = false;
  bool goes_on_ = false;  ///< the staged part is this run's own, which has its place
};

/// Reads and parses a file that holds one JSON object. Throws FileError.
JsonObject read_json(const std::filesystem::path& path);
/// Replaces a file by an object, one key a line. Throws FileError.
void write_json(const std::filesystem::path& path, const JsonObject& object);

}  // namespace tern::io
