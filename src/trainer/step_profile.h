#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "backend/device.h"
#include "nn/module.h"
#include "profile/memory_history.h"
#include "profile/profiler.h"
#include "train/optimizer.h"

namespace tern::train {

/// Index of the warm-up step whose memory is drawn. Not the first one, which allocates the optimizer's moments.
inline constexpr std::int64_t memory_step = 1;

/// Writes trace.json, ops.md and memory.svg in a directory and prints their names. Measures the roofline, which takes some tenths of a
/// second. Throws FileError.
void write_profile(const profile::Profile& profile, const profile::MemoryHistory& memory, const std::filesystem::path& directory);

struct StepProfileOptions {
  std::int64_t steps = 3;
  std::int64_t warmup = 3;  ///< steps before, in which memory is allocated, algorithms are chosen and graphs are captured
  Device device = cpu;
  const nn::Module* model = nullptr;  ///< gives the names of modules and memory
  Optimizer* optimizer = nullptr;
  std::string program = {};                          ///< prefix of messages
  std::function<std::filesystem::path()> directory;  ///< of the files, called when they are written, as a run may have moved
};

/// Profiles some steps of a training after a warm-up, records the memory of one step of the warm-up, and writes the files. A failure to
/// write is reported on stderr.
class StepProfile {
 public:
  explicit StepProfile(StepProfileOptions options);
  /// To be called around each step.
  void begin_step();
  void end_step();
  /// Writes the profile of a training that ended early, or reports that there is none.
  void finish();

 private:
  std::unique_ptr<profile::Profiler> profiler() const;
  void end_memory();
  void write();

  StepProfileOptions options_;
  std::int64_t step_ = 0;
  std::unique_ptr<profile::MemoryHistory> memory_;
  std::unique_ptr<profile::Profiler> profiler_;
  bool is_done_ = false;
};

}  // namespace tern::train
