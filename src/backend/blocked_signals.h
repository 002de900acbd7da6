#pragma once
#include <cstdint>

namespace tern::backend {

/// Scope in which no signal's handler runs on the calling thread, but for faults of its own instructions (SIGSEGV, SIGBUS, SIGFPE, SIGILL,
/// SIGTRAP, SIGSYS) and SIGABRT. Other threads handle the process's signals meanwhile; where there is none, they wait for the scope's end.
class BlockedSignals {
 public:
  /// The signals that are blocked: those that programs use, or also those that the C library uses for itself (pthread_cancel, setuid). A
  /// thread that starts in the scope blocks the same ones for its life, and needs the latter.
  enum class Which { of_programs, all };
  explicit BlockedSignals(Which which) noexcept;
  ~BlockedSignals();
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  std::uint64_t before_ = 0;  ///< the thread's mask, a bit for each signal
};

}  // namespace tern::backend
