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
  /// `inputs`: what each of the recording's inputs is filled from this time; `number` goes to the recording's.
  virtual void launch(std::span<const void* const> inputs = {}, std::uint64_t number = 0) = 0;
  /// Kernels, copies and fills in it.
  virtual std::size_t nodes() const = 0;
};

/// A stream of its own, whose freed memory no other stream gets, even where memory is short: recorded work has addresses in it.
class GraphStream {
 public:
  virtual ~GraphStream() = default;
  virtual Stream get() const = 0;
  /// Work queued here from now on waits for what `other` has queued so far, or the other way round.
  virtual void follow(Stream other) = 0;
  virtual void lead(Stream other) = 0;
  /// Calls `work`, which queues on this stream alone; nothing runs. Throws Error if the work cannot be recorded, because it
  /// waits for the device. At each launch the inputs, at most `most_inputs`, are filled first, as a part of the graph, and a number is
  /// written, where there is a place for it.
  struct Input {
    void* data;
    std::size_t bytes;
  };
  static constexpr std::size_t most_inputs = 32;
  virtual std::unique_ptr<Graph> record(const std::function<void()>& work, std::span<const Input> inputs = {},
                                        std::uint64_t* number = nullptr) = 0;
};

/// The CPU has no graphs: null.
inline std::unique_ptr<GraphStream> graph_stream(Cpu, Device) { return nullptr; }
std::unique_ptr<GraphStream> graph_stream(Cuda, Device device);

}  // namespace tern::backend
