#include "backend/stream.h"

#include <atomic>
#include <memory>
#include <mutex>

namespace tern::backend {

Event::Event(Device device, Timing timing)
    : device_(device), handle_(with_backend(device, [&](auto dev) { return create_event(dev, device, timing == Timing::on); })) {}

void Event::destroy() noexcept {
  if (handle_) with_backend(device_, [&](auto dev) { destroy_event(dev, handle_); });
}

void Event::record(Stream stream) {
  if (stream.device != device_) fail("event", "expected a stream of " + to_string(device_) + " but got one of " + to_string(stream.device));
  with_backend(device_, [&](auto dev) { record_event(dev, handle_, stream); });
}

void Event::wait(Stream stream) const {
  if (stream.device.type == DeviceType::cpu) return synchronize();
  // An event of the CPU is already reached.
  if constexpr (built_with_cuda)
    if (device_.type == DeviceType::cuda) wait_event(Cuda{}, handle_, stream);
}

void Event::synchronize() const {
  with_backend(device_, [&](auto dev) { synchronize_event(dev, handle_); });
}

bool Event::is_reached() const {
  return with_backend(device_, [&](auto dev) { return is_event_reached(dev, handle_); });
}

double milliseconds_between(const Event& earlier, const Event& later) {
  if (earlier.device_ != later.device_)
    fail("event", "expected two events of one device but got " + to_string(earlier.device_) + " and " + to_string(later.device_));
  return with_backend(later.device_, [&](auto dev) { return milliseconds_between(dev, earlier.handle_, later.handle_); });
}

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
