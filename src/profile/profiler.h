#pragma once
#include <memory>
#include <string>
#include <unordered_map>

#include "autodiff/anomaly.h"
#include "backend/observer.h"
#include "profile/profile.h"

namespace tern::profile {

class DeviceTracer;

/// While it lives, what follows on this thread belongs to a pass: "forward", "communication", or a name of the user's. backward(),
/// train::apply() and checkpoint() open theirs. `name` outlives the profiler.
using Pass = backend::PassScope;

struct ProfilerOptions {
  ModuleNames names = {};  ///< nn::module_names(model); without them a module's path is of types
  Device device = cpu;     ///< that the work is for
};

/// Watches this thread's work from here on, until finish() or its end. Several may watch at a time. To be ended by the
/// thread that made it. On a CUDA device it also asks CUPTI for kernels, copies and fills, where the build has CUPTI, and opens NVTX ranges
/// for Nsight; kernels of a graph have their ops' names if it was captured under the profiler.
class Profiler final : public backend::Observer {
 public:
  explicit Profiler(ProfilerOptions options = {});
  ~Profiler() override;
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  /// Marks a training step.
  void begin_step();
  void end_step();
  /// Forgets all spans so far, and begins anew, after a warm-up. Names of a captured graph's kernels stay. To be called outside any scope.
  void restart();
  /// Waits for the device, stops, and gives what it saw; scopes that are open end now.
  Profile finish();

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

 private:
  /// A span that has not ended.
  struct Frame {
    std::uint32_t span, pass, module;
    std::uint32_t backward_op;     ///< the name of the node that runs, of which ops within are parts; 0: none
    const void* object = nullptr;  ///< the innermost module
  };
  /// A kernel whose op is not known yet.
  struct Pending {
    std::uint32_t span;
    std::uint64_t number;  ///< of its launch, from 1, on a GPU
  };
  /// What a number that the tracer knows stands for.
  struct Launch {
    std::uint32_t span, op, pass, module;
  };
  struct ModuleKey {
    const void* module;
    const char* type;
    std::uint32_t outer;
    bool operator==(const ModuleKey&) const = default;
  };
  struct ModuleHash {
    std::size_t operator()(const ModuleKey& key) const;
  };

  static std::int64_t clock();
  std::int64_t now() const { return clock() - started_; }
  std::uint32_t name_of(const char* name);
  std::uint32_t module_of(const void* module, const char* type);
  std::uint32_t add(Kind kind, std::uint32_t name, std::int64_t begin);
  void open(Kind kind, std::uint32_t name, Frame frame);
  void close();
  void close_op(std::uint32_t name, std::size_t count, double bytes);
  void flush();
  void sample_memory();
  void stop();

  ProfilerOptions options_;
  bool in_force_ = true;
  std::int64_t started_ = 0;  ///< on the steady clock
  Profile profile_;
  std::vector<Frame> frames_;  ///< the first one is no span
  std::unordered_map<std::string, std::uint32_t> name_numbers_;
  std::unordered_map<const char*, std::uint32_t> literal_numbers_;  ///< names by address; what stands there may change
  std::unordered_map<ModuleKey, std::uint32_t, ModuleHash> module_numbers_;
  std::vector<Pending> pending_;
  const char* in_place_ = nullptr;  ///< the op that the next kernel is
  int kernel_depth_ = 0;
  std::unique_ptr<DeviceTracer> tracer_;  ///< null on the CPU
  std::vector<Launch> launches_;
};

}  // namespace tern::profile
