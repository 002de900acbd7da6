#pragma once
#include <vector>

#include "tensor/tensor.h"

namespace tern::train {

/// Note [Sharded optimizer]
/// ZeRO's first stage (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020): processes that
/// train one model have all parameters and gradients, but each keeps the optimizer's moments of its own elements alone, updates these, and
/// gets the others from the processes that they belong to. With Adam in float32 that is 8 + 8/N bytes a parameter instead of 16.
/// An optimizer asks a Sharding which elements are its own, and is otherwise as it was; dist::shard_optimizer makes one.
class Sharding {
 public:
  /// Elements [begin, end) of a storage, which this process updates.
  struct Window {
    std::int64_t begin = 0;  ///< the first element
    std::int64_t end = 0;    ///< the one behind the last
    bool is_counted = true;  ///< false where several processes have it, for all but one
    /// (end - begin): where these elements lie, if not in the memory of the parameters, of their gradients and masters.
    Tensor parameters = {};
    Tensor gradients = {};  ///< (end - begin), likewise
    Tensor masters = {};    ///< (end - begin), likewise
  };

  virtual ~Sharding() = default;
  /// The windows of a segment of parameters, (n), that are this process's, in order.
  virtual std::vector<Window> own(const Tensor& segment) const = 0;
  /// Before an update.
  virtual void prepare() {}
  /// After an update: makes the parameters whole, where each process has written its own windows.
  virtual void gather_parameters() = 0;
  /// x becomes the sum of all processes' x, of a floating dtype: norms, and state to which each brings its own elements and zeros.
  virtual void sum(const Tensor& x) = 0;
};

}  // namespace tern::train
