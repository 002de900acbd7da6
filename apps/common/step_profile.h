#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "autodiff/anomaly.h"
#include "backend/device.h"
#include "common/training_run.h"
#include "nn/module.h"
#include "profile/memory_history.h"
#include "profile/profiler.h"

namespace tern::apps {

/// `--profile [STEPS]`: 0 without it, and default_profile_steps where no number stands behind it.
inline constexpr std::int64_t default_profile_steps = 3;
void add_profile_option(CLI::App& command, std::int64_t& steps, const std::string& written);

/// The files of a profile.
struct ProfileFiles {
  std::filesystem::path trace, op_table, memory;
};
/// A directory's trace.json, ops.md and memory.svg.
ProfileFiles profile_files(const std::filesystem::path& directory);
inline constexpr const char* profile_file_names = "trace.json, ops.md and memory.svg";

/// Of the steps of a warm-up, counted from 0, the one whose memory is drawn: the first has made the optimizer's moments.
inline constexpr std::int64_t memory_step = 1;

/// Writes the files, and a line that says so. The roofline is measured here, some tenths of a second. Throws FileError.
void write_profile(const profile::Profile& profile, const profile::MemoryHistory& memory, const ProfileFiles& files);

struct StepProfileOptions {
  std::int64_t steps = default_profile_steps;
  std::int64_t warmup = 3;  ///< steps before: memory is found, algorithms are chosen, graphs are captured
  Device device = cpu;
  const nn::Module* model = nullptr;      ///< of whose modules and memory the names are
  train::Optimizer* optimizer = nullptr;  ///< set by TrainingLoop
  std::string program = {};               ///< begins messages
  std::function<ProfileFiles()> files;    ///< asked for when they are written: a run may have moved
};

/// Of a training whose run and model outlive it.
StepProfileOptions profile_of_run(std::int64_t steps, const std::string& program, const TrainingRun& run, const nn::Module& model,
                                  Device device);

/// Profiles some steps of a training after its warm-up, in which the memory of one step is watched, writes the files, and is done. A file
/// that cannot be written is said once on stderr.
class StepProfile {
 public:
  explicit StepProfile(StepProfileOptions options);
  /// To be called around each step.
  void begin_step();
  void end_step();
  /// Writes what there is of a training that ended before; says so where that is nothing.
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

}  // namespace tern::apps
