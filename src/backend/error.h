#pragma once
#include <stdexcept>
#include <string>

namespace tern {

/// A mistake of the caller: shapes, dtypes, devices, indices, options. The message has the form `[op] expected ... but got ...`.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The device is out of memory; the message says what it holds.
struct OutOfMemory : Error {
  using Error::Error;
};

/// Throws Error with the message `[where] message`.
[[noreturn]] void fail(const char* where, const std::string& message);

/// Writes the line `tern: [where] message` to stderr: for what is no error, but trains nothing or wastes work without showing. At most once
/// for a cause; a program's stdout is never written to.
void warn(const char* where, const std::string& message);

}  // namespace tern

namespace tern::backend {

/// Function that names the module whose forward runs, `blocks.0.fc (Linear)`, or returns "": `fail` adds it to its messages. Modules belong
/// to higher layers, which set this before main runs (autodiff/anomaly.cpp) and never again; null in a program without them.
using FailingPlace = std::string (*)();
inline constinit FailingPlace failing_place = nullptr;  ///< the program's

}  // namespace tern::backend
