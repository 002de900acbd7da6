#pragma once
#include "cuda/runtime/launch.h"

namespace tern::gpu {

/// Thread block clusters of a kernel that run at the same time on the stream's device, of `cluster` blocks each; or blocks, where `cluster`
/// is 1. Clusters lie within parts of the chip that need not be multiples of them. Asked once for each kernel, shape and device.
unsigned clusters_at_once(const void* kernel, unsigned cluster, unsigned block, std::size_t shared, Stream stream);

template <class... Parameters>
unsigned clusters_at_once(void (*kernel)(Parameters...), unsigned cluster, unsigned block, std::size_t shared, Stream stream) {
  return clusters_at_once(reinterpret_cast<const void*>(kernel), cluster, block, shared, stream);
}

}  // namespace tern::gpu
