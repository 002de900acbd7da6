#pragma once
#include "backend/file_descriptor.h"

namespace tern::backend {

/// A pipe, which child programs do not inherit (O_CLOEXEC).
struct Pipe {
  Pipe();               ///< throws Error if the system cannot create one
  FileDescriptor from;  ///< read end
  FileDescriptor to;    ///< write end
};

}  // namespace tern::backend
