#pragma once
#include <chrono>
#include <cstdint>

namespace tern::backend {

/// Nanoseconds of std::chrono::steady_clock, which has an arbitrary start: the one clock of spans, device records and training runs.
inline std::int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace tern::backend
