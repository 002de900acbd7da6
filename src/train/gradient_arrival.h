#pragma once
#include <cstddef>
#include <vector>

#include "tensor/tensor.h"

namespace tern::train {

/// Note [Gradients that arrive]
/// Overlap of an optimizer with gradients that are averaged over processes. The last of them are still being communicated when backward
/// ends, among them that of a table used at both ends of a model, which is large. An optimizer that knows the order of arrival updates the
/// other parameters meanwhile. If something reads all gradients before the update (clipping by their norm, a loss scaler), there is no
/// overlap: train::apply waits for all of them first. Made by parallel::overlap_optimizer and parallel::shard_optimizer.
class GradientArrival {
 public:
  /// Elements [begin, end) of a storage of parameters whose gradients arrive together; no window has a part of a parameter.
  struct Window {
    std::int64_t begin = 0;  ///< first element
    std::int64_t end = 0;    ///< one past the last element
    std::size_t number = 0;  ///< position in the order of arrival
  };

  virtual ~GradientArrival() = default;
  /// Windows in a segment of parameters, (n), in order. Parameters outside of all windows need no wait.
  virtual std::vector<Window> windows(const Tensor& segment) const = 0;
  /// Number of separate arrivals: Window::number is below it.
  virtual std::size_t size() const = 0;
  /// Begins an update: sends the gradients that backward has not sent.
  virtual void begin() = 0;
  /// Makes the stream wait: kernels queued from now on read gradients of this number and of lower ones. Called for each number, in order.
  virtual void wait(std::size_t number) = 0;
  /// Called when the parameters of this number are updated.
  virtual void updated(std::size_t number) = 0;
  /// Ends an update.
  virtual void end() = 0;
};

}  // namespace tern::train
