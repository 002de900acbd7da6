#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "io/atomic_file.h"
#include "io/file_error.h"
#include "io/run_directory.h"

namespace tern::io {

namespace fs = std::filesystem;

DirectoryLock::DirectoryLock(std::string path) : path_(std::move(path)) {
  try {
    // Another process that ends its run may remove the directory, or a parent, between any two calls here.
    for (int attempt = 1;; ++attempt) {
      make();
      if (lock()) return;
      if (attempt == 100) fail_file(path_, "opened", ENOENT);  // a dangling symbolic link
      release();
    }
  } catch (...) {
    release();
    throw;
  }
}

DirectoryLock::~DirectoryLock() { release(); }

DirectoryLock::DirectoryLock(DirectoryLock&& other) noexcept
    : path_(std::move(other.path_)), made_(std::exchange(other.made_, {})), descriptor_(std::move(other.descriptor_)) {}

void DirectoryLock::make() {
  std::vector<fs::path> missing;
  std::error_code ignored;
  for (fs::path at = fs::absolute(path_).lexically_normal(); !at.empty() && !fs::exists(at, ignored); at = at.parent_path())
    missing.push_back(at);
  for (; !missing.empty(); missing.pop_back()) {
    const fs::path& directory = missing.back();
    // A path that ends in a slash stands twice in the list.
    if (uninterrupted([&] { return ::mkdir(directory.c_str(), 0777); }) == 0) {
      made_.push_back(directory);
      sync_directory(directory.parent_path());
    } else if (errno == ENOENT && !made_.empty()) {
      return;  // a parent was removed: lock() will fail, and the constructor tries again
    } else if (errno != EEXIST) {
      const int error = errno;
      release();
      const std::string reason = std::error_code(error, std::generic_category()).message();
      const std::string message = fmt::format("{}: the directory could not be made: {}", path_, reason);
      if (error == ENOSPC || error == EDQUOT || error == EIO) throw DiskError(message);
      throw FileError(message);
    }
  }
}

/// Opens and locks the directory; false if another process has removed it meanwhile.
bool DirectoryLock::lock() {
  descriptor_ = backend::FileDescriptor(uninterrupted([&] { return ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (!descriptor_.is_open() && errno == ENOENT) return false;
  if (!descriptor_.is_open()) fail_file(path_, "opened", errno);
  if (uninterrupted([&] { return ::flock(descriptor_.get(), LOCK_EX | LOCK_NB); }) != 0) {
    if (errno == EWOULDBLOCK)
      throw FileError(fmt::format("{}: another process writes a run there: wait until it ends, or name another directory", path_));
    return true;  // no locks on this file system
  }
  struct stat locked, named;
  return ::fstat(descriptor_.get(), &locked) == 0 && ::stat(path_.c_str(), &named) == 0 && locked.st_dev == named.st_dev &&
         locked.st_ino == named.st_ino;
}

void DirectoryLock::release() noexcept {
  for (; !made_.empty() && ::rmdir(made_.back().c_str()) == 0; made_.pop_back()) continue;
  made_.clear();
  descriptor_.close();
}

}  // namespace tern::io
