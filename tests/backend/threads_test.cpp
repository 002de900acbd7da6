#include "backend/threads.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <numeric>
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
