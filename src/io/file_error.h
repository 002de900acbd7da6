#pragma once
#include <filesystem>
#include <string>

#include "text/data_error.h"

namespace tern::io {

/// A fault in a file or directory that the user named: missing, corrupt, hostile, or not to be written. The message is one
/// line and starts with the path; a program prints it and exits with code 2. It is a text::DataError, so that a program
/// catches both with one handler.
struct FileError : text::DataError {
  using text::DataError::DataError;
};

/// A fault of the disk and not of what the user asked for: full, over a quota or a limit, or failing. What was there before is there
/// still, and the same write may succeed later; a program exits with code 1.
struct DiskError : FileError {
  using FileError::FileError;
};

/// Throws the one of the two that `error`, an errno, calls for: "PATH: could not be WHAT: REASON".
[[noreturn]] void fail_file(const std::filesystem::path& path, const std::string& what, int error);

}  // namespace tern::io
