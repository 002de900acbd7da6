#pragma once
#include <cerrno>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "backend/file_descriptor.h"

namespace tern::io {

/// A file that is replaced as a whole: the new content is written piece by piece into a temporary file, which commit() renames. Until then
/// the old file stays as it is; afterwards the new one survives a loss of power. Without a commit nothing is left behind.
class AtomicFile {
 public:
  /// Opens a temporary file beside `path`, in the same directory. Throws FileError, also for a path that is a directory, device or pipe.
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Appends bytes. Throws FileError, as a DiskError on a full disk.
  void write(const void* data, std::size_t bytes);
  /// Appends a text's bytes. Throws FileError likewise.
  void write(std::string_view text) { write(text.data(), text.size()); }
  /// Replaces bytes that have been written, from `offset` on. Throws FileError.
  void overwrite(std::size_t offset, std::string_view text);
  /// Replaces the old file by the new one: fsync, rename, fsync of the directory. Throws FileError.
  void commit();

 private:
  [[noreturn]] void fail(const char* what);
  void discard() noexcept;

  std::string path_;
  std::string temporary_;
  backend::FileDescriptor descriptor_;
};

/// Replaces the content of the file at `path` as a whole. Throws FileError, and the file stays as it was.
void write_file_atomically(const std::string& path, std::string_view content);

/// Removes the temporary files of AtomicFile that killed processes have left in a directory, if is_target(name) holds for the file that
/// each was to become. No other process may be writing these files.
void remove_temporaries(const std::string& directory, const std::function<bool(const std::string& name)>& is_target);
/// The name of the file that a temporary file of AtomicFile was to become; "" for any other name.
std::string temporary_target(const std::string& name);

/// Syncs a directory: entries that were made, renamed or removed survive a loss of power from here on. Throws DiskError.
void sync_directory(const std::string& path);

/// The content of a regular file of at most `max_bytes`. Throws FileError.
std::string read_file(const std::string& path, std::size_t max_bytes = std::size_t(64) << 20);

/// The result of a system call that is repeated while a signal interrupts it (EINTR).
template <class Call>
auto uninterrupted(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

}  // namespace tern::io
