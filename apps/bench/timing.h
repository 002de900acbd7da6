#pragma once
#include <CLI/CLI.hpp>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/program.h"
#include "io/json_object.h"
#include "parallel/process_group.h"
#include "parallel/store.h"
#include "tensor/dtype.h"
#include "tensor/tensor.h"

// Measuring: times, the rows that they are written to, and several processes.
namespace tern::bench {

using apps::add_value, apps::words, apps::numbers, apps::reals, apps::list_of;

struct Times {
  double mean = 0, deviation = 0, median = 0;  ///< ms
};
Times statistics(std::vector<double> ms);

/// Measures single calls by the host's clock, with a wait after each.
Times timed(Device device, int warmup, int repeats, const std::function<void()>& f);

/// Measures calls without waits in between, as in a training loop. Milliseconds a call.
double burst(Device device, int repeats, const std::function<void()>& f);

/// Measures calls by the device's clock, each after a call of `between`, which is not counted. On a GPU there is no wait: the host queues
/// the call while the device executes `between`, so that launch overhead does not count.
Times timed_on_device(Device device, int warmup, int repeats, const std::function<void()>& between, const std::function<void()>& f);

/// A measured product of two square matrices, the reference for what computes: of 8192 rows on a GPU, of 1024 on a CPU.
struct Product {
  std::int64_t side;
  double ms, tflops;
};
Product measure_product(Device device, DType dtype);

/// Bandwidth in GB/s (1e9 bytes a second) of `bytes` in `ms`.
inline double gbs(std::int64_t bytes, double ms) { return static_cast<double>(bytes) / ms / 1e6; }

inline double rounded(double x, double scale) { return static_cast<double>(static_cast<std::int64_t>(x * scale + 0.5)) / scale; }

/// Sets "device" (cpu or cuda) of a row, and "threads" on the CPU.
io::JsonObject& set_device(io::JsonObject& row, Device device);

/// Adds `--json FILE`, the file of a RowFile; `rows` is the name of its rows in the help.
void add_json_option(CLI::App& command, std::string& path, const std::string& rows = "the rows");

/// Floating dtypes by their names in flags, with their names in rows.
inline const std::map<std::string, std::pair<DType, const char*>>& float_modes() {
  static const auto& modes = *new std::map<std::string, std::pair<DType, const char*>>{{"fp32", {DType::f32, "float32"}},
                                                                                       {"fp16", {DType::f16, "float16"}},
                                                                                       {"bf16", {DType::bf16, "bfloat16"}},
                                                                                       {"fp64", {DType::f64, "float64"}}};
  return modes;
}

/// Reads the rows of a file, one JSON object a line. Throws FileError, which names the line.
std::vector<io::JsonObject> read_rows(const std::string& file);

/// Appends rows to a file, one JSON object a line.
class RowFile {
 public:
  /// Opens a file; "": rows are dropped. Throws UsageError if it cannot be opened, or is a FIFO without a reader.
  explicit RowFile(const std::string& path);
  /// Appends a row. Throws FileError.
  void add(const io::JsonObject& row);

 private:
  std::optional<io::JsonLog> log_;
};

/// Adds an option for a list of some of these words; the help is "of " with the words, and `more`.
void add_list(CLI::App& command, const char* name, std::string& value, const std::vector<std::string>& of, const std::string& more = "");
/// Measurements of single operators: the parts that all of them share.
struct TimingOptions : apps::Processors {
  std::string json;
  double seconds = 0.06;
};
/// Adds `--seconds`, `--json` and the processors' options.
void add_timing_options(CLI::App& command, TimingOptions& options);

/// Measures single operators on a device: calls with a cold L2 cache, beside copies, the reference for what moves memory.
class OpTimer {
 public:
  explicit OpTimer(const TimingOptions& options);

  Device device() const { return device_; }
  /// The median time of a call in ms. A measurement takes about options.seconds, and at least three calls.
  double measure(const std::function<void()>& f) const;
  /// Measures a float32 copy larger than the caches, sets peak_gbs() to its bandwidth, and returns its ms.
  double measure_peak();
  /// Elements of the large copy.
  std::int64_t peak_count() const { return std::int64_t{1} << (device_.type == DeviceType::cuda ? 30 : 25); }
  /// Bandwidth of the large copy in GB/s, counting reads and writes.
  double peak_gbs() const { return peak_gbs_; }
  /// Time in ms of a copy that moves `bytes` bytes, measured in the same way: the reference for a small tensor.
  double equal_ms(std::int64_t bytes);
  /// A row of a measured op.
  io::JsonObject row(const std::string& op, const std::vector<std::int64_t>& shape, const std::string& mode, const char* impl,
                     double ms) const;

 private:
  Device device_;
  double seconds_;
  Tensor flush_;  ///< larger than the cache
  double peak_gbs_ = 0;
  std::map<std::int64_t, double> equal_copies_;  ///< ms, by bytes

 protected:
  RowFile rows_;  ///< last, so that a device that is not there is reported first
};

// Measurements in several processes, which a launcher has started, or which `--ranks` starts.

/// Runs this program's command line in `ranks` processes, as tern-launch would. They write their rows to the file `rows` if it is not
/// empty: rows_for_starter. Throws Stopped if they were asked to stop, UsageError or std::runtime_error if one failed, which has printed
/// the reason.
void start_ranks(int ranks, const std::string& rows = "");
/// True in a process that start_ranks has started, although its command line has --ranks.
bool is_started_rank();
/// The file for rows that start_ranks has given to this process; none if there is none.
std::optional<std::string> rows_for_starter();

/// The launch that this process belongs to; that of a single process if there is none.
parallel::LaunchEnvironment launched();
/// Throws UsageError if a launcher has started several processes, each of which would start more for --ranks.
void require_no_launcher();

/// The element-wise maximum of all ranks' values; for a single process the values.
std::vector<double> largest(parallel::ProcessGroup& group, std::vector<double> values);
/// The times of the slowest rank.
Times slowest(parallel::ProcessGroup& group, const Times& times);

}  // namespace tern::bench
