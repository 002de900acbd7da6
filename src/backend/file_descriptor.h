#pragma once
#include <unistd.h>

#include <utility>

namespace tern::backend {

/// An open file, pipe or socket of the system, closed at the end; or none.
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

  bool is_open() const noexcept { return fd_ >= 0; }         ///< whether there is a descriptor
  int get() const noexcept { return fd_; }                   ///< negative where there is none
  int release() noexcept { return std::exchange(fd_, -1); }  ///< the caller closes it from then on
  void close() noexcept {                                    ///< once; errors are ignored
    if (is_open()) ::close(release());
  }

 private:
  int fd_;
};

}  // namespace tern::backend
