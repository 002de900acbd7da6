#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "autodiff/anomaly.h"
#include "backend/device.h"
#include "backend/observer.h"

namespace tern::profile {

/// The index of nothing.
inline constexpr std::uint32_t none = 0xffffffff;

/// Kinds of spans, the outermost first.
enum class Kind : std::uint8_t {
  step,    ///< a training step, as the program marks it
  pass,    ///< "forward", "backward", "optimizer", "recompute", ...
  module,  ///< a module's forward
  op,      ///< a call of an op; within "backward", the whole backward function of a node
  inner,   ///< an op that a backward function calls
  kernel,  ///< a kernel on the CPU, or the launch of one on a GPU
};

/// A time on the host. Spans of one thread nest.
struct Span {
  Kind kind = Kind::op;         ///< kind of the span
  bool is_product = false;      ///< true for GEMM kernels
  std::uint32_t thread = 0;     ///< index of a thread
  std::int64_t begin = 0;       ///< nanoseconds since the profile began
  std::int64_t end = 0;         ///< likewise; for a kernel on a GPU the end of its launch
  std::uint32_t parent = none;  ///< index of the innermost enclosing span
  std::uint32_t name = 0;       ///< index of a name; for a kernel that of its op
  std::uint32_t pass = 0;       ///< index of the pass's name; for a pass its own
  std::uint32_t module = 0;     ///< index of a module; in backward that of the forward
  double flops = 0;             ///< floating-point operations; 0: none, or unknown
  double bytes = 0;             ///< bytes of an op's operands and results, in backward also of saved tensors, each counted once

  std::int64_t duration() const { return end - begin; }  ///< nanoseconds
};

/// A module. Path and type are "" for the outside of all modules.
struct ModulePath {
  std::string path;  ///< "blocks.3.attn"; without names, the types of the enclosing modules
  std::string type;  ///< "MultiHeadAttention"
};

/// The name of a copy from one GPU to another.
inline constexpr const char* copy_to_peer = "copy to another GPU";

/// Work on a GPU, as CUPTI reports it.
struct DeviceRecord {
  /// Kinds of work on a GPU.
  enum class Kind : std::uint8_t { kernel, copy, fill };
  Kind kind = Kind::kernel;   ///< kind of the work
  std::int64_t begin = 0;     ///< nanoseconds, on the clock of the spans
  std::int64_t end = 0;       ///< likewise
  std::uint32_t device = 0;   ///< number of the GPU
  std::uint32_t stream = 0;   ///< number of the stream, as CUPTI counts them
  std::string name;           ///< readable name of the kernel
  std::uint32_t span = none;  ///< index of the kernel span that launched it; none for a graph's
  std::uint32_t op = 0;       ///< index of a name
  std::uint32_t pass = 0;     ///< index of a name
  std::uint32_t module = 0;   ///< index of a module
  double bytes = 0;           ///< bytes of a copy or fill
  bool is_in_graph = false;   ///< a launch of a captured graph ran it
};

/// A collective between processes on CPUs, which runs concurrently with the thread that started it.
struct Collective {
  std::uint32_t thread = 0;  ///< index of the thread that started it
  std::uint32_t name = 0;    ///< index of a name: "all_reduce"
  std::int64_t begin = 0;    ///< nanoseconds, on the clock of the spans
  std::int64_t end = 0;      ///< likewise
  std::int64_t waited = 0;   ///< nanoseconds that the thread waited for it
  double bytes = 0;          ///< bytes of the tensor
};

/// Memory in live tensors at a moment.
struct MemorySample {
  std::int64_t time = 0;    ///< nanoseconds, on the clock of the spans
  std::uint64_t bytes = 0;  ///< bytes in live tensors
};

/// Spans, kernels and samples that a profiler recorded: plain data.
struct Profile {
  Device device;                             ///< device of the work, whose memory is sampled
  std::int64_t end = 0;                      ///< nanoseconds from the beginning to finish()
  std::vector<std::string> names;            ///< the first one is ""
  std::vector<ModulePath> modules;           ///< the first one is the outside of all modules
  std::vector<std::string> threads;          ///< names of the watched threads; the first one marks the steps
  std::vector<Span> spans;                   ///< thread by thread; a parent may come before or after its children
  std::vector<DeviceRecord> device_records;  ///< work on the GPU
  std::vector<Collective> collectives;       ///< collectives between CPUs; those of a GPU are device records
  std::vector<MemorySample> memory;          ///< in order

  const std::string& name(const Span& span) const { return names[span.name]; }  ///< name of a span
  /// Nanoseconds of all steps, or of the whole profile if it has none.
  std::int64_t wall() const;
  std::int64_t steps() const;  ///< number of marked steps
};

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

/// Writes a profile in the Trace Event Format (Google's document of that name), for ui.perfetto.dev, chrome://tracing or speedscope: a
/// track for each thread, for each stream of a GPU, for communication, and for the memory in live tensors, with arrows from launches to
/// kernels. Throws io::FileError, and then leaves an earlier file as it was.
void write_chrome_trace(const Profile& profile, const std::string& path);

namespace detail {

/// A readable name of a GPU kernel. Kernels of tern give "adam.cu: update_all", since the mangled name of an anonymous namespace holds the
/// file's name; others the function's name without parameters and template arguments. Names that are not mangled stay as they are.
std::string readable_kernel_name(const std::string& name);

/// True for the readable name of a GEMM kernel: of cuBLAS (nvjet, cutlass, splitKreduce) or of tern.
bool is_product_kernel(const std::string& name);

}  // namespace detail

}  // namespace tern::profile
