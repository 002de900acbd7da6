#pragma once
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

// Files of the system: their descriptors, and the replacement of one.
namespace tern::backend {

/// Owner of the descriptor of an open file, pipe or socket, which it closes; may be empty.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) noexcept : fd_(fd) {}  ///< takes ownership; negative: none
  ~FileDescriptor() { close(); }
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}  ///< takes over its descriptor
  /// Swaps the descriptors: the other object closes this one's.
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }

  bool is_open() const noexcept { return fd_ >= 0; }         ///< true if there is a descriptor
  int get() const noexcept { return fd_; }                   ///< negative if there is none
  int release() noexcept { return std::exchange(fd_, -1); }  ///< gives up ownership: the caller closes it
  void close() noexcept;                                     ///< closes the descriptor, if any; errors are ignored

 private:
  int fd_;
};

/// A pipe, which child programs do not inherit (O_CLOEXEC).
struct Pipe {
  Pipe();               ///< throws Error if the system cannot create one
  FileDescriptor from;  ///< read end
  FileDescriptor to;    ///< write end
};

/// Replaces a file's content atomically: readers see the old file or the new one, and of two writers the last one wins. It need not survive
/// a power failure (for that see io/files.h). Returns the error if it could not be written.
std::error_code replace_file(const std::string& path, std::string_view content);

/// Directory of the user's for what programs could lose: $XDG_CACHE_HOME/tern, or ~/.cache/tern. Empty if the environment names no place.
std::string cache_directory();

}  // namespace tern::backend
