#include "bench/timing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "backend/stream.h"
#include "common/program.h"
#include "common/quantile.h"
#include "io/files.h"
#include "ops/factory.h"
#include "ops/random.h"
#include "tensor/context.h"

namespace tern::bench {

Times statistics(std::vector<double> ms) {
  Times result;
  for (double t : ms) result.mean += t / static_cast<double>(ms.size());
  for (double t : ms) result.deviation += (t - result.mean) * (t - result.mean) / static_cast<double>(ms.size());
  result.deviation = std::sqrt(result.deviation);
  result.median = apps::quantile(std::move(ms), 0.5);
  return result;
}

Times timed(Device device, int warmup, int repeats, const std::function<void()>& f) {
  for (int i = 0; i < warmup; ++i) f();
  synchronize(device);
  std::vector<double> ms;
  for (int i = 0; i < repeats; ++i) {
    const double start = train::seconds_now();
    f();
    synchronize(device);
    ms.push_back((train::seconds_now() - start) * 1e3);
  }
  return statistics(std::move(ms));
}

double burst(Device device, int repeats, const std::function<void()>& f) {
  synchronize(device);
  const double start = train::seconds_now();
  for (int i = 0; i < repeats; ++i) f();
  synchronize(device);
  return (train::seconds_now() - start) * 1e3 / repeats;
}

Times timed_on_device(Device device, int warmup, int repeats, const std::function<void()>& between, const std::function<void()>& f) {
  const Stream stream = context().stream(device);
  for (int i = 0; i < warmup; ++i) f();
  std::vector<backend::Event> starts, ends;
  for (int i = 0; i < repeats; ++i) {
    between();
    starts.emplace_back(stream, backend::Event::Timing::on);
    f();
    ends.emplace_back(stream, backend::Event::Timing::on);
  }
  std::vector<double> ms;
  for (std::size_t i = 0; i < starts.size(); ++i) ms.push_back(milliseconds_between(starts[i], ends[i]));
  return statistics(std::move(ms));
}

ColdTimer::ColdTimer(Device device, double seconds) : device_(device), seconds_(seconds) {
  if (device.type == DeviceType::cuda) flush_ = empty({std::int64_t{1} << 26}, DType::f32, device);
}

double ColdTimer::measure(const std::function<void()>& f) const {
  const auto between = [&] {
    if (flush_.defined()) zero_(flush_);
  };
  const double once = timed_on_device(device_, 2, 3, between, f).median;
  const int repeats = static_cast<int>(std::clamp(seconds_ * 1e3 / std::max(once, 1e-3), 3.0, 200.0));
  return timed_on_device(device_, 0, repeats, between, f).median;
}

io::JsonObject& set_device(io::JsonObject& row, Device device) {
  row.set("device", device.type == DeviceType::cpu ? "cpu" : "cuda");
  if (device.type == DeviceType::cpu) row.set("threads", num_threads());
  return row;
}

double CopyBaseline::measure_peak() {
  const Tensor x = randn({peak_count()}, 0, 1, DType::f32, device_), y = empty_like(x);
  const double ms = timer_.measure([&] { copy_(y, x); });
  peak_gbs_ = gbs(8 * peak_count(), ms);
  return ms;
}

double CopyBaseline::equal_ms(std::int64_t bytes) {
  double& ms = equal_copies_[bytes];
  if (ms == 0) {
    const Tensor x = zeros({bytes / 2}, DType::u8, device_), y = empty_like(x);
    ms = timer_.measure([&] { copy_(y, x); });
  }
  return ms;
}

void add_json_option(CLI::App& command, std::string& path, const std::string& rows) {
  command.add_option("--json", path, "append " + rows + " to this file, one JSON object a line")->type_name("FILE");
}

void add_timing_options(CLI::App& command, TimingOptions& options) {
  add_value(command, "--seconds", options.seconds, "how long each figure is measured, about", apps::real_number(1e-6, 3600), "X");
  add_json_option(command, options.json);
  apps::add_processor_options(command, options);
}

RowFile::RowFile(const std::string& path) try {
  if (!path.empty()) log_.emplace(path);
} catch (const io::FileError& error) {
  throw apps::UsageError(fmt::format("--json {}", error.what()));
}

void RowFile::add(const io::JsonObject& row) {
  if (log_) log_->write(row);
}

}  // namespace tern::bench
