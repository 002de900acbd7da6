#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "backend/device.h"

// Work of a stream: events within it, graphs captured from it, and its failure.
namespace tern::backend {

/// @{
/// Creates the handle of an Event, which belongs to the device.
void* create_event(Cpu, Device device, bool is_timed);
void* create_event(Cuda, Device device, bool is_timed);
/// @}
/// @{
/// Records the event after all work queued on the stream.
void record_event(Cpu, void* event, Stream stream);
void record_event(Cuda, void* event, Stream stream);
/// @}
/// Makes work queued on the stream, of any CUDA device, from now on wait for the event.
void wait_event(Cuda, const void* event, Stream stream);
/// @{
/// True if synchronize_event would not wait.
bool is_event_reached(Cpu, const void* event);
bool is_event_reached(Cuda, const void* event);
/// @}
/// @{
/// Blocks the host until the event is reached.
void synchronize_event(Cpu, const void* event);
void synchronize_event(Cuda, const void* event);
/// @}
/// @{
/// Time between two timed events of one device. Waits for the later one.
double milliseconds_between(Cpu, const void* earlier, const void* later);
double milliseconds_between(Cuda, const void* earlier, const void* later);
/// @}
/// @{
/// Destroys a handle.
void destroy_event(Cpu, void* event) noexcept;
void destroy_event(Cuda, void* event) noexcept;
/// @}

/// Point in a stream's work that is reached when everything queued before is done; other streams and the host can wait for it. The CPU
/// executes work as it is queued, so an event of the CPU is reached as soon as it is recorded.
class Event {
 public:
  /// `on` where milliseconds_between will be asked.
  enum class Timing : bool { off, on };

  /// Creates an event for streams of one device, not recorded yet: waits for it return at once.
  explicit Event(Device device, Timing timing = Timing::off);
  /// Creates an event and records it on the stream.
  explicit Event(Stream stream, Timing timing = Timing::off) : Event(stream.device, timing) { record(stream); }
  ~Event() { destroy(); }
  /// @{
  /// Takes the other's handle; it gets this one's.
  Event(Event&& other) noexcept : device_(other.device_), handle_(std::exchange(other.handle_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  /// @}

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

/// CUDA graph: work of a stream that was captured once and can be launched again as a whole.
class Graph {
 public:
  virtual ~Graph() = default;
  /// Copies each of the capture's inputs from its address in `inputs`, writes `rng_offset` where the captured work reads it, then runs the
  /// work.
  virtual void launch(std::span<const void* const> inputs = {}, std::uint64_t rng_offset = 0) = 0;
  /// Number of kernels, copies and fills in the graph.
  virtual std::size_t nodes() const = 0;
};

/// Separate stream for capture. No other stream gets memory freed on it, even if memory is short: captured work contains its addresses.
class GraphStream {
 public:
  virtual ~GraphStream() = default;
  virtual Stream get() const = 0;  ///< must be the current stream during a capture
  /// Memory that the captured work reads, and that each launch fills first, as a part of the graph.
  struct Input {
    void* data;         ///< address that the recorded work reads, on the device
    std::size_t bytes;  ///< number of bytes that each launch copies there
  };
  /// Maximal number of inputs of a graph, which one kernel copies.
  static constexpr std::size_t max_inputs = 32;
  /// Captures `work`, which queues on this stream only; nothing runs. Throws Error if the work cannot be captured, because it waits for the
  /// device, or if there are more than max_inputs inputs. `rng_offset`, if not null, is where kernels read the position of the random
  /// stream; each launch writes it.
  virtual std::unique_ptr<Graph> record(const std::function<void()>& work, std::span<const Input> inputs = {},
                                        std::uint64_t* rng_offset = nullptr) = 0;
};

/// Returns null: the CPU has no graphs.
inline std::unique_ptr<GraphStream> graph_stream(Cpu, Device) { return nullptr; }
/// Creates a stream of the device for capture. Throws Error if CUDA cannot create one.
std::unique_ptr<GraphStream> graph_stream(Cuda, Device device);

/// Marks work queued on the device as lost, for example after a collective was aborted because another process ended: from then on, waits
/// for the device and launches of graphs on it throw Error with this message. The loss would otherwise go unnoticed, since later kernels
/// still run. The first of several messages counts, until they are cleared.
void mark_failed(Device device, std::string message);
/// Clears the failure: work queued from now on is valid.
void clear_failure(Device device);
/// Throws Error with the message if the device's work is lost.
void throw_if_failed(Device device);

}  // namespace tern::backend
