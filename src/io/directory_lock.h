#pragma once
#include <filesystem>
#include <vector>

#include "backend/file_descriptor.h"

namespace tern::io {

/// A directory that one process at a time writes: made if need be, and locked while this lives. The lock is the system's (flock on the
/// directory itself), so that it ends with its process however that ends, and leaves no file. A file system without such locks, as some
/// network ones are, is written without.
class DirectoryLock {
 public:
  /// Throws FileError if another process has the directory, or if it cannot be made; directories made on the way are then removed.
  explicit DirectoryLock(std::filesystem::path path);
  /// Unlocks, and removes those directories that it made and that hold nothing.
  ~DirectoryLock();
  DirectoryLock(DirectoryLock&& other) noexcept;  ///< takes the lock over
  DirectoryLock& operator=(DirectoryLock&&) = delete;

  const std::filesystem::path& path() const noexcept { return path_; }  ///< of the directory

 private:
  void make();
  bool lock();
  void release() noexcept;

  std::filesystem::path path_;
  std::vector<std::filesystem::path> made_;  ///< from the top
  backend::FileDescriptor descriptor_;
};

}  // namespace tern::io
