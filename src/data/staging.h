#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "backend/stream.h"
#include "tensor/tensor.h"

namespace tern::data {

/// Page-locked host memory, from which copies to a CUDA device are asynchronous.
struct PinnedBlock {
  PinnedBlock(std::size_t bytes, Device device);
  ~PinnedBlock();
  PinnedBlock(const PinnedBlock&) = delete;
  PinnedBlock& operator=(const PinnedBlock&) = delete;

  void* data = nullptr;
  std::size_t bytes = 0;
  backend::Event copied;  ///< reached when the device has read the block
};

/// A staged batch: tensors on the CPU, or one pinned block with all of them.
struct Staged {
  Tensors tensors;                     ///< with a block, tensors of the shapes and dtypes only
  std::unique_ptr<PinnedBlock> block;  ///< null if batches stay on the CPU
  std::vector<std::size_t> offsets;    ///< byte offset of each tensor in the block
};

/// Moves batches to a device by way of pinned memory: worker threads call stage(), the thread that computes calls fetch().
class StagingPool {
 public:
  explicit StagingPool(Device device) : device_(device) {}
  /// Copies tensors of the CPU into pinned memory if the device is CUDA's; else leaves them as they are. Waits if the device still reads
  /// the block to be reused.
  Staged stage(Tensors batch);
  /// The tensors on the device. The copy is queued on the current stream, after which the block is reused.
  Tensors fetch(Staged staged);

 private:
  std::unique_ptr<PinnedBlock> block(std::size_t bytes);

  Device device_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<PinnedBlock>> free_;
};

}  // namespace tern::data
