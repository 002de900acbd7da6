#include "cuda/runtime/occupancy.h"

#include <map>
#include <mutex>
#include <tuple>

namespace tern::gpu {

static int query_occupancy(const void* kernel, unsigned cluster, unsigned block, std::size_t shared, Stream stream) {
  use(stream);
  allow_shared(kernel, shared);
  int found = 0;
  if (cluster == 1) {
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&found, kernel, static_cast<int>(block), shared),
          "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
    return found * attribute(cudaDevAttrMultiProcessorCount, stream.device);
  }
  cudaLaunchAttribute size{};
  size.id = cudaLaunchAttributeClusterDimension;
  size.val.clusterDim = {cluster, 1, 1};
  const cudaLaunchConfig_t config{cluster, block, shared, nullptr, &size, 1};
  check(cudaOccupancyMaxActiveClusters(&found, kernel, &config), "cudaOccupancyMaxActiveClusters");
  return found;
}

unsigned clusters_at_once(const void* kernel, unsigned cluster, unsigned block, std::size_t shared, Stream stream) {
  using Shape = std::tuple<const void*, int, unsigned, unsigned, std::size_t>;
  static std::mutex mutex;
  static auto& known = *new std::map<Shape, unsigned>;
  const std::lock_guard lock(mutex);
  const auto [place, is_new] = known.try_emplace(Shape{kernel, stream.device.index, cluster, block, shared}, 0);
  if (is_new) place->second = static_cast<unsigned>(query_occupancy(kernel, cluster, block, shared, stream));
  return place->second;
}

}  // namespace tern::gpu
