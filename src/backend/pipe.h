#pragma once
#include "backend/file_descriptor.h"

namespace tern::backend {

/// A pipe. Programs that the process starts do not inherit it (O_CLOEXEC).
struct Pipe {
  Pipe();               ///< throws Error if the system refuses
  FileDescriptor from;  ///< the end to read from
  FileDescriptor to;    ///< the end to write to
};

}  // namespace tern::backend
