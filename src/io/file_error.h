#pragma once
#include <string>

#include "text/data_error.h"

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

}  // namespace tern::io
