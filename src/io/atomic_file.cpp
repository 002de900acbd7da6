#include "io/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "io/file_error.h"
#include "text/input_file.h"

namespace tern::io {

namespace {

std::filesystem::path directory_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

/// Closes a descriptor when the scope ends.
struct Closer {
  int descriptor;
  ~Closer() {
    if (descriptor >= 0) ::close(descriptor);
  }
};

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)) {
  if (std::error_code ignored; std::filesystem::is_directory(path_, ignored))
    throw FileError(fmt::format("{}: could not be written: it is a directory", path_.string()));
  // A process that was killed may have left a file of the same name behind, if its number is used again.
  static std::atomic<unsigned> serial{0};
  do {
    temporary_ = (directory_of(path_) / fmt::format(".{}.{}.{}.tmp", path_.filename().string(), ::getpid(), serial++)).string();
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (descriptor_ < 0 && errno == EEXIST);
  if (descriptor_ < 0) {
    temporary_.clear();
    fail("created");
  }
}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::discard() noexcept {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  temporary_.clear();
}

void AtomicFile::fail(const char* what) {
  const std::string reason = std::strerror(errno);
  discard();
  throw FileError(fmt::format("{}: could not be {}: {}", path_.string(), what, reason));
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(descriptor_, from, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("written");
    from += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

void AtomicFile::commit() {
  // Without the first fsync a loss of power can leave the new name with an empty file; without the last, the old name.
  if (::fsync(descriptor_) != 0) fail("written");
  if (::close(std::exchange(descriptor_, -1)) != 0) fail("written");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("replaced");
  temporary_.clear();
  const Closer directory{::open(directory_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  // Some file systems cannot sync a directory, and one that may not be read cannot be opened: no fault of the file's.
  if (directory.descriptor >= 0 && ::fsync(directory.descriptor) != 0 && errno == EIO) fail("synced");
}

void write_file_atomically(const std::filesystem::path& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content);
  file.commit();
}

std::string read_file(const std::filesystem::path& path, std::size_t max_bytes) { return text::read_file(path, max_bytes); }

}  // namespace tern::io
