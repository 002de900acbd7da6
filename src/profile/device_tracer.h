#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "profile/profile.h"

namespace tern::profile {

/// Records of a GPU's kernels, copies and graphs; implemented over CUPTI (cupti.cpp).
class DeviceTracer {
 public:
  virtual ~DeviceTracer() = default;

  /// Work that this thread queues until pop() has this number. Nodes of a graph that is captured meanwhile keep it for every launch.
  virtual void push(std::uint64_t number) = 0;
  virtual void pop() = 0;
  /// A range of Nsight's timeline.
  virtual void begin_range(const char* name) = 0;
  virtual void end_range() = 0;

  struct Work {
    DeviceRecord record;  ///< times in nanoseconds of std::chrono::steady_clock
    std::uint64_t number = 0;
  };
  /// All that is done so far, and was not collected.
  virtual std::vector<Work> collect() = 0;
};

/// Null where the build has no CUPTI, or it does not answer.
std::unique_ptr<DeviceTracer> make_device_tracer();

}  // namespace tern::profile
