#pragma once
#include <cstddef>

#include "backend/device.h"

namespace tern::backend {

/// Pinned (page-locked) host memory for copies to a device: copy_from_host from it returns before the copy is done, and only then may the
/// source be reused. Only CUDA has it. Allocating and freeing it is slow, and may wait for the device.
void* allocate_pinned(Cuda, std::size_t bytes, Device device);
void free_pinned(Cuda, void* data) noexcept;

}  // namespace tern::backend
