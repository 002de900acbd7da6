#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "autodiff/anomaly.h"
#include "backend/observer.h"
#include "profile/profile.h"

namespace tern::profile {

class ThreadRecorder;

/// Marks a pass of this thread while it lives: "forward", "communication", or a name of the user's, which has to outlive the profiler.
/// backward(), train::apply() and checkpoint() mark their own.
using Pass = backend::PassScope;

/// Options of Profiler.
struct ProfilerOptions {
  ModuleNames names = {};            ///< nn::module_names(model); without them a module's path consists of types
  Device device = default_device();  ///< device of the work
};

/// Records the work of the thread that makes it, and of others with a WatchedThread, until finish() or the destructor. Several profilers
/// may record a thread at a time. It has to be destroyed on the thread that made it. On a CUDA device it also records kernels, copies and
/// fills by CUPTI, if the build has it and no other profiler uses it, and opens NVTX ranges for Nsight. Kernels of a graph have the names
/// of their ops if the graph was captured under the profiler.
class Profiler {
 public:
  /// Starts recording the calling thread.
  explicit Profiler(ProfilerOptions options = {});
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  /// Marks the start of a training step, on the thread that made the profiler. Work of other threads counts if it starts within a step.
  void begin_step();
  /// Marks the end of the step.
  void end_step();
  /// Discards all spans so far, of all threads, such as those of a warm-up. Keeps the names of a captured graph's kernels. To be called
  /// outside any scope; open spans of other threads are discarded.
  void restart();
  /// Waits for the device, stops recording, and returns the profile. Open spans of all threads end now.
  Profile finish();

  struct Shared;

 private:
  friend class WatchedThread;
  void stop();

  const std::shared_ptr<Shared> shared_;
  std::shared_ptr<ThreadRecorder> own_;
  std::int64_t started_ = 0;  ///< nanoseconds of the steady clock
};

/// Records another thread for a profiler while it lives: the thread that makes it. The trace has a track for it, and its ops count in the
/// tables. It may outlive finish() and the profiler, after which nothing is recorded.
class WatchedThread {
 public:
  /// Starts recording the calling thread; `name` is that of its track. Throws Error if the profiler records it already.
  WatchedThread(Profiler& profiler, std::string name);
  ~WatchedThread();
  WatchedThread(const WatchedThread&) = delete;
  WatchedThread& operator=(const WatchedThread&) = delete;

 private:
  std::shared_ptr<ThreadRecorder> recorder_;
};

}  // namespace tern::profile
