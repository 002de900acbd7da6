// Owned file descriptors: who closes them, and when.
#include <fcntl.h>

#include "backend/file.h"
#include "catch.h"

namespace tern {

using backend::FileDescriptor;

namespace {
int open_null() { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); }
bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }
}  // namespace

TEST_CASE("A file descriptor is closed at the end of its owner") {
  int fd = -1;
  {
    const FileDescriptor owner(fd = open_null());
    CHECK(owner.is_open());
    CHECK(is_open(fd));
  }
  CHECK_FALSE(is_open(fd));
  CHECK_FALSE(FileDescriptor().is_open());
}

TEST_CASE("A file descriptor has one owner at a time") {
  const int fd = open_null();
  FileDescriptor first(fd), second(std::move(first));
  CHECK_FALSE(first.is_open());
  CHECK(second.get() == fd);
  first = std::move(second);
  CHECK(first.get() == fd);
  CHECK(first.release() == fd);
  first.close();
  CHECK(is_open(fd));
  ::close(fd);
}

}  // namespace tern
