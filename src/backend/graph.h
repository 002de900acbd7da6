#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "backend/device.h"

namespace tern::backend {

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

}  // namespace tern::backend
