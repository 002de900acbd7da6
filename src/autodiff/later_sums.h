#pragma once
#include <memory>
#include <vector>

#include "autodiff/node.h"
#include "backend/partial_sums.h"

namespace tern {

/// The sums that kernels of one backward pass leave in parts, and the leaves whose gradients they go to.
class LaterSums {
 public:
  explicit LaterSums(Device device) : device_(device) {}
  ~LaterSums() { forget(); }
  LaterSums(const LaterSums&) = delete;
  LaterSums& operator=(const LaterSums&) = delete;

  /// Null on a device that adds up at once.
  backend::PartialSums* for_leaf(AutogradState& leaf);
  /// Adds up what there is.
  void finish();

 private:
  void forget();

  Device device_;
  std::unique_ptr<backend::PartialSums> sums_;
  std::vector<std::pair<Ref<AutogradState>, Tensor>> leaves_;  ///< with the gradients, which are to stay alive
};

}  // namespace tern
