#pragma once
#include <vector>

#include "tensor/tensor.h"

namespace tern::train {

/// Note [Sharded optimizer]
/// ZeRO stage 1 (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020): processes that train
/// one model have all parameters and gradients, but each keeps the optimizer's moments of its own elements only, updates those, and gets
/// the others from the processes that own them. With Adam in float32 that is 8 + 8/N bytes per parameter instead of 16. An optimizer asks a
/// Sharding for its own elements, and is otherwise unchanged; parallel::shard_optimizer makes one.
class Sharding {
 public:
  /// Elements [begin, end) of a storage, which this process updates.
  struct Window {
    std::int64_t begin = 0;  ///< first element
    std::int64_t end = 0;    ///< one past the last element
    bool is_counted = true;  ///< if several processes own it: true in one of them only
    /// (end - begin): memory of these elements, if it is not that of the parameters, of their gradients and of their masters.
    Tensor parameters = {};
    Tensor gradients = {};  ///< (end - begin), likewise
    Tensor masters = {};    ///< (end - begin), likewise
  };

  virtual ~Sharding() = default;
  /// The windows of a segment of parameters, (n), that this process owns, in order.
  virtual std::vector<Window> own(const Tensor& segment) const = 0;
  /// Called before an update.
  virtual void prepare() {}
  /// Called after an update: gathers the parameters, of which each process has written its own windows.
  virtual void gather_parameters() = 0;
  /// All-reduce: x, of a floating dtype, becomes the sum of all processes' x. For norms, and for state to which each process contributes
  /// its own elements and zeros.
  virtual void sum(const Tensor& x) = 0;
};

}  // namespace tern::train
