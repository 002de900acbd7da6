#include "bench/timing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "backend/stream.h"
#include "common/launcher.h"
#include "common/program.h"
#include "io/files.h"
#include "ops/factory.h"
#include "ops/matmul.h"
#include "ops/random.h"
#include "parallel/store.h"
#include "tensor/context.h"
#include "trainer/terminal.h"

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

Product measure_product(Device device, DType dtype) {
  const NoGrad unrecorded;
  const std::int64_t side = device.type == DeviceType::cuda ? 8192 : 1024;
  const Tensor a = cast(randn({side, side}, 0, 1, DType::f32, device), dtype),
               b = cast(randn({side, side}, 0, 1, DType::f32, device), dtype);
  const double ms = timed_on_device(device, 2, 7, [] {}, [&] { matmul(a, b); }).median;
  return {side, ms, 2e-9 * static_cast<double>(side * side * side) / ms};
}

OpTimer::OpTimer(const TimingOptions& options) : device_(apps::use(options)), seconds_(options.seconds), rows_(options.json) {
  if (device_.type == DeviceType::cuda) flush_ = empty({std::int64_t{1} << 26}, DType::f32, device_);
}

double OpTimer::measure(const std::function<void()>& f) const {
  const auto between = [&] {
    if (flush_.defined()) zero_(flush_);
  };
  const double once = timed_on_device(device_, 2, 3, between, f).median;
  const int repeats = static_cast<int>(std::clamp(seconds_ * 1e3 / std::max(once, 1e-3), 3.0, 200.0));
  return timed_on_device(device_, 0, repeats, between, f).median;
}

double OpTimer::measure_peak() {
  const Tensor x = randn({peak_count()}, 0, 1, DType::f32, device_), y = empty_like(x);
  const double ms = measure([&] { copy_(y, x); });
  peak_gbs_ = gbs(8 * peak_count(), ms);
  return ms;
}

double OpTimer::equal_ms(std::int64_t bytes) {
  double& ms = equal_copies_[bytes];
  if (ms == 0) {
    const Tensor x = zeros({bytes / 2}, DType::u8, device_), y = empty_like(x);
    ms = measure([&] { copy_(y, x); });
  }
  return ms;
}

io::JsonObject OpTimer::row(const std::string& op, const std::vector<std::int64_t>& shape, const std::string& mode, const char* impl,
                            double ms) const {
  io::JsonObject row;
  row.set("op", op).set("shape", shape).set("dtype", float_modes().at(mode).second).set("impl", impl);
  return set_device(row, device_).set("ms", rounded(ms, 1e5));
}

io::JsonObject& set_device(io::JsonObject& row, Device device) {
  row.set("device", device.type == DeviceType::cpu ? "cpu" : "cuda");
  if (device.type == DeviceType::cpu) row.set("threads", num_threads());
  return row;
}

void add_json_option(CLI::App& command, std::string& path, const std::string& rows) {
  command.add_option("--json", path, "append " + rows + " to this file, one JSON object a line")->type_name("FILE");
}

void add_list(CLI::App& command, const char* name, std::string& value, const std::vector<std::string>& of, const std::string& more) {
  add_value(command, name, value, fmt::format("of {}{}", fmt::join(of, ", "), more), list_of(apps::one_of(of)), "LIST");
}

void add_timing_options(CLI::App& command, TimingOptions& options) {
  add_value(command, "--seconds", options.seconds, "how long each figure is measured, about", apps::real_number(1e-6, 3600), "X");
  add_json_option(command, options.json);
  apps::add_processor_options(command, options);
}

std::vector<io::JsonObject> read_rows(const std::string& file) {
  std::istringstream text(io::read_file(file, std::size_t{256} << 20));
  std::vector<io::JsonObject> rows;
  std::int64_t number = 0;
  for (std::string line; std::getline(text, line);)
    if (++number; !line.empty()) rows.push_back(io::JsonObject::parse(line, fmt::format("{}:{}", file, number)));
  return rows;
}

RowFile::RowFile(const std::string& path) try {
  if (!path.empty()) log_.emplace(path);
} catch (const io::FileError& error) {
  throw apps::UsageError(fmt::format("--json {}", error.what()));
}

void RowFile::add(const io::JsonObject& row) {
  if (log_) log_->write(row);
}

namespace {

constexpr const char* started = "TERN_BENCH_RANK_ROWS";

/// The command line of this process.
std::vector<std::string> own_command() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\0', begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  if (words.empty()) throw std::runtime_error("/proc/self/cmdline could not be read, which --ranks needs: use tern-launch");
  // The path of the executable, as the first word may be relative to PATH.
  words[0] = std::filesystem::read_symlink("/proc/self/exe").string();
  return words;
}

}  // namespace

void start_ranks(int ranks, const std::string& rows) {
  apps::LaunchOptions options;
  options.command = own_command();
  options.processes = ranks;
  options.name = "tern-bench";
  options.variables = {{started, rows}};
  const int code = apps::launch(options);
  if (const int signal = train::stop_signal(); signal != 0 && code == 128 + signal)
    throw train::Stopped(signal, "stopped by " + train::signal_name(signal));
  const std::string message = fmt::format("the measurement of {} ranks ended with exit code {}", ranks, code);
  if (code == 2) throw apps::UsageError(message);
  if (code != 0) throw std::runtime_error(message);
}

bool is_started_rank() { return std::getenv(started) != nullptr; }

std::optional<std::string> rows_for_starter() {
  const char* const file = std::getenv(started);
  if (!file || *file == '\0') return {};
  return file;
}

parallel::LaunchEnvironment launched() { return parallel::launch_environment().value_or(parallel::LaunchEnvironment{}); }

void require_no_launcher() {
  if (launched().size > 1)
    throw apps::UsageError(fmt::format("--ranks: a launcher has started {} processes already: leave it out", launched().size));
}

std::vector<double> largest(parallel::ProcessGroup& group, std::vector<double> values) {
  if (group.size() == 1) return values;
  const NoGrad unrecorded;
  const Tensor x = Tensor::from(values, {static_cast<std::int64_t>(values.size())}, group.device());
  group.all_reduce(x, parallel::ReduceOp::max).wait();
  return x.to_vector<double>();
}

Times slowest(parallel::ProcessGroup& group, const Times& times) {
  const std::vector<double> all = largest(group, {times.mean, times.deviation, times.median});
  return {.mean = all[0], .deviation = all[1], .median = all[2]};
}

}  // namespace tern::bench
