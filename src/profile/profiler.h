#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "autodiff/anomaly.h"
#include "backend/observer.h"
#include "profile/profile.h"

namespace tern::profile {

class ThreadRecorder;

/// While it lives, what follows on this thread belongs to a pass: "forward", "communication", or a name of the user's. backward(),
/// train::apply() and checkpoint() open theirs. `name` outlives the profiler.
using Pass = backend::PassScope;

/// Options of Profiler.
struct ProfilerOptions {
  ModuleNames names = {};  ///< nn::module_names(model); without them a module's path is of types
  Device device = cpu;     ///< that the work is for
};

/// Watches the work of this thread from here on, and of others by WatchedThread, until finish() or its end. Several may watch a thread at a
/// time. To be ended by the thread that made it. On a CUDA device it also asks CUPTI for kernels, copies and fills, where the build has
/// CUPTI and no other profiler asks, and opens NVTX ranges for Nsight; kernels of a graph have their ops' names if it was captured under
/// the profiler.
class Profiler {
 public:
  /// Begins to watch the thread that calls this.
  explicit Profiler(ProfilerOptions options = {});
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  /// Marks a training step, on the thread that made the profiler. Of other threads what begins within a step is counted.
  void begin_step();
  /// Ends the step that begin_step() began.
  void end_step();
  /// Forgets all spans so far, of all threads, and begins anew, after a warm-up. Names of a captured graph's kernels stay. To be called
  /// outside any scope; what other threads have open is forgotten.
  void restart();
  /// Waits for the device, stops, and gives what it saw; scopes that are open end now, those of other threads as well.
  Profile finish();

  struct Shared;

 private:
  friend class WatchedThread;
  void stop();

  const std::shared_ptr<Shared> shared_;
  std::shared_ptr<ThreadRecorder> own_;
  std::int64_t started_ = 0;  ///< on the steady clock
};

/// While it lives, the profiler watches the thread that made it, which has a track of that name in the trace and adds to the rows of its
/// ops. It may outlive finish(), and the profiler; what follows is not recorded. Throws Error if the profiler watches the thread already.
class WatchedThread {
 public:
  /// The profiler watches the thread that calls this; `name` is that of its track.
  WatchedThread(Profiler& profiler, std::string name);
  ~WatchedThread();
  WatchedThread(const WatchedThread&) = delete;
  WatchedThread& operator=(const WatchedThread&) = delete;

 private:
  std::shared_ptr<ThreadRecorder> recorder_;
};

}  // namespace tern::profile
