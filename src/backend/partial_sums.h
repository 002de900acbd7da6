#pragma once
#include <memory>

#include "backend/device.h"

namespace tern::backend {

/// Sums over rows that kernels leave in parts: blocks sum some rows each, and something adds that up. Gradients of norms and biases are
/// such sums, two dozen and more in a backward pass and of a few KB each, so that the addition costs little and a kernel for it much.
/// Kernels that are given one of these add their parts to it, and `finish` adds up all of them in one kernel.
class PartialSums {
 public:
  virtual ~PartialSums() = default;
  /// Queues the additions. The sums are not there before; finish is called by itself where the parts take more than 16 MiB.
  virtual void finish() = 0;
};

/// For kernels of the present stream. Null for the CPU, whose kernels need none.
inline std::unique_ptr<PartialSums> partial_sums(Cpu, Device) { return nullptr; }
std::unique_ptr<PartialSums> partial_sums(Cuda, Device device);

}  // namespace tern::backend
