#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "backend/device.h"

namespace tern::backend {

/// Work of a stream, recorded once, that can be queued again as a whole: a CUDA graph.
class Graph {
 public:
  virtual ~Graph() = default;
  /// Each of the recording's inputs is copied from its place in `inputs` first, and `rng_offset` is written where the recording reads it.
  virtual void launch(std::span<const void* const> inputs = {}, std::uint64_t rng_offset = 0) = 0;
  /// Kernels, copies and fills in it.
  virtual std::size_t nodes() const = 0;
};

/// A stream of its own, whose freed memory no other stream gets, even where memory is short: recorded work has addresses in it.
class GraphStream {
 public:
  virtual ~GraphStream() = default;
  virtual Stream get() const = 0;  ///< to be the current one while work is recorded
  /// Memory that the recorded work reads, and that each launch fills first, as a part of the graph.
  struct Input {
    void* data;         ///< address that the recorded work reads, on the device
    std::size_t bytes;  ///< that each launch copies there
  };
  /// The most inputs of a recording, which one kernel copies.
  static constexpr std::size_t max_inputs = 32;
  /// Calls `work`, which queues on this stream alone; nothing runs. Throws Error if the work cannot be recorded, because it waits for the
  /// device, or if there are more than max_inputs inputs. `rng_offset`, if not null, is where kernels read the position of the random
  /// stream, which each launch writes.
  virtual std::unique_ptr<Graph> record(const std::function<void()>& work, std::span<const Input> inputs = {},
                                        std::uint64_t* rng_offset = nullptr) = 0;
};

/// The CPU has no graphs: null.
inline std::unique_ptr<GraphStream> graph_stream(Cpu, Device) { return nullptr; }
/// A stream of the device to record on. Throws Error where CUDA cannot make one.
std::unique_ptr<GraphStream> graph_stream(Cuda, Device device);

}  // namespace tern::backend
