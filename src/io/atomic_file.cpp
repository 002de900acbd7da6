#include "io/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <regex>
#include <utility>
#include <vector>

#include "io/file_error.h"
#include "text/input_file.h"

namespace tern::io {

namespace {

std::filesystem::path directory_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

}  // namespace

void fail_file(const std::string& path, const std::string& what, int error) {
  const std::string message = fmt::format("{}: could not be {}: {}", path, what, std::strerror(error));
  for (const int disk : {ENOSPC, EDQUOT, EFBIG, EIO})
    if (error == disk) throw DiskError(message);
  throw FileError(message);
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path_, ignored)) throw FileError(fmt::format("{}: could not be written: it is a directory", path_));
  // The rename would replace /dev/null by a file, for everyone on the machine.
  if (std::filesystem::is_other(std::filesystem::symlink_status(path_, ignored)))
    throw FileError(fmt::format("{}: could not be written: it is a device or a pipe, and no file to be replaced", path_));
  // A killed process whose pid is used again may have left a file of the same name.
  static std::atomic<unsigned> serial{0};
  const std::string name = std::filesystem::path(path_).filename();
  do {
    temporary_ = directory_of(path_) / fmt::format(".{}.{}.{}.tmp", name, ::getpid(), serial++);
    descriptor_ =
        backend::FileDescriptor(uninterrupted([&] { return ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); }));
  } while (!descriptor_.is_open() && errno == EEXIST);
  if (!descriptor_.is_open()) {
    temporary_.clear();
    fail("created");
  }
}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::discard() noexcept {
  descriptor_.close();
  if (!temporary_.empty()) uninterrupted([&] { return ::unlink(temporary_.c_str()); });
  temporary_.clear();
}

void AtomicFile::fail(const char* what) {
  const int error = errno;
  discard();
  fail_file(path_, what, error);
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = uninterrupted([&] { return ::write(descriptor_.get(), from, bytes); });
    if (written < 0) fail("written");
    from += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

void AtomicFile::overwrite(std::size_t offset, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written =
        uninterrupted([&] { return ::pwrite(descriptor_.get(), text.data(), text.size(), static_cast<off_t>(offset)); });
    if (written < 0) fail("written");
    offset += static_cast<std::size_t>(written);
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

void AtomicFile::commit() {
  // Without the first fsync a loss of power can leave an empty file under the new name; without the last, the old file.
  if (uninterrupted([&] { return ::fsync(descriptor_.get()); }) != 0) fail("written");
  // A close that a signal interrupts has closed all the same, and the bytes are on the disk.
  if (::close(descriptor_.release()) != 0 && errno != EINTR) fail("written");
  if (uninterrupted([&] { return ::rename(temporary_.c_str(), path_.c_str()); }) != 0) fail("replaced");
  temporary_.clear();
  sync_directory(directory_of(path_));
}

void write_file_atomically(const std::string& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content);
  file.commit();
}

std::string temporary_target(const std::string& name) {
  static const std::regex temporary(R"(\.(.+)\.[0-9]+\.[0-9]+\.tmp)");
  std::smatch found;
  return std::regex_match(name, found, temporary) ? found[1].str() : "";
}

void remove_temporaries(const std::string& directory, const std::function<bool(const std::string& name)>& is_target) {
  std::vector<std::filesystem::path> left;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory, ignored))
    if (const std::string target = temporary_target(entry.path().filename().string()); !target.empty() && is_target(target))
      left.push_back(entry.path());
  for (const auto& file : left) std::filesystem::remove(file, ignored);
}

void sync_directory(const std::string& path) {
  const backend::FileDescriptor directory(uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  // Some file systems cannot sync a directory, and a directory without read permission cannot be opened: both are ignored.
  if (!directory.is_open() || uninterrupted([&] { return ::fsync(directory.get()); }) == 0) return;
  if (errno == EIO || errno == ENOSPC || errno == EDQUOT) fail_file(path, "synced", errno);
}

std::string read_file(const std::string& path, std::size_t max_bytes) { return text::read_file(path, max_bytes); }

}  // namespace tern::io
