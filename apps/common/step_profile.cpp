#include "common/step_profile.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "common/attempt.h"
#include "common/output.h"
#include "common/program.h"
#include "io/atomic_file.h"
#include "ops/copy.h"
#include "ops/factory.h"
#include "ops/matmul.h"
#include "profile/op_table.h"
#include "profile/trace.h"
#include "text/printable.h"

namespace tern::apps {

void add_profile_option(CLI::App& command, std::int64_t& steps, const std::string& written) {
  const Check check = whole_number(1, 10'000);
  command
      .add_option_function<std::string>(
          "--profile",
          [&steps](const std::string& text) {
            steps = default_profile_steps;
            std::from_chars(text.data(), text.data() + text.size(), steps);
          },
          "profile that many steps after the first ones (" + std::to_string(default_profile_steps) + "), and write " + written)
      ->expected(0, 1)
      ->check([check](const std::string& text) { return text.empty() ? std::string() : check(text); })
      ->type_name("[STEPS]");
}

/// The least of some times of f, in seconds.
static double least_seconds(Device device, const std::function<void()>& f) {
  double least = 0;
  for (int i = 0; i < 5; ++i) {
    synchronize(device);
    const double start = seconds_now();
    f();
    synchronize(device);
    const double seconds = seconds_now() - start;
    if (i > 0) least = i == 1 ? seconds : std::min(least, seconds);
  }
  return least;
}

/// Rates that this machine reaches now, in float32: of a square product and of a copy that no cache holds.
static profile::Roofline measure_roofline(Device device) {
  const NoGrad unrecorded;
  const bool on_gpu = device.type == DeviceType::cuda;
  const std::int64_t n = on_gpu ? 8192 : 1024, count = std::int64_t{1} << (on_gpu ? 28 : 25);
  const Tensor a = ones({n, n}, DType::f32, device), x = ones({count}, DType::f32, device);
  const auto size = static_cast<double>(n);
  const double product = least_seconds(device, [&] { matmul(a, a); }), copy = least_seconds(device, [&] { clone(x); });
  return {.flops = 2 * size * size * size / product, .bytes = 8 * static_cast<double>(count) / copy};
}

void write_profile(const profile::Profile& profile, const ProfileFiles& files) {
  profile::write_chrome_trace(profile, files.trace);
  io::write_file_atomically(files.op_table, profile::op_table(profile, measure_roofline(profile.device)));
  say("profile  {} of {:.3f} ms: {} and {}\n", counted(std::max<std::int64_t>(profile.steps(), 1), "step"),
      static_cast<double>(profile.wall()) / 1e6 / static_cast<double>(std::max<std::int64_t>(profile.steps(), 1)),
      text::printable(files.trace.string()), text::printable(files.op_table.string()));
}

StepProfileOptions profile_of_run(std::int64_t steps, const std::string& program, const TrainingRun& run, const nn::Module& model,
                                  Device device) {
  return {.steps = steps, .device = device, .names = nn::module_names(model), .program = program, .files = [&run] {
            return ProfileFiles{run.directory().trace(), run.directory().op_table()};
          }};
}

StepProfile::StepProfile(StepProfileOptions options) : options_(std::move(options)) {
  // A GPU's graphs are captured in the warm-up: their kernels get their names there.
  if (options_.device.type == DeviceType::cuda)
    profiler_ = std::make_unique<profile::Profiler>(profile::ProfilerOptions{.names = options_.names, .device = options_.device});
}

void StepProfile::begin_step() {
  if (is_done_) return;
  if (step_++ == options_.warmup) {
    if (profiler_) profiler_->restart();
    else profiler_ = std::make_unique<profile::Profiler>(profile::ProfilerOptions{.names = options_.names, .device = options_.device});
  }
  if (step_ > options_.warmup) profiler_->begin_step();
}

void StepProfile::end_step() {
  if (is_done_ || step_ <= options_.warmup) return;
  if (step_ == options_.warmup + options_.steps) {
    synchronize(options_.device);
    profiler_->end_step();
    write();
  } else {
    profiler_->end_step();
  }
}

void StepProfile::finish() {
  if (is_done_) return;
  if (step_ > options_.warmup) {
    write();
    return;
  }
  is_done_ = true;
  profiler_.reset();
  write_message(options_.program + ": --profile: the training ended within the " + counted(options_.warmup, "step") +
                " of its warm-up, and nothing was profiled\n");
}

void StepProfile::write() {
  is_done_ = true;
  const profile::Profile profile = profiler_->finish();
  profiler_.reset();
  Attempt attempt(options_.program);
  attempt([&] { write_profile(profile, options_.files()); });
}

}  // namespace tern::apps
