#pragma once
#include <string>

namespace tern {

/// Writes the line `tern: [where] message` to stderr: for what is no error, but trains nothing or wastes work without showing. At most once
/// for a cause; a program's stdout is never written to.
void warn(const char* where, const std::string& message);

}  // namespace tern
