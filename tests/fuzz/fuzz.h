#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

/// Each program here defines this function. libFuzzer calls it, or driver.cpp.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace tern::fuzz {

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) { return {reinterpret_cast<const char*>(data), size}; }

/// Ends the program, which both drivers take for a finding, where something does not hold.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

/// A message of a refusal: one line that begins with the file's name.
inline void require_message(std::string_view message) {
  require(message.starts_with("f: ") || message.starts_with("f:") || message.starts_with("/proc/self/fd/"),
          "a message begins with the file");
  for (const char c : message) require(static_cast<unsigned char>(c) >= 0x20 && c != 0x7F, "a message has no control characters");
  require(message.size() < 2000, "a message is short");
}

}  // namespace tern::fuzz
