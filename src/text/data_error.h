#pragma once

#include <stdexcept>
#include <string>

namespace tern::text {

/// A fault in a file that the user named: unreadable, corrupt, malformed or over a limit. The message is one line and
/// names the file (and the line where there is one); a program prints it and exits with code 2. A fault in an argument
/// is std::invalid_argument instead.
struct DataError : std::runtime_error {
  /// Escapes control characters of the message: a file's name, and text from it, may have any.
  explicit DataError(const std::string& message);
};

}  // namespace tern::text
