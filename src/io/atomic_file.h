#pragma once
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "backend/file_descriptor.h"

namespace tern::io {

/// A new content for a file, written piece by piece. Until commit() the old file stays as it is; after commit() the new
/// one is there whole, also after a loss of power. Without a commit nothing is left behind.
class AtomicFile {
 public:
  /// Opens a temporary file beside `path`, in the same directory. Throws FileError, also for a path that is a directory, device or pipe.
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Appends bytes. Throws FileError, as a DiskError on a full disk.
  void write(const void* data, std::size_t bytes);
  /// Appends a text's bytes. Throws as that.
  void write(std::string_view text) { write(text.data(), text.size()); }
  /// Replaces bytes that have been written. Throws FileError.
  void overwrite(std::size_t offset, std::string_view text);
  /// Puts the new content in the old one's place: fsync, rename, fsync of the directory. Throws FileError.
  void commit();

 private:
  [[noreturn]] void fail(const char* what);
  void discard() noexcept;

  std::filesystem::path path_;
  std::string temporary_;
  backend::FileDescriptor descriptor_;
};

/// Replaces the content of `path`, or leaves it as it was. Throws FileError.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

/// Removes temporary files that killed processes have left in a directory, for those targets whose name `is_target` takes. Call it
/// where no other process writes these targets.
void remove_temporaries(const std::filesystem::path& directory, const std::function<bool(const std::string& name)>& is_target);
/// The name of the file that a temporary file of AtomicFile was to become; "" for any other name.
std::string temporary_target(const std::string& name);

/// Names that were made, renamed or removed in a directory last from here on. Throws DiskError.
void sync_directory(const std::filesystem::path& path);

/// The content of a regular file of at most `max_bytes`. Throws FileError.
std::string read_file(const std::filesystem::path& path, std::size_t max_bytes = std::size_t(64) << 20);

/// The result of a system call, made again while a signal interrupts it.
template <class Call>
auto uninterrupted(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

}  // namespace tern::io
