#pragma once
#include <CLI/CLI.hpp>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/program.h"
#include "io/json_log.h"
#include "tensor/tensor.h"

namespace tern::bench {

struct Times {
  double mean = 0, deviation = 0, median = 0;  ///< ms
};
Times statistics(std::vector<double> ms);

/// Each call by itself, with a wait after it, by the host's clock.
Times timed(Device device, int warmup, int repeats, const std::function<void()>& f);

/// Calls without a wait in between: what a training loop sees. Milliseconds a call.
double burst(Device device, int repeats, const std::function<void()>& f);

/// Each call by the device's clock, after `between`, whose time does not count. On a GPU nothing waits: while the device is
/// busy with `between`, the host queues the call, so that short calls are not measured by how fast they are queued.
Times timed_on_device(Device device, int warmup, int repeats, const std::function<void()>& between, const std::function<void()>& f);

/// Times calls that find the GPU's second cache full of something else.
class ColdTimer {
 public:
  /// Each figure takes about `seconds` seconds, of three calls at least.
  ColdTimer(Device device, double seconds);
  /// The median, ms.
  double measure(const std::function<void()>& f) const;

 private:
  Device device_;
  double seconds_;
  Tensor flush_;  ///< larger than the cache
};

/// 1e9 bytes a second of `bytes` in `ms`.
inline double gbs(std::int64_t bytes, double ms) { return static_cast<double>(bytes) / ms / 1e6; }

/// Copies on the device, by which kernels that move bytes are judged.
class CopyBaseline {
 public:
  /// The timer outlives it.
  CopyBaseline(Device device, const ColdTimer& timer) : device_(device), timer_(timer) {}
  /// Measures a copy that no cache holds, of float32; its ms. peak_gbs() then is its bandwidth.
  double measure_peak();
  /// Elements of that copy.
  std::int64_t peak_count() const { return std::int64_t{1} << (device_.type == DeviceType::cuda ? 30 : 25); }
  /// In 1e9 bytes a second, reading and writing counted.
  double peak_gbs() const { return peak_gbs_; }
  /// ms of a copy that moves as many bytes, launched and timed alike: the bandwidth that a small tensor can reach.
  double equal_ms(std::int64_t bytes);

 private:
  Device device_;
  const ColdTimer& timer_;
  double peak_gbs_ = 0;
  std::map<std::int64_t, double> equal_copies_;  ///< ms, by bytes
};

inline double rounded(double x, double scale) { return static_cast<double>(static_cast<std::int64_t>(x * scale + 0.5)) / scale; }

/// Sets a row's "device", cpu or cuda, and on the CPU "threads".
io::JsonObject& set_device(io::JsonObject& row, Device device);

/// `--json FILE`, to which a RowFile appends; `rows` says in the help which rows.
void add_json_option(CLI::App& command, std::string& path, const std::string& rows = "the rows");

/// An option whose default the help shows.
template <class T>
CLI::Option* add_value(CLI::App& command, const char* name, T& value, const std::string& help, const apps::Check& check, const char* type) {
  return command.add_option(name, value, help)->check(check)->type_name(type)->capture_default_str();
}

/// `--json FILE`: appends rows, one JSON object a line.
class RowFile {
 public:
  /// No path: rows go nowhere. Throws UsageError if the file cannot be opened, and does not wait for one who reads a FIFO.
  explicit RowFile(const std::string& path);
  /// Throws FileError.
  void add(const io::JsonObject& row);

 private:
  std::optional<io::JsonLog> log_;
};

}  // namespace tern::bench
