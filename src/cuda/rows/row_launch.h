#pragma once
#include <algorithm>
#include <optional>

#include "cuda/device/row.cuh"
#include "cuda/runtime/dispatch.h"
#include "cuda/runtime/launch.h"
#include "tensor/sizes.h"
#include "tensor/view.h"

// Host side of device/row.cuh: how rows can be accessed, how they are partitioned over threads, and their launch.
namespace tern::gpu {

/// Row access for the rows of all these views, contiguous and of equal length: in vectors if all have the same misalignment to 16 bytes. A
/// view without data counts as aligned.
template <class T>
RowAccess row_access(std::initializer_list<const View*> views, std::int64_t columns) {
  const auto distance = [](const View* view) { return reinterpret_cast<std::uintptr_t>(view->data) % 16; };
  const std::uintptr_t first = distance(*views.begin());
  if (!std::ranges::all_of(views, [&](const View* view) { return distance(view) == first; })) return RowAccess::scalar;
  return first == 0 && columns % vec16_width<T> == 0 ? RowAccess::aligned : RowAccess::misaligned;
}

/// Maximal number of elements that the vectors of a row cover: those of a misaligned row reach into adjacent rows.
template <class T>
std::int64_t row_extent(std::int64_t columns, RowAccess access) {
  return columns + (access == RowAccess::misaligned ? vec16_width<T> - 1 : 0);
}

inline bool has_clusters(Stream stream) { return attribute(cudaDevAttrComputeCapabilityMajor, stream.device) >= 9; }

struct RowLimits {
  unsigned max_threads;       ///< threads of a block
  unsigned min_lanes = 1;     ///< threads of a row that is shared by lanes of a warp
  unsigned shared_block = 0;  ///< threads of a block that several rows share
  unsigned max_sharing = 32;  ///< maximal number of threads of a row that shares its block
};

/// Partition of rows each of which needs `needed` threads; none if even a cluster cannot hold a row.
inline std::optional<RowPartition> partition_rows(std::int64_t needed, const RowLimits& limits, Stream stream) {
  const std::int64_t max_threads = limits.max_threads;
  RowPartition partition;
  if (needed > max_threads && (needed > max_threads * max_cluster || !has_clusters(stream))) return std::nullopt;
  if (needed <= 32) {
    while (partition.threads < std::max<std::int64_t>(needed, limits.min_lanes)) partition.threads *= 2;
  } else {
    while (needed > max_threads * partition.cluster) partition.cluster *= 2;
    partition.threads = static_cast<unsigned>(ceil_div(needed, partition.cluster * 32) * 32);
  }
  if (partition.cluster == 1 && partition.threads <= limits.max_sharing)
    partition.rows = std::max(1u, limits.shared_block / partition.threads);
  return partition;
}

/// Launches kernel(partition, arguments...) with `clusters` clusters, or blocks.
template <class... Parameters, class... Arguments>
void launch_rows(void (*kernel)(RowPartition, Parameters...), const RowPartition& partition, std::int64_t clusters, std::size_t shared,
                 Stream stream, Arguments&&... arguments) {
  const LaunchConfig config{.grid = blocks_for(clusters * partition.cluster, 1),
                            .block = partition.block(),
                            .shared = shared,
                            .stream = stream,
                            .cluster = partition.cluster};
  launch(kernel, config, partition, std::forward<Arguments>(arguments)...);
}

/// Number of clusters, or blocks, of such a launch that run at once.
template <class... Parameters>
unsigned clusters_at_once(void (*kernel)(RowPartition, Parameters...), const RowPartition& partition, std::size_t shared, Stream stream) {
  return std::max(clusters_at_once(kernel, partition.cluster, partition.block(), shared, stream), 1u);
}

}  // namespace tern::gpu
