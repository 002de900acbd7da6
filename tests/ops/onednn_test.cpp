// oneDNN's products, in builds with oneDNN: of float32 against a sum in float64, and all of them under signals.
#include <dirent.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "catch.h"
#include "ops/cpu/gemm.h"
#include "skip.h"
#include "tensor/random.h"

using namespace tern;
using tern::test::skip;

namespace {

/// Numbers between -1 and 1.
template <class T>
std::vector<T> random(std::int64_t count, std::uint64_t seed) {
  std::vector<T> numbers(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = T(2 * unit_float(philox(seed, i).words[0]) - 1);
  return numbers;
}

}  // namespace

TEST_CASE("oneDNN's product of float32 is that of float64, rounded") {
  const std::int64_t m = 37, n = 53, k = 129;
  for (const bool a_columns : {false, true})
    for (const bool b_columns : {false, true})
      for (const bool add : {false, true}) {
        const std::vector<float> a = random<float>(m * (k + 2), 1), b = random<float>(k * (n + 5), 2), c = random<float>(m * (n + 3), 3);
        // A transposed operand is the same memory, (k, m) and (n, k), with contiguous columns.
        const gemm::Matrix<const float> left{a.data(), a_columns ? 1 : k + 2, a_columns ? m : 1};
        const gemm::Matrix<const float> right{b.data(), b_columns ? 1 : n + 5, b_columns ? k : 1};
        std::vector<float> y = c;
        if (!onednn::multiply({m, n, k}, 0.5f, left, right, y.data(), n + 3, add)) return skip("this build has no oneDNN");
        CAPTURE(a_columns, b_columns, add);
        for (std::int64_t at = 0; at < m * (n + 3); ++at) {
          const std::int64_t i = at / (n + 3), j = at % (n + 3);
          const auto place = static_cast<std::size_t>(at);
          if (j >= n) {
            CHECK(y[place] == c[place]);
            continue;
          }
          double sum = 0;
          for (std::int64_t d = 0; d < k; ++d) sum += double(*left.at(i, d).data) * *right.at(d, j).data;
          CHECK(y[place] == Approx(0.5 * sum + (add ? c[place] : 0)).epsilon(1.6e-5).margin(1.6e-5));
        }
      }
}

namespace {

std::atomic<long> handled{0}, off_the_stack{0};
std::size_t stack_bytes = 0;

/// Uses 16 KiB of stack, and counts frames that do not lie below the top of the thread's stack: environ in main's thread, the thread's own
/// data in the others.
void handle(int) {
  volatile char used[1 << 14];
  for (std::size_t i = 0; i < sizeof used; i += 64) used[i] = 1;
  const bool is_main = ::getpid() == ::syscall(SYS_gettid);
  const auto top = is_main ? reinterpret_cast<std::uintptr_t>(environ) : static_cast<std::uintptr_t>(::pthread_self());
  if (top - reinterpret_cast<std::uintptr_t>(used) > stack_bytes) ++off_the_stack;
  ++handled;
}

/// Scope in which a thread sends signals to all others, each about 2000 times a second.
class Signals {
 public:
  Signals() {
    rlimit limit{};
    ::getrlimit(RLIMIT_STACK, &limit);
    stack_bytes = std::min<std::size_t>(limit.rlim_cur, std::size_t{64} << 20);
    struct sigaction action{};
    action.sa_handler = handle;
    action.sa_flags = SA_RESTART;
    ::sigaction(SIGUSR1, &action, &before_);
    handled = off_the_stack = 0;
    sender_ = std::thread([this] {
      const auto own = ::syscall(SYS_gettid);
      while (!is_over_) {
        std::this_thread::sleep_for(std::chrono::microseconds(450));
        DIR* const threads = ::opendir("/proc/self/task");
        while (const dirent* const entry = ::readdir(threads))
          if (const long thread = std::atol(entry->d_name); thread > 0 && thread != own) ::syscall(SYS_tgkill, ::getpid(), thread, SIGUSR1);
        ::closedir(threads);
      }
    });
  }
  ~Signals() {
    is_over_ = true;
    sender_.join();
    ::signal(SIGUSR1, SIG_IGN);  // discards those that are pending
    ::sigaction(SIGUSR1, &before_, nullptr);
  }

 private:
  std::atomic<bool> is_over_{false};
  struct sigaction before_{};
  std::thread sender_;
};

/// Calls multiply(size, a, b, c) for 20 sizes and every layout in three threads, until 300 signals have come, and wants the bits of a quiet
/// call. Returns false if there is no such product here.
template <class T>
bool products_bear_signals(const std::function<bool(gemm::Sizes, gemm::Matrix<const T>, gemm::Matrix<const T>, T*)>& multiply) {
  constexpr std::int64_t largest = 320, padding = 3;
  const std::vector<T> a = random<T>((largest + padding) * (largest + padding), 1),
                       b = random<T>((largest + padding) * (largest + padding), 2);
  const auto product = [&](int number) {
    const std::int64_t n = 128 + 10 * (number % 20);  // deeper than 170 it uses the workspace
    const bool a_columns = number / 20 % 2 == 1, b_columns = number / 40 == 1;
    const std::int64_t row = n + number % 2 * padding;
    std::vector<T> c(static_cast<std::size_t>(n * n));
    const bool is_there = multiply({n, n, n}, {a.data(), a_columns ? 1 : row, a_columns ? row : 1},
                                   {b.data(), b_columns ? 1 : row, b_columns ? row : 1}, c.data());
    return is_there ? c : std::vector<T>{};
  };
  constexpr int count = 80;
  std::vector<std::vector<T>> quiet;
  for (int number = 0; number < count; ++number) quiet.push_back(product(number));
  if (quiet.back().empty()) return false;
  std::atomic<long> wrong{0};
  const Signals signals;
  const auto work = [&](int first) {
    for (int i = 0; i < count || handled < 300; ++i) {
      const int number = (first + i) % count;
      const std::vector<T> c = product(number);
      wrong += std::memcmp(c.data(), quiet[static_cast<std::size_t>(number)].data(), c.size() * sizeof(T)) != 0;
    }
  };
  std::thread second(work, 27), third(work, 54);
  work(0);
  second.join();
  third.join();
  CHECK(handled >= 300);
  CHECK(off_the_stack == 0);
  CHECK(wrong == 0);
  return true;
}

}  // namespace

TEST_CASE("Signals during oneDNN's products of float32 leave memory and results as they are") {
  if (!products_bear_signals<float>(
          [](auto size, auto a, auto b, float* c) { return onednn::multiply(size, 1.0f, a, b, c, size.columns, false); }))
    skip("this build has no oneDNN");
}

TEST_CASE("Signals during oneDNN's products of bfloat16 leave memory and results as they are") {
  if (!products_bear_signals<bf16>(
          [](auto size, auto a, auto b, bf16* c) { return onednn::multiply(size, 1.0, a, b, c, size.columns, false); }))
    skip("this build or processor has no such products");
}
