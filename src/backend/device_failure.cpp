#include "backend/device_failure.h"

#include <atomic>
#include <memory>
#include <mutex>

namespace tern::backend {

namespace {

/// Failure of a device. Waits and launches only read the flag.
struct Failure {
  std::atomic<bool> is_there{false};
  std::mutex mutex;
  std::string message;
};

Failure* failure_of(Device device) {
  static Failure failures[max_cuda_devices];
  const bool has_one = device.type == DeviceType::cuda && device.index >= 0 && device.index < max_cuda_devices;
  return has_one ? &failures[device.index] : nullptr;  // the CPU computes within the call, which throws by itself
}

}  // namespace

void mark_failed(Device device, std::string message) {
  Failure* const failure = failure_of(device);
  if (!failure) return;
  const std::lock_guard lock(failure->mutex);
  if (failure->is_there) return;
  failure->message = std::move(message);
  failure->is_there = true;
}

void clear_failure(Device device) {
  Failure* const failure = failure_of(device);
  if (!failure) return;
  const std::lock_guard lock(failure->mutex);
  failure->is_there = false;
}

void throw_if_failed(Device device) {
  Failure* const failure = failure_of(device);
  if (!failure || !failure->is_there) [[likely]]
    return;
  const std::lock_guard lock(failure->mutex);
  if (failure->is_there) throw Error(failure->message);
}

}  // namespace tern::backend
