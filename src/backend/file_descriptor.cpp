#include "backend/file_descriptor.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "backend/error.h"

namespace tern::backend {

void FileDescriptor::close() noexcept {
  if (is_open()) ::close(release());
}

Pipe::Pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw Error(std::string("no pipe could be made: ") + std::strerror(errno));
  from = FileDescriptor(ends[0]);
  to = FileDescriptor(ends[1]);
}

}  // namespace tern::backend
