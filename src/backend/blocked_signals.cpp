#include "backend/blocked_signals.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>

namespace tern::backend {

namespace {

constexpr int first_real_time = 32;  // the kernel's; SIGRTMIN is the first that the C library leaves to programs

constexpr std::uint64_t bit(int signal) { return std::uint64_t{1} << (signal - 1); }
constexpr std::uint64_t faults = bit(SIGSEGV) | bit(SIGBUS) | bit(SIGFPE) | bit(SIGILL) | bit(SIGTRAP) | bit(SIGSYS) | bit(SIGABRT);

/// The system call itself, since pthread_sigmask leaves out the C library's own signals.
std::uint64_t change_mask(int how, std::uint64_t mask) {
  std::uint64_t before = 0;
  ::syscall(SYS_rt_sigprocmask, how, &mask, &before, sizeof mask);
  return before;
}

}  // namespace

BlockedSignals::BlockedSignals(Which which) noexcept {
  const std::uint64_t library = which == Which::all ? 0 : bit(SIGRTMIN) - bit(first_real_time);
  before_ = change_mask(SIG_BLOCK, ~(faults | library));
}
BlockedSignals::~BlockedSignals() { change_mask(SIG_SETMASK, before_); }

}  // namespace tern::backend
