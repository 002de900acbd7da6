#pragma once
#include <cstdint>
#include <string>

// Threads: the pool of the CPU kernels (num_threads and set_num_threads are in backend/device.h), signals kept off a thread, and the limits
// that a container sets to processors and memory.
namespace tern::backend {

/// Calls call(context, part) for each part in [0, parts), on this thread and on the pool's threads; returns when all are done. Parts must
/// not wait for one another: a part begins when a thread is free, and this thread runs all parts that no other has begun. All parts run on
/// this thread if it is within a part, if num_threads() is 1, or while another thread of the program is in run_parts. `call` must not
/// throw. Parts are short, as those of a kernel, or long: milliseconds and more, for which even a thread that wakes up late is useful.
void run_parts(int parts, void (*call)(const void* context, int part), const void* context, bool are_long = false) noexcept;

/// The same for any callable f(part).
template <class F>
void run_parts(int parts, const F& f, bool are_long = false) noexcept {
  run_parts(parts, [](const void* context, int part) { (*static_cast<const F*>(context))(part); }, &f, are_long);
}

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

/// Limits of the control groups (cgroups) of a process, set by a container or a batch job.
struct GroupLimits {
  std::uint64_t memory;  ///< bytes; the largest number if there is no limit
  double processors;     ///< CPU time per second of clock time; infinite if there is no limit
};

/// Lowest limits of the groups, of version 1 or 2, that a file like /proc/self/cgroup lists, found below `root`, usually /sys/fs/cgroup.
GroupLimits group_limits(const std::string& memberships, const std::string& root);

/// Limits of this process.
GroupLimits group_limits();

/// Number of threads for `processors` processors under the groups' limits, rounded up; at least 1.
int threads_for(int processors, const GroupLimits& limits);

}  // namespace tern::backend
