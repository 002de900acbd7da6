#pragma once
#include <map>
#include <mutex>
#include <tuple>

#include "cuda/runtime/launch.h"

namespace tern::gpu {

/// Number of thread block clusters, of `cluster` blocks each, that a kernel can run at the same time on the stream's device; number of
/// blocks if `cluster` is 1. Clusters are confined to parts of the chip (GPCs), whose multiprocessors need not be a multiple of the cluster
/// size. Queried once for each kernel, shape and device.
inline unsigned clusters_at_once(const void* kernel, unsigned cluster, unsigned block, std::size_t shared, Stream stream) {
  using Shape = std::tuple<const void*, int, unsigned, unsigned, std::size_t>;
  static std::mutex mutex;
  static auto& known = *new std::map<Shape, unsigned>;
  const std::lock_guard lock(mutex);
  const auto [place, is_new] = known.try_emplace(Shape{kernel, stream.device.index, cluster, block, shared}, 0);
  if (!is_new) return place->second;
  use(stream);
  allow_shared(kernel, shared);
  int found = 0;
  if (cluster == 1) {
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&found, kernel, static_cast<int>(block), shared),
          "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
    found *= attribute(cudaDevAttrMultiProcessorCount, stream.device);
  } else {
    cudaLaunchAttribute size{};
    size.id = cudaLaunchAttributeClusterDimension;
    size.val.clusterDim = {cluster, 1, 1};
    const cudaLaunchConfig_t config{cluster, block, shared, nullptr, &size, 1};
    check(cudaOccupancyMaxActiveClusters(&found, kernel, &config), "cudaOccupancyMaxActiveClusters");
  }
  return place->second = static_cast<unsigned>(found);
}
template <class... Parameters>
unsigned clusters_at_once(void (*kernel)(Parameters...), unsigned cluster, unsigned block, std::size_t shared, Stream stream) {
  return clusters_at_once(reinterpret_cast<const void*>(kernel), cluster, block, shared, stream);
}

}  // namespace tern::gpu
