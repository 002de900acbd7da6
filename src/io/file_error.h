#pragma once
#include "text/data_error.h"

namespace tern::io {

/// A fault in a file or directory that the user named: missing, corrupt, hostile, or on a full disk. The message begins with the path;
/// a program prints it as one line and exits with code 2. Reading text and reading tensors share the type.
using FileError = text::DataError;

}  // namespace tern::io
