#include "io/run_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

namespace tern::io {

namespace fs = std::filesystem;

namespace {

/// The key that marks a config.json as ours; its number is the layout's version.
constexpr const char* marker = "tern_run";

[[noreturn]] void refuse(const fs::path& path, const std::string& reason) { throw FileError(fmt::format("{}: {}", path.string(), reason)); }

/// True for a directory whose config.json carries the marker. A damaged config.json is not ours to remove.
bool holds_run(const fs::path& path) {
  try {
    return read_json(path / "config.json").contains(marker);
  } catch (const FileError&) {
    return false;
  }
}

/// Makes a directory and its parents, and removes those that it made unless it is told to keep them.
class NewDirectories {
 public:
  explicit NewDirectories(const fs::path& path) {
    std::vector<fs::path> missing;
    std::error_code ignored;
    for (fs::path at = fs::absolute(path).lexically_normal(); !at.empty() && !fs::exists(at, ignored); at = at.parent_path())
      missing.push_back(at);
    for (; !missing.empty(); missing.pop_back()) {
      std::error_code error;
      // A path that ends in a slash stands twice in the list.
      if (fs::create_directory(missing.back(), error)) made_.push_back(missing.back());
      if (error) {
        undo();
        refuse(path, "the directory could not be made: " + error.message());
      }
    }
  }
  ~NewDirectories() { undo(); }
  NewDirectories(const NewDirectories&) = delete;
  NewDirectories& operator=(const NewDirectories&) = delete;
  void keep() noexcept { made_.clear(); }

 private:
  void undo() noexcept {
    std::error_code ignored;
    for (; !made_.empty(); made_.pop_back()) fs::remove(made_.back(), ignored);
  }
  std::vector<fs::path> made_;
};

}  // namespace

void RunDirectory::check(const fs::path& path, Existing existing) {
  if (path.empty()) throw FileError("expected a run directory's path but got an empty one");
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) return;
  if (error && status.type() == fs::file_type::none) refuse(path, "could not be read: " + error.message());
  if (status.type() != fs::file_type::directory) refuse(path, "is not a directory");
  const bool empty = fs::is_empty(path, error);
  if (error) refuse(path, "could not be read: " + error.message());
  if (!empty && existing == Existing::replace_run && !holds_run(path))
    refuse(path, "holds files that are not an earlier run: name a new or empty directory");
}

RunDirectory RunDirectory::create(const fs::path& path, const JsonObject& config, Existing existing) {
  check(path, existing);
  NewDirectories made(path);
  RunDirectory run(path);
  // config.json goes last and comes first: whatever happens in between, a directory with one of our files is known as a
  // run, and no model stands beside a configuration that is not its own.
  for (const fs::path& file : {run.summary(), run.log(), run.model(), run.tokenizer()}) {
    std::error_code error;
    fs::remove(file, error);
    if (error) refuse(file, "could not be removed: " + error.message());
  }
  JsonObject marked;
  marked.set(marker, 1);
  marked.update(config);
  write_json(run.config(), marked);
  made.keep();
  return run;
}

RunDirectory RunDirectory::open(const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) refuse(path, "there is no such run directory");
  if (!fs::is_directory(path, ignored)) refuse(path, "is not a directory");
  RunDirectory run(path);
  if (!run.read_config().contains(marker)) refuse(run.config(), fmt::format("is not a run's: it lacks the key \"{}\"", marker));
  return run;
}

JsonObject RunDirectory::read_config() const { return read_json(config()); }
void RunDirectory::write_summary(const JsonObject& object) const { write_json(summary(), object); }

JsonObject read_json(const fs::path& path) {
  constexpr std::size_t max_bytes = std::size_t(16) << 20;
  return JsonObject::parse(read_file(path, max_bytes), path.string());
}

void write_json(const fs::path& path, const JsonObject& object) { write_file_atomically(path, object.pretty()); }

JsonLog::JsonLog(fs::path path) : path_(std::move(path)) {
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (descriptor_ < 0) refuse(path_, fmt::format("could not be opened: {}", std::strerror(errno)));
}

JsonLog::~JsonLog() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

JsonLog::JsonLog(JsonLog&& other) noexcept : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

void JsonLog::write(const JsonObject& object) {
  const std::string line = object.dump() + "\n";
  std::size_t done = 0;
  while (done < line.size()) {
    const ssize_t written = ::write(descriptor_, line.data() + done, line.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) refuse(path_, fmt::format("could not be written: {}", std::strerror(errno)));
    done += static_cast<std::size_t>(written);
  }
}

}  // namespace tern::io
