#pragma once
#include <utility>

namespace tern::backend {

/// Owns a descriptor of an open file, pipe or socket, and closes it; or none.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) noexcept : fd_(fd) {}  ///< takes it over; negative: none
  ~FileDescriptor() { close(); }
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}  ///< takes its descriptor over
  /// Swaps them: the other one closes this one's.
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }

  bool is_open() const noexcept { return fd_ >= 0; }         ///< true if there is a descriptor
  int get() const noexcept { return fd_; }                   ///< negative if there is none
  int release() noexcept { return std::exchange(fd_, -1); }  ///< the caller closes it from then on
  void close() noexcept;                                     ///< once; errors are ignored

 private:
  int fd_;
};

}  // namespace tern::backend
