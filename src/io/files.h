#pragma once
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "backend/file.h"
#include "text/data_error.h"

/// Files that survive: replaced as a whole, or grown by whole records; a directory that one process writes; checksums of what is in them.
namespace tern::io {

/// A fault in a file or directory that the user named: missing, corrupt, hostile, or not writable. The message is one line that begins
/// with the path; a program prints it and exits with code 2. Readers of text and of tensors throw the same type.
using FileError = text::DataError;

/// A fault of the disk: full, over a quota or a size limit, or failing. The old content is still there, and the same write may succeed
/// later; a program exits with code 1.
struct DiskError : FileError {
  using text::DataError::DataError;
};

/// Throws "PATH: could not be WHAT: REASON" for an errno: a DiskError if the disk is full or fails, else a FileError.
[[noreturn]] void fail_file(const std::string& path, const std::string& what, int error);

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
void remove_temporaries(const std::string& directory, bool (*is_target)(const std::string& name));
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

/// A file that grows by whole records, such as lines. Each record is handed to the system at once, so that a reader finds whole records
/// alone and a killed process loses none; after sync() they survive a loss of power.
class AppendFile {
 public:
  /// Opens the file for appending, and makes it if need be. One process at a time may write it. Throws FileError, also for a FIFO without
  /// a reader.
  explicit AppendFile(std::string path);
  ~AppendFile();
  AppendFile(AppendFile&& other) noexcept;  ///< the other one may only be destroyed
  AppendFile& operator=(AppendFile&&) = delete;

  /// Appends whole records. Throws FileError, as a DiskError on a full disk: the file then ends with the last record that fitted, and up to
  /// a megabyte of later ones is kept in memory for the next call.
  void write(std::string_view records);
  /// Writes the records that are kept in memory, and waits until the disk has all. Throws FileError.
  void sync();
  /// The size of the file in bytes, with the records that are still in memory.
  std::int64_t size() const noexcept { return end_ + static_cast<std::int64_t>(pending_.size()); }

 private:
  void write_pending();

  std::string path_;
  std::string pending_;       ///< whole records that are not in the file yet
  std::int64_t end_ = 0;      ///< offset behind the last whole record in the file
  bool may_be_torn_ = false;  ///< a part of a record may stand behind that offset
  backend::FileDescriptor descriptor_;
};

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

/// CRC-32 (ISO 3309, as in gzip) of bytes that come piece by piece. It detects damage, and files that do not belong together, but no
/// forgery.
class Checksum {
 public:
  /// @{
  /// Appends bytes to the checked sequence.
  void add(const void* data, std::size_t bytes);
  void add(std::string_view text) { add(text.data(), text.size()); }
  /// @}
  /// The checksum of all bytes so far, eight hexadecimal digits.
  std::string hex() const;

 private:
  std::uint32_t value_ = 0;
};

/// Checksum::hex() of a text.
std::string checksum(std::string_view text);

/// CRC-32C (Castagnoli's polynomial, RFC 3720 appendix B.4), the checksum of TFRecord files.
std::uint32_t crc32c(std::string_view bytes) noexcept;

}  // namespace tern::io
