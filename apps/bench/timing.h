#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

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

inline double rounded(double x, double scale) { return static_cast<double>(static_cast<std::int64_t>(x * scale + 0.5)) / scale; }

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
