#include "backend/threads.h"

#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "backend/device.h"

namespace tern {

namespace {

constexpr int max_threads = 1024;

/// First number of OMP_NUM_THREADS; 0 if it is not a valid number of threads.
int threads_of_environment() {
  const char* const text = std::getenv("OMP_NUM_THREADS");
  int count = 0;
  if (text) std::from_chars(text, text + std::strlen(text), count);
  return count >= 1 && count <= max_threads ? count : 0;
}

int processors() {
  cpu_set_t allowed;
  const int count =
      sched_getaffinity(0, sizeof(allowed), &allowed) == 0 ? CPU_COUNT(&allowed) : static_cast<int>(std::thread::hardware_concurrency());
  return std::min(backend::threads_for(count, backend::group_limits()), max_threads);
}

int default_threads() {
  static const int count = threads_of_environment() ? threads_of_environment() : processors();
  return count;
}

/// Per thread: a kernel that runs in another thread has laid out its memory for that thread's number.
thread_local int chosen_threads = 0;

/// True if this thread runs or distributes parts: nested calls run on it alone.
thread_local bool is_inside_part = false;

}  // namespace

int num_threads() {
  if (is_inside_part) return 1;
  return chosen_threads > 0 ? chosen_threads : default_threads();
}

void set_num_threads(int count) {
  if (count < 1 || count > max_threads)
    fail("set_num_threads", "expected 1 to " + std::to_string(max_threads) + " threads but got " + std::to_string(count));
  chosen_threads = count;
}

namespace backend {

namespace {

using Clock = std::chrono::steady_clock;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Waits until `value` is no longer `old`: spins for at most `spin`, then sleeps.
void wait_while(const std::atomic<std::uint32_t>& value, std::uint32_t old, Clock::duration spin) {
  for (const auto end = Clock::now() + spin; Clock::now() < end;)
    for (int i = 0; i < 32; ++i) {
      if (value.load(std::memory_order_acquire) != old) return;
      pause();
    }
  value.wait(old, std::memory_order_acquire);
}

/// Note [Waiting threads]: a thread without work spins for some microseconds, since the next kernel of a step is about that far away, and
/// then sleeps. A thread that spins longer uses processor time that others need, and is then scheduled later itself: the scheduler favours
/// threads that slept.
///
/// The parts of a call are taken by number, so that no one waits for a thread that did not wake up in time: the caller runs the remaining
/// parts. Only a thread that is preempted within a part delays it. If that took long, processors are scarce, and for a while the caller
/// runs all parts by itself. Long parts are worth any wait: they neither trigger that nor are subject to it. The assignment of parts to
/// threads never changes a result.
class ThreadPool {
 public:
  void run(int parts, void (*call)(const void*, int), const void* context, bool are_long) {
    const auto run_alone = [&] {
      for (int part = 0; part < parts; ++part) call(context, part);
    };
    if (is_inside_part) return run_alone();
    const Inside inside;
    const std::unique_lock lock(running_, std::try_to_lock);
    const auto start = Clock::now();
    if (!lock || (!are_long && start < alone_until_)) return run_alone();
    grow(parts - 1);
    call_ = call;
    context_ = context;
    unfinished_.store(static_cast<std::uint32_t>(parts), std::memory_order_relaxed);
    ++round_;
    tickets_.store(ticket(round_, parts, 0), std::memory_order_release);
    const std::size_t helpers = std::min(workers_.size(), static_cast<std::size_t>(parts - 1));
    for (std::size_t i = 0; i < helpers; ++i) {
      workers_[i]->round.store(round_, std::memory_order_release);
      workers_[i]->round.notify_one();
    }
    take_parts(round_);
    const auto done = Clock::now();
    for (std::uint32_t left; (left = unfinished_.load(std::memory_order_acquire)) != 0;) wait_while(unfinished_, left, spin_at_end);
    const auto waited = Clock::now() - done;
    if (!are_long && waited > long_wait && waited > 4 * (done - start)) alone_until_ = done + 16 * waited;
  }

 private:
  static constexpr auto spin_for_work = std::chrono::microseconds(50), spin_at_end = std::chrono::microseconds(50),
                        long_wait = std::chrono::microseconds(500);

  struct Inside {
    Inside() { is_inside_part = true; }
    ~Inside() { is_inside_part = false; }
  };
  struct alignas(64) Worker {
    std::atomic<std::uint32_t> round = 0;  ///< latest round that it was called for
  };

  /// State of a round in one word, so that a part is taken from the round that it belongs to or not at all: the round's number, the number
  /// of its parts, and the index of the next.
  static std::uint64_t ticket(std::uint32_t round, int parts, int next) {
    return std::uint64_t(round) << 32 | std::uint64_t(parts) << 16 | std::uint64_t(next);
  }

  /// Runs parts of a round until all have been taken.
  void take_parts(std::uint32_t round) {
    std::uint64_t now = tickets_.load(std::memory_order_acquire);
    while (static_cast<std::uint32_t>(now >> 32) == round && (now & 0xffff) < (now >> 16 & 0xffff)) {
      if (!tickets_.compare_exchange_weak(now, now + 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
      call_(context_, static_cast<int>(now & 0xffff));
      if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished_.notify_one();
      now = tickets_.load(std::memory_order_acquire);
    }
  }

  void work(Worker& self, std::uint32_t seen) {
    const Inside inside;
    for (;;) {
      wait_while(self.round, seen, spin_for_work);
      seen = self.round.load(std::memory_order_acquire);
      take_parts(seen);
    }
  }

  /// Starts threads until there are `count`, but no more than there are processors, or as many as the system allows.
  void grow(int count) {
    static const int enough = processors() - 1;
    while (static_cast<int>(workers_.size()) < std::min(count, enough)) {
      const BlockedSignals blocked(BlockedSignals::Which::of_programs);  // the program's own threads handle them
      auto worker = std::make_unique<Worker>();
      worker->round = round_;
      try {
        std::thread([this, self = worker.get(), seen = round_] { work(*self, seen); }).detach();
        workers_.push_back(std::move(worker));
      } catch (const std::system_error&) {
        count = 0;
      }
    }
  }

  std::mutex running_;  ///< held by the thread that uses the pool
  std::vector<std::unique_ptr<Worker>> workers_;
  Clock::time_point alone_until_{};
  void (*call_)(const void*, int) = nullptr;
  const void* context_ = nullptr;
  std::uint32_t round_ = 0;
  alignas(64) std::atomic<std::uint64_t> tickets_ = 0;
  alignas(64) std::atomic<std::uint32_t> unfinished_ = 0;
};

/// Never destroyed: its threads sleep until the program ends. The child of a fork has no threads of it, and creates a new pool.
ThreadPool*& pool() {
  static ThreadPool* instance = [] {
    pthread_atfork(nullptr, nullptr, [] { pool() = new ThreadPool; });
    return new ThreadPool;
  }();
  return instance;
}

}  // namespace

void run_parts(int parts, void (*call)(const void*, int), const void* context, bool are_long) noexcept {
  if (parts == 1) return call(context, 0);
  if (parts > 1) pool()->run(parts, call, context, are_long);
}

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

}  // namespace backend

}  // namespace tern
