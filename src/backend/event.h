#pragma once
#include <utility>

#include "backend/device.h"

namespace tern::backend {

// Backend functions of Event: a handle belongs to one device.
void* create_event(Cpu, Device device, bool is_timed);
void* create_event(Cuda, Device device, bool is_timed);
void record_event(Cpu, void* event, Stream stream);
void record_event(Cuda, void* event, Stream stream);
/// Makes work queued on the stream, of any CUDA device, from now on wait for the event.
void wait_event(Cuda, const void* event, Stream stream);
/// True if synchronize_event would not wait.
bool is_event_reached(Cpu, const void* event);
bool is_event_reached(Cuda, const void* event);
/// Blocks the host until the event is reached.
void synchronize_event(Cpu, const void* event);
void synchronize_event(Cuda, const void* event);
double milliseconds_between(Cpu, const void* earlier, const void* later);
double milliseconds_between(Cuda, const void* earlier, const void* later);
void destroy_event(Cpu, void* event) noexcept;
void destroy_event(Cuda, void* event) noexcept;

/// Point in a stream's work that is reached when everything queued before is done; other streams and the host can wait for it. The CPU
/// executes work as it is queued, so an event of the CPU is reached as soon as it is recorded.
class Event {
 public:
  enum class Timing : bool { off, on };

  /// Creates an event for streams of one device, not recorded yet: waits for it return at once.
  explicit Event(Device device, Timing timing = Timing::off);
  /// Creates an event and records it on the stream.
  explicit Event(Stream stream, Timing timing = Timing::off) : Event(stream.device, timing) { record(stream); }
  ~Event() { destroy(); }
  Event(Event&& other) noexcept : device_(other.device_), handle_(std::exchange(other.handle_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(handle_, other.handle_);
    return *this;
  }

  /// Records the event after all work queued on the stream, which belongs to the event's device.
  void record(Stream stream);
  /// Makes work queued on the stream, of any device, from now on wait for the event. A stream of the CPU is the host: it waits here.
  void wait(Stream stream) const;
  /// Blocks the host until the event is reached.
  void synchronize() const;
  /// True if synchronize() would not wait.
  bool is_reached() const;
  /// Time between two timed events of one device. Waits for the later one.
  friend double milliseconds_between(const Event& earlier, const Event& later);

 private:
  void destroy() noexcept;

  Device device_;
  void* handle_ = nullptr;
};

/// Makes work queued on `stream` from now on wait for everything that `other` has queued so far.
inline void wait_stream(Stream stream, Stream other) { Event(other).wait(stream); }

}  // namespace tern::backend
