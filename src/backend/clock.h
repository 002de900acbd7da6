#pragma once
#include <chrono>
#include <cstdint>

namespace tern::backend {

/// Nanoseconds of std::chrono::steady_clock, from whenever that counts: the one clock of spans, device records and trainings.
inline std::int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace tern::backend
