#pragma once
#include <stdexcept>
#include <string>

namespace tern {

/// A caller's mistake: shapes, dtypes, devices, indices, options. The message reads `[op] expected ... but got ...`.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A device has no more memory; the message says what it holds.
struct OutOfMemory : Error {
  using Error::Error;
};

/// Throws Error with the message `[where] message`.
[[noreturn]] void fail(const char* where, const std::string& message);

}  // namespace tern
