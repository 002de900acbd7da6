#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "backend/event.h"
#include "tensor/tensor.h"

namespace tern::data {

/// Page-locked host memory, from which a copy to a CUDA device does not wait: the runtime reads it while the host goes on.
struct PinnedBlock {
  PinnedBlock(std::size_t bytes, Device device);
  ~PinnedBlock();
  PinnedBlock(const PinnedBlock&) = delete;
  PinnedBlock& operator=(const PinnedBlock&) = delete;

  void* data = nullptr;
  std::size_t bytes = 0;
  backend::Event copied;  ///< when the device has read it
};

/// A batch that waits to be fetched: on the CPU, or in one pinned block, each tensor from a place in it on.
struct Staged {
  Tensors tensors;  ///< of those in a block the shape and dtype alone
  std::unique_ptr<PinnedBlock> block;
  std::vector<std::size_t> offsets;
};

/// The way of batches to the device. Any thread stages; the one that computes fetches.
class StagingPool {
 public:
  explicit StagingPool(Device device) : device_(device) {}
  /// Tensors of the CPU as they are, or copied into pinned memory where batches go to a CUDA device. Waits where the device still reads the
  /// block that is used again.
  Staged stage(Tensors batch);
  /// On the device; the copy is queued on the current stream, and its block used again later.
  Tensors fetch(Staged staged);

 private:
  std::unique_ptr<PinnedBlock> block(std::size_t bytes);

  Device device_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<PinnedBlock>> free_;
};

}  // namespace tern::data
