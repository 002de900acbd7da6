#pragma once
#include <filesystem>
#include <string>

#include "text/data_error.h"

namespace tern::io {

/// A fault in a file or directory that the user named: missing, corrupt, hostile, or not to be written. The message begins with the path;
/// a program prints it as one line and exits with code 2. Reading text and reading tensors share the type.
using FileError = text::DataError;

/// A fault of the disk and not of what the user asked for: full, over a quota or a limit, or failing. What was there before is there
/// still, and the same write may succeed later; a program exits with code 1.
struct DiskError : FileError {
  using text::DataError::DataError;
};

/// Throws the one of the two that `error`, an errno, calls for: "PATH: could not be WHAT: REASON".
[[noreturn]] void fail_file(const std::filesystem::path& path, const std::string& what, int error);

}  // namespace tern::io
