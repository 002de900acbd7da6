#pragma once
#include "text/data_error.h"

namespace tern::io {

/// A fault in a file or directory that the user named: missing, corrupt, hostile, or on a full disk. The message is one
/// line and starts with the path; a program prints it and exits with code 2. It is a text::DataError, so that a program
/// catches both with one handler.
struct FileError : text::DataError {
  using text::DataError::DataError;
};

}  // namespace tern::io
