#pragma once
#include <cstddef>
#include <vector>

#include "tensor/tensor.h"

namespace tern::train {

/// Note [Gradients that arrive]
/// Gradients that are averaged over processes: the last are on their way when backward ends, among them those of a table used at both
/// ends of a model, which are large. An optimizer that is told in which order they come updates the parameters of the others meanwhile.
/// It has no use for what reads all gradients before an update (clipping by their norm, a loss scaler): train::apply waits for all of them
/// there, as without it. dist::overlap_optimizer and dist::shard_optimizer make one.
class GradientArrival {
 public:
  /// Elements [begin, end) of a storage of parameters, whose gradients come together; none has a part of a parameter.
  struct Window {
    std::int64_t begin = 0;  ///< first element
    std::int64_t end = 0;    ///< the one after the last
    std::size_t number = 0;  ///< in the order of arrival
  };

  virtual ~GradientArrival() = default;
  /// The windows in a segment of parameters, (n), in order. What is in none needs no wait.
  virtual std::vector<Window> windows(const Tensor& segment) const = 0;
  /// The number of windows that arrive one after the other: numbers are below it.
  virtual std::size_t size() const = 0;
  /// Before an update: what backward has not sent is sent.
  virtual void begin() = 0;
  /// A wait on the stream: kernels that are queued from now on read the gradients of this number and of those before it. Called for each
  /// number, in order.
  virtual void wait(std::size_t number) = 0;
  /// The parameters of this number are updated.
  virtual void updated(std::size_t number) = 0;
  /// After an update.
  virtual void end() = 0;
};

}  // namespace tern::train
