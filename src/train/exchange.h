#pragma once
#include <cstddef>
#include <vector>

#include "tensor/tensor.h"

namespace tern::train {

/// Note [Exchange]
/// How an optimizer updates parameters that several processes train: in parts.
///  * Arrival. When backward ends, the last gradients are still being averaged, among them that of a table used at both ends of a model,
///    which is large. The optimizer updates the other parts meanwhile. If something reads all gradients before the update (clipping by
///    their norm, a loss scaler), there is no overlap: train::apply waits for all of them first.
///  * Sharding: ZeRO stage 1 (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020). Each
///  process
///    keeps the moments of its own elements only, updates those, and gets the others from the processes that own them. With Adam in float32
///    that is 8 + 8/N bytes per parameter instead of 16.
/// Made by parallel::overlap_optimizer and parallel::shard_optimizer.
class Exchange {
 public:
  /// Elements [begin, end) of a storage of parameters, which this process updates and whose gradients arrive together.
  struct Part {
    std::int64_t begin = 0;   ///< first element
    std::int64_t end = 0;     ///< one past the last element
    std::size_t arrival = 0;  ///< position in the order of arrival, below size()
    bool is_counted = true;   ///< if several processes own it: true in one of them only
    /// (end - begin): memory of these elements, if it is not that of the parameters, of their gradients and of their masters.
    Tensor parameters = {};
    Tensor gradients = {};  ///< (end - begin), likewise
    Tensor masters = {};    ///< (end - begin), likewise
  };

  virtual ~Exchange() = default;
  /// True if each process owns elements of its own. If not, no part ends within a parameter.
  virtual bool is_sharded() const = 0;
  /// Parts of a segment of parameters, (n), in order.
  virtual std::vector<Part> parts(const Tensor& segment) const = 0;
  /// Number of parts that arrive separately.
  virtual std::size_t size() const = 0;
  /// Begins an update: sends the gradients that backward has not sent.
  virtual void begin() = 0;
  /// Makes the stream wait: kernels queued from now on read gradients of this arrival and of earlier ones. Called for each, in order.
  virtual void wait(std::size_t arrival) = 0;
  /// Called when the parameters of this arrival are updated.
  virtual void updated(std::size_t arrival) = 0;
  /// Ends an update: all processes have all parameters, of which each has written its own parts.
  virtual void end() = 0;
  /// All-reduce: x, of a floating dtype, becomes the sum of all processes' x. For norms, and for state to which each process contributes
  /// its own elements and zeros.
  virtual void sum(const Tensor& x) = 0;
};

}  // namespace tern::train
