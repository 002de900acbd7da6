#pragma once
#include <utility>

#include "backend/device.h"

namespace tern::backend {

// The seam beneath Event: a handle belongs to one device.
void* create_event(Cpu, Device device, bool is_timed);
void* create_event(Cuda, Device device, bool is_timed);
void record_event(Cpu, void* event, Stream stream);
void record_event(Cuda, void* event, Stream stream);
/// Work queued on the stream, of any CUDA device, from now on waits for the event.
void wait_event(Cuda, const void* event, Stream stream);
/// Whether synchronize_event would not wait.
bool is_event_reached(Cpu, const void* event);
bool is_event_reached(Cuda, const void* event);
/// The host waits for the event.
void synchronize_event(Cpu, const void* event);
void synchronize_event(Cuda, const void* event);
double milliseconds_between(Cpu, const void* earlier, const void* later);
double milliseconds_between(Cuda, const void* earlier, const void* later);
void destroy_event(Cpu, void* event) noexcept;
void destroy_event(Cuda, void* event) noexcept;

/// A point in a stream's work, reached when all that was queued before it is done; other streams and the host can wait for it. The CPU
/// works while it queues, so that there an event is reached when it is recorded.
class Event {
 public:
  enum class Timing : bool { off, on };

  /// An event of one device's streams, not recorded yet: waits for it return at once.
  explicit Event(Device device, Timing timing = Timing::off);
  /// One that is recorded on the stream at once.
  explicit Event(Stream stream, Timing timing = Timing::off) : Event(stream.device, timing) { record(stream); }
  ~Event() { destroy(); }
  Event(Event&& other) noexcept : device_(other.device_), handle_(std::exchange(other.handle_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(handle_, other.handle_);
    return *this;
  }

  /// Moves the event to the end of what is queued on the stream, which is one of the event's device.
  void record(Stream stream);
  /// Work queued on the stream, of any device, from now on waits for the event. A stream of the CPU is the host: it waits here.
  void wait(Stream stream) const;
  /// The host waits for the event.
  void synchronize() const;
  /// Whether synchronize() would not wait.
  bool is_reached() const;
  /// The time between two timed events of one device. Waits for the later one.
  friend double milliseconds_between(const Event& earlier, const Event& later);

 private:
  void destroy() noexcept;

  Device device_;
  void* handle_ = nullptr;
};

/// Work queued on `stream` from now on waits for all that `other` has queued so far.
inline void wait_stream(Stream stream, Stream other) { Event(other).wait(stream); }

}  // namespace tern::backend
