#include "backend/event.h"

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
  if (device_.type == DeviceType::cuda) on_cuda("event", device_, [&](auto dev) { wait_event(dev, handle_, stream); });
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

}  // namespace tern::backend
