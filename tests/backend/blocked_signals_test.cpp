#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <string>
#include <thread>

#include "backend/threads.h"
#include "catch.h"

namespace tern::backend {

namespace {

volatile std::sig_atomic_t handled = 0;

/// The signals that the calling thread blocks, as the kernel has them: bit N - 1 for signal N.
std::uint64_t blocked_now() {
  std::ifstream status("/proc/thread-self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("SigBlk:")) return std::stoull(line.substr(7), nullptr, 16);
  return 0;
}

bool is_blocked(int signal) { return (blocked_now() >> (signal - 1) & 1) != 0; }

}  // namespace

TEST_CASE("Blocked signals wait for the end of the scope, and faults do not") {
  struct sigaction action{}, before_usr1{}, before_fpe{};
  action.sa_handler = [](int) { handled = handled + 1; };
  ::sigaction(SIGUSR1, &action, &before_usr1);
  ::sigaction(SIGFPE, &action, &before_fpe);
  const std::uint64_t outside = blocked_now();
  handled = 0;
  {
    const BlockedSignals blocked(BlockedSignals::Which::all);
    std::raise(SIGUSR1);
    CHECK(handled == 0);
    std::raise(SIGFPE);
    CHECK(handled == 1);
    {
      const BlockedSignals again(BlockedSignals::Which::of_programs);
    }
    CHECK(handled == 1);
  }
  CHECK(handled == 2);
  CHECK(blocked_now() == outside);
  ::sigaction(SIGUSR1, &before_usr1, nullptr);
  ::sigaction(SIGFPE, &before_fpe, nullptr);
}

TEST_CASE("A scope of all signals has the C library's own") {
  constexpr int set_id = 33;  // by which setuid() asks every thread
  {
    const BlockedSignals blocked(BlockedSignals::Which::of_programs);
    CHECK((is_blocked(SIGTERM) && is_blocked(SIGRTMIN) && is_blocked(SIGRTMAX)));
    CHECK_FALSE((is_blocked(SIGSEGV) || is_blocked(SIGABRT) || is_blocked(set_id)));
  }
  const BlockedSignals blocked(BlockedSignals::Which::all);
  CHECK((is_blocked(SIGTERM) && is_blocked(SIGRTMAX) && is_blocked(set_id)));
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT}) CHECK_FALSE(is_blocked(fault));
}

TEST_CASE("Threads of the pool handle their faults and no other signals", "[threads]") {
  std::atomic<bool> is_wrong{false};
  const auto caller = std::this_thread::get_id();
  run_parts(64, [&](int) {
    if (std::this_thread::get_id() == caller) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    else if (!is_blocked(SIGTERM) || is_blocked(SIGSEGV)) is_wrong = true;
  });
  CHECK_FALSE(is_wrong);
}

}  // namespace tern::backend
