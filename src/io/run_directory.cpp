#include "io/run_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "backend/parse.h"
#include "io/files.h"

namespace tern::io {

namespace fs = std::filesystem;

namespace {

/// The key of config.json that makes a directory a run; its number is the layout's version.
constexpr const char* version_key = "tern_run";
constexpr std::int64_t version = 2, first_with_digests = 2;

constexpr const char *staging = ".tern-staging", *complete = ".tern-complete";
const std::string removed = ".removed";
const std::string checkpoint_directory = "checkpoints";
const std::array<std::string, 11> run_files = {"config.json",       "tokenizer.json", "log.jsonl",  "events.out.tfevents", "curves.svg",
                                               "trace.json",        "ops.md",         "memory.svg", "model.safetensors",   "summary.json",
                                               checkpoint_directory};

constexpr std::size_t max_tokenizer_bytes = std::size_t(256) << 20, max_log_bytes = std::size_t(4) << 30;

std::string digest_key(const std::string& name) { return fmt::format("{}:{}", checksum_key, name); }

[[noreturn]] void refuse(const fs::path& path, const std::string& reason) { throw FileError(fmt::format("{}: {}", path.string(), reason)); }

/// Directories of a run that is being written, and of one that is committed: Note [Replacing a run].
fs::path staged(const fs::path& run) { return run / staging; }
fs::path committed(const fs::path& run) { return run / complete; }

void require_name(const fs::path& path) {
  if (path.empty()) throw FileError("expected a run directory's path but got an empty one");
}

/// Throws FileError if the file system cannot tell: a file that is wrongly taken for missing would be replaced.
bool is_there(const fs::path& path) {
  struct stat status;
  if (uninterrupted([&] { return ::stat(path.c_str(), &status); }) == 0) return true;
  if (errno != ENOENT && errno != ENOTDIR) fail_file(path, "read", errno);
  return false;
}

bool is_run_file(const std::string& name) { return std::find(run_files.begin(), run_files.end(), name) != run_files.end(); }

/// True for a directory whose config.json has the key of a run. One with a damaged config.json is not replaced.
bool holds_run(const fs::path& path) {
  try {
    return read_json(path / "config.json").contains(version_key);
  } catch (const FileError&) {
    return false;
  }
}

/// True for a directory with a run, also while another process moves it: config.json moves once, up, so a third look finds it.
bool holds_moving_run(const fs::path& path) { return holds_run(path) || holds_run(committed(path)) || holds_run(path); }

/// True for the name of a file that only a killed process can have left behind.
bool is_leftover(const std::string& name) { return name == staging || is_run_file(temporary_target(name)); }

void rename_file(const fs::path& from, const fs::path& to) {
  if (uninterrupted([&] { return ::rename(from.c_str(), to.c_str()); }) != 0) fail_file(to, "replaced", errno);
}

void remove_file(const fs::path& path) {
  if (uninterrupted([&] { return ::unlink(path.c_str()); }) != 0 && errno != ENOENT) fail_file(path, "removed", errno);
}

/// Removes a file, or a directory with all that it holds, if it is there.
void remove_tree(const fs::path& path) {
  std::error_code error = std::make_error_code(std::errc::interrupted);
  while (error == std::errc::interrupted) fs::remove_all(path, error);
  if (error) fail_file(path, "removed", error.value());
}

void make_directory(const fs::path& path) {
  if (uninterrupted([&] { return ::mkdir(path.c_str(), 0777); }) != 0 && errno != EEXIST) fail_file(path, "made", errno);
}

/// 12 for "update-00000012.safetensors"; -1 for a name that is no checkpoint's.
std::int64_t update_of(const std::string& name) {
  static const std::string begin = "update-", end = ".safetensors";
  if (!name.starts_with(begin) || !name.ends_with(end) || name.size() <= begin.size() + end.size()) return -1;
  const std::string_view number = std::string_view(name).substr(begin.size(), name.size() - begin.size() - end.size());
  return std::max<std::int64_t>(backend::parse_number<std::int64_t>(number).value_or(-1), -1);
}

/// The checkpoints in a directory, the oldest first; none if it is missing.
std::vector<CheckpointFile> list_checkpoints(const fs::path& directory) {
  std::vector<CheckpointFile> result;
  if (!is_there(directory)) return result;
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error))
    if (const std::int64_t update = update_of(at->path().filename().string()); update >= 0) result.push_back({update, at->path()});
  if (error) refuse(directory, "could not be read: " + error.message());
  std::sort(result.begin(), result.end(), [](const auto& a, const auto& b) { return a.update < b.update; });
  return result;
}

bool has_staged_checkpoint(const fs::path& path) { return !list_checkpoints(staged(path) / checkpoint_directory).empty(); }

/// True for the files that stay where they are when a committed run resumes.
bool is_kept_on_resume(const std::string& name) {
  return name == checkpoint_directory || name == "tokenizer.json" || name == "events.out.tfevents" || name == "curves.svg" ||
         name == "trace.json" || name == "ops.md" || name == "memory.svg";
}

/// The result of `read`, which looks again if it fails: another process may have moved a file that it was about to open. A commit has one
/// move of the directory and one of each file.
template <typename Read>
auto read_moving(const Read& read) {
  for (std::size_t moves = 0;; ++moves) {
    try {
      return read();
    } catch (const FileError&) {
      if (moves > run_files.size()) throw;
      std::this_thread::sleep_for(std::chrono::milliseconds(moves));
    }
  }
}

/// The commit of Note [Replacing a run]. `replaces_itself`: Note [Resuming a run].
void commit_staged(const fs::path& path, bool replaces_itself) {
  const fs::path from = staged(path);
  for (const std::string& name : run_files) {
    if (!(replaces_itself && is_kept_on_resume(name)) && !is_there(from / name) && is_there(path / name))
      write_file_atomically(from / (name + removed), "");
  }
  sync_directory(from);
  rename_file(from, committed(path));
}

/// Moves the files of a committed run up into the directory. Interrupted at any point, it can be called again.
void move_into_place(const fs::path& path) {
  const fs::path from = committed(path);
  sync_directory(path);
  bool has_moved = false;
  for (const std::string& name : run_files) {
    if (is_there(from / name)) {
      if (name == checkpoint_directory) remove_tree(path / name);  // the earlier run's, for this one's have not moved
      rename_file(from / name, path / name);
    } else if (is_there(from / (name + removed))) {
      remove_tree(path / name);
    } else {
      continue;
    }
    has_moved = true;
  }
  if (has_moved) {
    sync_directory(path);
    sync_directory(from);
  }
  remove_tree(from);
  sync_directory(path);
}

}  // namespace

void RunDirectory::check(const std::string& path, Existing existing) {
  require_name(path);
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) return;
  if (error && status.type() == fs::file_type::none) refuse(path, "could not be read: " + error.message());
  if (status.type() != fs::file_type::directory) refuse(path, "is not a directory");
  bool has_others = false;
  for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error))
    has_others = has_others || !is_leftover(at->path().filename().string());
  if (error) refuse(path, "could not be read: " + error.message());
  if (has_others && existing == Existing::replace_run && !holds_moving_run(path))
    refuse(path, "holds files that are not an earlier run: name a new or empty directory");
}

RunDirectory RunDirectory::create(const std::string& path, const JsonObject& config, Existing existing) {
  check(path, existing);
  RunDirectory run(path);
  run.lock_.emplace(path);
  check(path, existing);  // nobody else writes there any more
  if (is_there(committed(path))) move_into_place(path);
  std::error_code error;
  fs::remove_all(staged(path), error);
  if (error) refuse(staged(path), "could not be removed: " + error.message());
  remove_temporaries(path, is_run_file);

  if (uninterrupted([&] { return ::mkdir(staged(path).c_str(), 0777); }) != 0) fail_file(path, "written", errno);
  run.is_staged_ = true;
  run.write_config(config);
  return run;
}

void RunDirectory::write_config(const JsonObject& config) {
  JsonObject marked;
  marked.set(version_key, version);
  marked.update(config);
  write("config.json", marked.pretty());
}

std::vector<CheckpointFile> RunDirectory::require_checkpoints(const std::string& path) {
  require_name(path);
  if (!is_there(path)) refuse(path, "there is no such run directory");
  std::vector<CheckpointFile> found = list_checkpoints(staged(path) / checkpoint_directory);
  for (int look = 0; look < 2 && found.empty(); ++look) found = list_checkpoints(RunDirectory(path).file(checkpoint_directory));
  if (found.empty()) refuse(path, "holds no checkpoint to go on from: start the training without --resume");
  return found;
}

RunDirectory RunDirectory::resume(const std::string& path) {
  require_checkpoints(path);  // before the lock, which would make the directory
  RunDirectory run(path);
  run.lock_.emplace(path);
  if (is_there(committed(path))) move_into_place(path);
  require_checkpoints(path);  // nobody else writes there any more
  run.is_staged_ = has_staged_checkpoint(path);
  if (!run.is_staged_) {
    // A directory with another program's config.json, or with its checkpoints and no config.json, is not ours.
    if (run.has_config()) open(path);
    else if (const fs::path newest = require_checkpoints(path).back().path; !load_safetensors_metadata(newest).contains(checksum_key))
      refuse(run.config(), fmt::format("is missing, and {} is no checkpoint of a run", newest.filename().string()));
    remove_tree(staged(path));
  }
  const fs::path root = run.is_staged_ ? staged(path) : fs::path(path);
  remove_temporaries(root, is_run_file);
  remove_temporaries(root / checkpoint_directory, [](const std::string& name) { return update_of(name) >= 0; });
  if (is_there(run.tokenizer())) run.digests_["tokenizer.json"] = checksum(read_file(run.tokenizer(), max_tokenizer_bytes));
  return run;
}

void RunDirectory::restart(const JsonObject& config, std::int64_t log_bytes) {
  std::string lines = is_there(log()) ? read_file(log(), max_log_bytes) : "";
  lines.resize(std::min(lines.size(), static_cast<std::size_t>(std::max<std::int64_t>(log_bytes, 0))));
  lines.resize(lines.rfind('\n') + 1);  // empty if there is no whole line
  if (!is_staged_) {
    make_directory(staged(path_));
    is_staged_ = replaces_itself_ = true;
  }
  write_config(config);
  write_file_atomically(staged(path_) / "log.jsonl", lines);
}

RunDirectory RunDirectory::open(const std::string& path) {
  require_name(path);
  std::error_code ignored;
  if (!is_there(path)) refuse(path, "there is no such run directory");
  if (!fs::is_directory(path, ignored)) refuse(path, "is not a directory");
  RunDirectory run(path);
  const JsonObject config = read_moving([&] {
    if (!is_there(run.config()) && is_there(staged(path))) refuse(path, "holds no model yet: its first training goes on, or was cut short");
    return run.read_config();
  });
  if (!config.contains(version_key)) refuse(run.config(), fmt::format("is not a run's: it lacks the key \"{}\"", version_key));
  if (config.get_int(version_key) > version)
    refuse(run.config(), fmt::format("\"{}\" is {}: the run is of a later version, this one knows up to {}", version_key,
                                     config.get_int(version_key), version));
  return run;
}

RunDirectory::~RunDirectory() {
  if (!is_staged_) return;
  try {
    if (replaces_itself_ || !has_staged_checkpoint(path_)) remove_tree(staged(path_));
  } catch (const FileError&) {  // the next run removes it
  }
}

RunDirectory::RunDirectory(RunDirectory&& other) noexcept
    : path_(std::move(other.path_)),
      lock_(std::move(other.lock_)),
      digests_(std::move(other.digests_)),
      is_staged_(std::exchange(other.is_staged_, false)),
      replaces_itself_(other.replaces_itself_) {}

std::string RunDirectory::file(const std::string& name) const {
  if (is_staged_ && !(replaces_itself_ && is_kept_on_resume(name))) return staged(path_) / name;
  const fs::path moving = committed(path_) / name;
  return is_there(moving) || is_there(committed(path_) / (name + removed)) ? moving : fs::path(path_) / name;
}

void RunDirectory::write(const std::string& name, std::string_view text) {
  write_file_atomically(file(name), text);
  digests_[name] = checksum(text);
}

JsonObject RunDirectory::read_config() const { return read_json(config()); }

void RunDirectory::write_tokenizer(std::string_view json) { write("tokenizer.json", json); }

void RunDirectory::save_model(std::span<const NamedTensor> tensors, Metadata metadata) {
  if (!is_staged_) commit();
  metadata[checksum_key] = "";
  for (const auto& [name, digest] : digests_) metadata[digest_key(name)] = digest;
  save_safetensors(model(), tensors, metadata);
  if (is_staged_) commit();
}

CheckpointFile RunDirectory::save_checkpoint(std::int64_t update, std::span<const NamedTensor> tensors, Metadata metadata) {
  if (!is_staged_) commit();
  make_directory(checkpoints());
  sync_directory(fs::path(checkpoints()).parent_path());
  metadata[checksum_key] = "";
  for (const auto& [name, digest] : digests_)
    if (name != "config.json") metadata[digest_key(name)] = digest;
  const CheckpointFile file{update, fs::path(checkpoints()) / fmt::format("update-{:08}.safetensors", update)};
  save_safetensors(file.path, tensors, metadata);
  return file;
}

void RunDirectory::prune_checkpoints(std::size_t keep, std::int64_t also) const {
  const std::vector<CheckpointFile> found = list_checkpoints(checkpoints());
  for (std::size_t i = 0; i + keep < found.size(); ++i)
    if (found[i].update != also) remove_file(found[i].path);
}

/// Commits a staged run, and moves its files into the directory; finishes an earlier call that has failed.
void RunDirectory::commit() {
  if (is_staged_) commit_staged(path_, replaces_itself_);
  is_staged_ = replaces_itself_ = false;
  if (is_there(committed(path_))) move_into_place(path_);
}

void RunDirectory::write_summary(const JsonObject& object) {
  if (is_staged_) refuse(path_, "a run without a model has no summary");
  commit();
  write_json(summary(), object);
}

bool RunDirectory::has_config() const { return is_there(config()); }
bool RunDirectory::has_model() const { return !is_staged_ && is_there(model()); }
bool RunDirectory::keeps_earlier() const { return is_staged_ && is_there(fs::path(path_) / "model.safetensors"); }
bool RunDirectory::is_finished() const { return is_there(summary()); }

void RunDirectory::require_whole() const {
  read_moving([this] { require_whole_now(); });
}

void RunDirectory::require_whole_now() const {
  if (!is_there(model())) refuse(path_, "holds no model: its training was cut short before the first one, or the file was removed");
  const Metadata metadata = load_safetensors_metadata(model());
  if (!metadata.contains(checksum_key) && read_config().get_int(version_key) >= first_with_digests)
    refuse(model(), fmt::format("is not the model of {}: it lacks the digests of its run", fs::path(config()).filename().string()));
  require_digests(metadata, model());
}

void RunDirectory::require_fits(const CheckpointFile& checkpoint) const {
  require_digests(load_safetensors_metadata(checkpoint.path), checkpoint.path);
}

void RunDirectory::require_digests(const Metadata& metadata, const std::string& source) const {
  for (const std::string& name : run_files) {
    const auto digest = metadata.find(digest_key(name));
    if (digest == metadata.end()) continue;
    if (!is_there(file(name))) refuse(file(name), fmt::format("is missing: {} was written with one", fs::path(source).filename().string()));
    if (checksum(read_file(file(name), max_tokenizer_bytes)) != digest->second)
      refuse(file(name), fmt::format("is not the one that {} was written with: it was changed, or is another run's",
                                     fs::path(source).filename().string()));
  }
}

}  // namespace tern::io
