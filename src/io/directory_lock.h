#pragma once
#include <string>
#include <vector>

#include "backend/file_descriptor.h"

namespace tern::io {

/// A directory that one process at a time writes: made if need be, and locked while this object lives. The lock is an flock on the
/// directory itself, which ends with the process however that ends, and leaves no file. On a file system without such locks, as some
/// network file systems are, the directory is written without one.
class DirectoryLock {
 public:
  /// Throws FileError if another process holds the lock, or if the directory cannot be made; parents that were made are then removed.
  explicit DirectoryLock(std::string path);
  /// Unlocks, and removes the directories that the constructor made if they are still empty.
  ~DirectoryLock();
  DirectoryLock(DirectoryLock&& other) noexcept;  ///< takes over the lock
  DirectoryLock& operator=(DirectoryLock&&) = delete;

  const std::string& path() const noexcept { return path_; }  ///< of the directory

 private:
  void make();
  bool lock();
  void release() noexcept;

  std::string path_;
  std::vector<std::string> made_;  ///< directories that the constructor made, the outermost first
  backend::FileDescriptor descriptor_;
};

}  // namespace tern::io
