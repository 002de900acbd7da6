#include "bench/ranks.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "common/launcher.h"
#include "common/program.h"
#include "parallel/launch_environment.h"
#include "tensor/context.h"
#include "trainer/stop.h"

namespace tern::bench {

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

static parallel::LaunchEnvironment environment() { return parallel::launch_environment().value_or(parallel::LaunchEnvironment{}); }
int launched_ranks() { return environment().size; }
int launched_rank() { return environment().rank; }
int local_ranks() { return environment().local_size; }

void require_no_launcher() {
  if (launched_ranks() > 1)
    throw apps::UsageError(fmt::format("--ranks: a launcher has started {} processes already: leave it out", launched_ranks()));
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
