#include "backend/threads.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "backend/device.h"
#include "catch.h"
#include "threads.h"

namespace tern {

namespace {

/// How often each part ran.
std::vector<int> counts_of(int parts, bool are_long = false) {
  std::vector<std::atomic<int>> counts(static_cast<std::size_t>(parts));
  backend::run_parts(parts, [&](int part) { ++counts[static_cast<std::size_t>(part)]; }, are_long);
  return {counts.begin(), counts.end()};
}

}  // namespace

TEST_CASE("Every part runs once, with more parts than processors and with one", "[threads]") {
  for (int parts : {0, 1, 2, 3, 16, 1000})
    for (int repeat = 0; repeat < 200; ++repeat)
      REQUIRE(counts_of(parts, repeat % 2 == 1) == std::vector<int>(static_cast<std::size_t>(parts), 1));
}

TEST_CASE("What parts write is seen by the caller", "[threads]") {
  std::vector<std::int64_t> sums(8);
  std::int64_t total = 0;
  for (int repeat = 0; repeat < 5000; ++repeat) {
    backend::run_parts(8, [&](int part) { sums[static_cast<std::size_t>(part)] += part + repeat; });
    total += 8 * repeat + 28;
  }
  CHECK(std::accumulate(sums.begin(), sums.end(), std::int64_t(0)) == total);
}

TEST_CASE("Parts within a part run on its thread", "[threads]") {
  const test::Threads restored;
  set_num_threads(3);
  std::atomic<int> inner = 0, elsewhere = 0;
  backend::run_parts(4, [&](int) {
    const auto here = std::this_thread::get_id();
    if (num_threads() != 1) ++elsewhere;
    backend::run_parts(3, [&](int) {
      ++inner;
      if (std::this_thread::get_id() != here) ++elsewhere;
    });
  });
  CHECK(inner == 12);
  CHECK(elsewhere == 0);
  CHECK(num_threads() == 3);
}

TEST_CASE("Several threads of a program share the pool", "[threads]") {
  std::atomic<int> wrong = 0;
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller)
    callers.emplace_back([&] {
      for (int repeat = 0; repeat < 2000; ++repeat)
        if (counts_of(4) != std::vector<int>(4, 1)) ++wrong;
    });
  for (std::thread& caller : callers) caller.join();
  CHECK(wrong == 0);
}

TEST_CASE("The child of a fork has threads again", "[threads]") {
  counts_of(4);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    for (int repeat = 0; repeat < 100; ++repeat)
      if (counts_of(4) != std::vector<int>(4, 1)) ::_exit(1);
    ::_exit(0);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("The number of threads is one that can be used", "[threads]") {
  const test::Threads restored;
  set_num_threads(3);
  CHECK(num_threads() == 3);
  CHECK_THROWS_AS(set_num_threads(0), Error);
  CHECK_THROWS_AS(set_num_threads(-1), Error);
  CHECK_THROWS_AS(set_num_threads(100000), Error);
  CHECK(num_threads() == 3);
}

}  // namespace tern

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
