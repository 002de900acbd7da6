#include "data/staging.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backend/memory.h"
#include "ops/factory.h"
#include "tensor/context.h"

namespace tern::data {

PinnedBlock::PinnedBlock(std::size_t bytes_, Device device) : bytes(bytes_), copied(device) {
  on_cuda("Loader", device, [&](auto dev) { data = backend::allocate_pinned(dev, bytes_, device); });
}

PinnedBlock::~PinnedBlock() {
  if constexpr (built_with_cuda) {
    try {
      copied.synchronize();
    } catch (const Error&) {  // the device has failed, and does not read the block any more
    }
    backend::free_pinned(Cuda{}, data);
  }
}

std::unique_ptr<PinnedBlock> StagingPool::block(std::size_t bytes) {
  std::unique_ptr<PinnedBlock> result;
  {
    const std::lock_guard lock(mutex_);
    // The oldest block that is large enough, whose copy has usually completed.
    for (auto i = free_.begin(); i != free_.end() && !result; ++i)
      if ((*i)->bytes >= bytes) {
        result = std::move(*i);
        free_.erase(i);
        break;
      }
    // Blocks that are too small are freed, so that batches of varying sizes do not accumulate them.
    if (!result) free_.clear();
  }
  if (!result) return std::make_unique<PinnedBlock>(bytes, device_);
  result->copied.synchronize();
  return result;
}

Staged StagingPool::stage(Tensors batch) {
  if (device_.type != DeviceType::cuda) return {std::move(batch), nullptr, {}};
  Staged result;
  std::size_t bytes = 0;
  for (const Tensor& x : batch) {
    result.offsets.push_back(bytes);
    bytes += (static_cast<std::size_t>(x.numel()) * size_of(x.dtype()) + 255) / 256 * 256;
  }
  result.block = block(std::max<std::size_t>(bytes, 1));
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const Tensor x = contiguous(to(batch[i], cpu));
    if (x.numel() > 0)
      std::memcpy(static_cast<char*>(result.block->data) + result.offsets[i], x.view().data,
                  static_cast<std::size_t>(x.numel()) * size_of(x.dtype()));
  }
  result.tensors = std::move(batch);
  return result;
}

Tensors StagingPool::fetch(Staged staged) {
  if (!staged.block) return std::move(staged.tensors);
  const Stream stream = context().stream(device_);
  Tensors result;
  for (std::size_t i = 0; i < staged.tensors.size(); ++i) {
    const Tensor& x = staged.tensors[i];
    result.push_back(empty(x.shape(), x.dtype(), device_));
    if (x.numel() == 0) continue;
    const auto copy = [&](auto dev) {
      backend::copy_from_host(dev, result.back().view().data, static_cast<char*>(staged.block->data) + staged.offsets[i],
                              static_cast<std::size_t>(x.numel()) * size_of(x.dtype()), stream);
    };
    with_backend(device_, copy);
  }
  staged.block->copied.record(stream);
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(staged.block));
  return result;
}

}  // namespace tern::data
