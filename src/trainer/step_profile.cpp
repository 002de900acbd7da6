#include "trainer/step_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "io/files.h"
#include "ops/factory.h"
#include "ops/matmul.h"
#include "profile/memory_history.h"
#include "profile/op_table.h"
#include "profile/profiler.h"
#include "text/unicode.h"
#include "trainer/run.h"
#include "trainer/terminal.h"

namespace tern::train {

/// The minimum of several measured times of f, in seconds.
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

/// Measures the roofline in float32: a square GEMM, and a copy larger than the caches.
static profile::Roofline measure_roofline(Device device) {
  const NoGrad unrecorded;
  const bool on_gpu = device.type == DeviceType::cuda;
  const std::int64_t n = on_gpu ? 8192 : 1024, count = std::int64_t{1} << (on_gpu ? 28 : 25);
  const Tensor a = ones({n, n}, DType::f32, device), x = ones({count}, DType::f32, device);
  const auto size = static_cast<double>(n);
  const double product = least_seconds(device, [&] { matmul(a, a); }), copy = least_seconds(device, [&] { clone(x); });
  return {.flops = 2 * size * size * size / product, .bytes = 8 * static_cast<double>(count) / copy};
}

void write_profile(const profile::Profile& profile, const profile::MemoryHistory& memory, const std::filesystem::path& directory) {
  const std::filesystem::path trace = directory / "trace.json", ops = directory / "ops.md", picture = directory / "memory.svg";
  profile::write_chrome_trace(profile, trace);
  io::write_file_atomically(ops, profile::op_table(profile, measure_roofline(profile.device)));
  io::write_file_atomically(picture, profile::to_svg(memory, "Memory of a training step, " + to_string(memory.device())));
  const std::int64_t steps = std::max<std::int64_t>(profile.steps(), 1);
  write_output(fmt::format("profile  {} step{} of {:.3f} ms: {}, {} and {}\n", steps, steps == 1 ? "" : "s",
                           static_cast<double>(profile.wall()) / 1e6 / static_cast<double>(steps), text::printable(trace.string()),
                           text::printable(ops.string()), text::printable(picture.string())));
}

StepProfile::StepProfile(StepProfileOptions options) : options_(std::move(options)) {
  // The profiler has to see the warm-up, in which graphs are captured and their kernels get names.
  if (options_.device.type == DeviceType::cuda) profiler_ = profiler();
}

std::unique_ptr<profile::Profiler> StepProfile::profiler() const {
  return std::make_unique<profile::Profiler>(
      profile::ProfilerOptions{.names = nn::module_names(*options_.model), .device = options_.device});
}

void StepProfile::begin_step() {
  if (is_done_) return;
  if (step_ == memory_step) {
    memory_ = std::make_unique<profile::MemoryHistory>(options_.device, nn::module_names(*options_.model));
    memory_->name(*options_.model);  // names gradients of the previous step, which this step may free
  }
  if (step_++ == options_.warmup) {
    if (profiler_) profiler_->restart();
    else profiler_ = profiler();
  }
  if (step_ > options_.warmup) profiler_->begin_step();
}

void StepProfile::end_memory() {
  memory_->name(*options_.model);
  if (options_.optimizer) memory_->name(*options_.optimizer);
  memory_->end();
}

void StepProfile::end_step() {
  if (is_done_) return;
  if (step_ == memory_step + 1) end_memory();
  if (step_ <= options_.warmup) return;
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
  write_message(fmt::format("{}: --profile: the training ended within the {} steps of its warm-up, and nothing was profiled\n",
                            options_.program, options_.warmup));
}

void StepProfile::write() {
  is_done_ = true;
  const profile::Profile profile = profiler_->finish();
  profiler_.reset();
  Attempt attempt(options_.program);
  attempt([&] { write_profile(profile, *memory_, options_.directory()); });
  memory_.reset();
}

}  // namespace tern::train
