#pragma once
#include <CLI/CLI.hpp>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/program.h"
#include "io/json_object.h"
#include "tensor/tensor.h"

namespace tern::bench {

using apps::add_value;

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

/// Measures calls with a cold L2 cache.
class ColdTimer {
 public:
  /// Each measurement takes about `seconds` seconds, and at least three calls.
  ColdTimer(Device device, double seconds);
  /// The median time in ms.
  double measure(const std::function<void()>& f) const;

 private:
  Device device_;
  double seconds_;
  Tensor flush_;  ///< larger than the cache
};

/// Bandwidth in GB/s (1e9 bytes a second) of `bytes` in `ms`.
inline double gbs(std::int64_t bytes, double ms) { return static_cast<double>(bytes) / ms / 1e6; }

/// Measured copies on the device, as the reference for memory-bound kernels.
class CopyBaseline {
 public:
  /// The timer has to outlive it.
  CopyBaseline(Device device, const ColdTimer& timer) : device_(device), timer_(timer) {}
  /// Measures a float32 copy larger than the caches, sets peak_gbs() to its bandwidth, and returns its ms.
  double measure_peak();
  /// Elements of the large copy.
  std::int64_t peak_count() const { return std::int64_t{1} << (device_.type == DeviceType::cuda ? 30 : 25); }
  /// Bandwidth of the large copy in GB/s, counting reads and writes.
  double peak_gbs() const { return peak_gbs_; }
  /// Time in ms of a copy that moves `bytes` bytes, measured in the same way: the reference for a small tensor.
  double equal_ms(std::int64_t bytes);

 private:
  Device device_;
  const ColdTimer& timer_;
  double peak_gbs_ = 0;
  std::map<std::int64_t, double> equal_copies_;  ///< ms, by bytes
};

inline double rounded(double x, double scale) { return static_cast<double>(static_cast<std::int64_t>(x * scale + 0.5)) / scale; }

/// Sets "device" (cpu or cuda) of a row, and "threads" on the CPU.
io::JsonObject& set_device(io::JsonObject& row, Device device);

/// Adds `--json FILE`, the file of a RowFile; `rows` is the name of its rows in the help.
void add_json_option(CLI::App& command, std::string& path, const std::string& rows = "the rows");

/// What measurements of single operators share.
struct TimingOptions : apps::Processors {
  std::string json;
  double seconds = 0.06;
};
/// Adds `--seconds`, `--json` and the processors' options.
void add_timing_options(CLI::App& command, TimingOptions& options);

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

}  // namespace tern::bench
