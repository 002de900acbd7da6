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

}  // namespace tern
