#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "profile/profile.h"

namespace tern::profile {

/// Records the kernels, copies and fills of GPUs. Implemented over CUPTI (cupti.cpp).
class DeviceTracer {
 public:
  virtual ~DeviceTracer() = default;

  /// Labels the work that this thread queues until pop() with a number. Nodes of a graph that is captured meanwhile keep the number for
  /// every launch.
  virtual void push(std::uint64_t number) = 0;
  virtual void pop() = 0;
  /// Opens a range in Nsight's timeline (NVTX); end_range() closes it.
  virtual void begin_range(const char* name) = 0;
  virtual void end_range() = 0;

  struct Work {
    DeviceRecord record;       ///< times in nanoseconds of std::chrono::steady_clock
    std::uint64_t number = 0;  ///< of push()
  };
  /// Returns the work that has ended since the last call.
  virtual std::vector<Work> collect() = 0;
};

/// Null in a build without CUPTI, and if CUPTI fails or another tool uses it.
std::unique_ptr<DeviceTracer> make_device_tracer();

}  // namespace tern::profile
