#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "autodiff/anomaly.h"
#include "backend/observer.h"
#include "profile/profiler.h"

namespace tern::profile {

/// Numbers for the modules that ran under profilers, each with its parent. All profilers and threads that live at a time share a table, so
/// that a node keeps its module when another thread runs its gradient. Number 0 is the outside of all modules.
class ModuleTable {
 public:
  struct Entry {
    const void* module;
    const char* type;
    std::uint32_t outer;  ///< number of the parent
    bool operator==(const Entry&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Entry& entry) const;
  };

  /// The table of the profilers that live now, or a new one.
  static std::shared_ptr<ModuleTable> in_use();
  ModuleTable() : entries_{{nullptr, "", 0}} {}

  std::uint32_t number_of(Entry entry);
  /// The path and type of a module. If it has no name, the path consists of the types of its parents. A number that this table lacks, as a
  /// node of an earlier profile may have, counts as outside any module.
  ModulePath describe(std::uint32_t number, const ModuleNames& names) const;

 private:
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;  ///< by number; parents come first
  std::unordered_map<Entry, std::uint32_t, Hash> numbers_;
};

/// Records the kernels, copies and fills of GPUs. Implemented over CUPTI (cupti.cpp).
class DeviceTracer {
 public:
  virtual ~DeviceTracer() = default;

  /// Labels the work that this thread queues until pop() with a number. Nodes of a graph that is captured meanwhile keep the number for
  /// every launch.
  virtual void push(std::uint64_t number) = 0;
  virtual void pop() = 0;
  /// Opens a range in Nsight's timeline (NVTX); end_range() closes it.
  virtual void begin_range(const char* name) = 0;
  virtual void end_range() = 0;

  struct Work {
    DeviceRecord record;       ///< times in nanoseconds of std::chrono::steady_clock
    std::uint64_t number = 0;  ///< of push()
  };
  /// Returns the work that has ended since the last call.
  virtual std::vector<Work> collect() = 0;
};

/// Null in a build without CUPTI, and if CUPTI fails or another tool uses it.
std::unique_ptr<DeviceTracer> make_device_tracer();

class ThreadRecorder;

/// The state that threads under one profiler share.
struct Profiler::Shared {
  explicit Shared(ProfilerOptions given);

  const ProfilerOptions options;
  const std::shared_ptr<ModuleTable> modules = ModuleTable::in_use();
  std::unique_ptr<DeviceTracer>
      tracer;        ///< null on the CPU; used by a thread that holds its recorder's lock, as long as its recorder is not over
  std::mutex mutex;  ///< guards `threads`
  std::vector<std::shared_ptr<ThreadRecorder>> threads;
  bool is_over = false;
};

// Note [A recorder and its lock]
// Each watched thread has a recorder with lists of its own: a span is numbered within its thread, and the kernels of an op are adjacent.
// finish() and restart() access the lists from the profiler's thread while other threads may be working. Therefore each event takes the
// recorder's lock, for which threads contend only in finish() and restart().

/// Records the work of a thread for a profiler.
class ThreadRecorder final : public backend::Observer {
 public:
  /// A launch, by the number that the tracer was given.
  struct Launch {
    std::uint32_t span, op, pass, module;
  };
  /// The recorded events. Times are nanoseconds of the steady clock, names are indices of `names`, modules are numbers of the ModuleTable.
  struct Record {
    std::vector<std::string> names;
    std::vector<Span> spans;
    std::vector<Collective> collectives;
    std::vector<MemorySample> memory;
    std::vector<Launch> launches;
  };

  /// Makes the recorder of the calling thread, number `index` of the profiler's.
  ThreadRecorder(std::shared_ptr<Profiler::Shared> shared, std::uint32_t index, std::string name);

  const std::string& name() const { return name_; }
  const Profiler::Shared& shared() const { return *shared_; }
  using Observer::unwatch;
  using Observer::watch;

  void begin_step();
  void end_step();
  /// Discards all but names and launches. May be called from any thread.
  void restart();
  /// Ends open spans and returns the record; later events are ignored. May be called from any thread.
  Record finish();

  void begin_kernel() override;
  void end_kernel(const char* op) override;
  void count_flops(double flops, bool is_product) override;
  void begin_in_place(const char* op) override;
  void end_op(const OpCall& call) override;
  void begin_module(const void* module, const char* type) override;
  void end_module() override;
  std::uint32_t module() override;
  void begin_backward(const Node& node) override;
  void end_backward(double bytes) override;
  void begin_pass(const char* name) override;
  void end_pass() override;
  void end_collective(const char* op, std::int64_t begin, std::int64_t end, std::int64_t waited, double bytes) override;

 private:
  /// A span that has not ended.
  struct Frame {
    std::uint32_t span, pass, module;
    std::uint32_t backward_op;     ///< name of the running node, whose ops are its inner parts; 0: none
    const void* object = nullptr;  ///< the innermost module's address
    const char* type = "";
  };
  /// A kernel whose op is not known yet.
  struct Pending {
    std::uint32_t span, launch;  ///< indices in Record::spans and, on a GPU, Record::launches
  };
  struct KnownModule {
    std::uint32_t number, name;
  };

  DeviceTracer* tracer() const { return shared_->tracer.get(); }
  std::uint32_t name_of(const char* name);
  KnownModule module_of(const void* module, const char* type);
  std::uint32_t add(Kind kind, std::uint32_t name, std::int64_t begin);
  void open(Kind kind, std::uint32_t name, Frame frame);
  void close();
  void close_op(std::uint32_t name, std::size_t count, double bytes);
  void flush();
  void sample_memory();

  const std::shared_ptr<Profiler::Shared> shared_;
  const std::uint32_t index_;
  const std::string name_;
  const std::thread::id thread_ = std::this_thread::get_id();

  std::mutex mutex_;  ///< guards the members below
  bool is_over_ = false;
  Record record_;
  std::vector<Frame> frames_;  ///< the open spans, after a frame that is none
  std::unordered_map<std::string, std::uint32_t> name_numbers_;
  std::unordered_map<const char*, std::uint32_t> literal_numbers_;  ///< a cache of names by address; the text at an address may change
  std::unordered_map<ModuleTable::Entry, KnownModule, ModuleTable::Hash> known_modules_;
  std::vector<Pending> pending_;
  const char* in_place_ = nullptr;  ///< the op of the next kernel
  int kernel_depth_ = 0;
};

}  // namespace tern::profile
