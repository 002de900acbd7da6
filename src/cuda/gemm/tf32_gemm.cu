#include <algorithm>
#include <cmath>
#include <mutex>
#include <utility>

#include "cuda/device/convert.cuh"
#include "cuda/gemm/tf32_gemm.h"
#include "cuda/gemm/tf32_mainloop.cuh"
#include "cuda/runtime/allocator.h"
#include "cuda/runtime/dispatch.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/old_names.cuh"
#include "cuda/runtime/tensor_map.h"
#include "ops/kernels/matmul.h"

// How products are cut up for the kernel of tf32_tiles.cuh, and its launch.
namespace tern::gpu {

namespace {

using tf32::Problem, tf32::Side, tf32::tile_depth, tf32::tile_rows;

bool is_compiled() {
  static const bool is_so = has_body(tf32::multiply<3, true, true, 128>);
  return is_so;
}

/// A box is 32 elements of the operand's contiguous side, and `outer` lines.
CUtensorMap map_of(const Side& side, std::int64_t depth, bool along_depth, int outer) {
  return tensor_map({side.data, DType::f32, along_depth ? depth : side.size, along_depth ? side.size : depth, side.leading}, 32, outer);
}

std::int64_t tiles(std::int64_t size, int tile) { return (size + tile - 1) / tile; }

/// Calls run with the kernel and its bytes of shared memory.
template <int products, class Run>
void with_kernel(bool left_along, bool right_along, int width, Run run) {
  using tf32::multiply, tf32::shared_bytes;
  if (!right_along) run(multiply<products, false, false, 128>, shared_bytes<products, 128>);
  else if (left_along && width == 128) run(multiply<products, true, true, 128>, shared_bytes<products, 128>);
  else if (left_along) run(multiply<products, true, true, 80>, shared_bytes<products, 80>);
  else if (width == 128) run(multiply<products, false, true, 128>, shared_bytes<products, 128>);
  else run(multiply<products, false, true, 80>, shared_bytes<products, 80>);
}

constexpr int most_cluster = 8;  // that every device with clusters has

struct Capacity {
  int blocks[most_cluster + 1];  ///< that run at once in clusters of so many
};

/// One block has a multiprocessor for itself, and those of a cluster lie together: of some sizes not all multiprocessors have any.
const Capacity& capacity_of(Stream stream) {
  static std::mutex mutex;
  static std::vector<Capacity> all;
  const std::lock_guard lock(mutex);
  const auto index = static_cast<std::size_t>(stream.device.index);
  if (all.size() <= index) all.resize(index + 1);
  Capacity& capacity = all[index];
  if (capacity.blocks[1] != 0) return capacity;
  use(stream);
  with_kernel<3>(true, true, 128, [&](auto kernel, std::size_t bytes) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)), "cudaFuncSetAttribute");
    for (unsigned cluster = most_cluster; cluster >= 1; --cluster) {
      cudaLaunchAttribute size{};
      size.id = cudaLaunchAttributeClusterDimension;
      size.val.clusterDim = {cluster, 1, 1};
      const cudaLaunchConfig_t config{cluster, tf32::threads, bytes, nullptr, &size, 1};
      int clusters = 0;
      check(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config), "cudaOccupancyMaxActiveClusters");
      capacity.blocks[cluster] = clusters * static_cast<int>(cluster);
    }
  });
  return capacity;
}

/// Microseconds on an H200, from all cuts of 42 products of layers: the one with the least was at most 14% slower than the fastest, which
/// was among the first four but for three products, by 7% at most.
double time_of(const Tf32Cut& cut, std::int64_t tiles_of_c, std::int64_t steps, bool is_single, bool right_along, int blocks_at_once) {
  const int splits = cut.cluster * cut.groups;
  const auto units = static_cast<double>(tiles_of_c * splits);
  const double rounds = std::ceil(units / blocks_at_once), each = static_cast<double>((steps + splits - 1) / splits);
  const double step = is_single ? (!right_along      ? 0.68
                                   : cut.width == 80 ? 0.42
                                                     : 0.57)
                                : (!right_along      ? 1.26
                                   : cut.width == 80 ? 0.77
                                                     : 1.12);
  double time = 3.3 + rounds * (each * step + 1.6);
  if (cut.cluster > 1) time += 2;
  if (cut.groups > 1) {
    const double megabytes = static_cast<double>(tiles_of_c * cut.groups * tile_rows * cut.width) * sizeof(float) / 1e6;
    time += 2.8 + 0.38 * megabytes + 0.25 * rounds * cut.groups / cut.cluster;
  }
  return time;
}

}  // namespace

std::vector<Tf32Cut> tf32_cuts(const Product& p, const ProductOperands& at, Stream stream) {
  constexpr int most_splits = 64;
  const auto fits = [](const void* data, std::int64_t leading) { return is_aligned(data, 16) && leading % 4 == 0; };
  if (p.dtype != DType::f32 || p.count != 1 || p.epilogue == Epilogue::bias_gelu || std::min(p.m, p.n) < 64 || p.k < tile_depth ||
      p.m % 2 != 0 || !fits(at.a, p.a_leading) || !fits(at.b, p.b_leading) || !fits(at.c, p.c_leading) ||
      !kernels::has_tf32x3(Cuda{}, stream.device))
    return {};
  const bool a_along = p.a_transposed, b_along = !p.b_transposed;
  const std::int64_t steps = tiles(p.k, tile_depth);
  const Capacity& capacity = capacity_of(stream);
  std::vector<std::pair<double, Tf32Cut>> cuts;
  for (const bool turned : {false, true}) {
    // Who lies with the depth innermost is the right one, if one does. Rows first: c^T (n, m) = b^T (n, k) a^T (k, m).
    if (b_along != a_along && turned != b_along) continue;
    const std::int64_t rows = turned ? p.m : p.n, columns = turned ? p.n : p.m;
    const bool right_along = turned ? b_along : a_along;
    for (const int width : {128, 80}) {
      if (width != 128 && !right_along) continue;
      const std::int64_t tiles_of_c = tiles(rows, tile_rows) * tiles(columns, width);
      if (tiles_of_c > (std::int64_t(1) << 24)) continue;  // units are counted in int
      for (int cluster = 1; cluster <= most_cluster; ++cluster)
        for (int groups = 1; cluster * groups <= std::min<std::int64_t>(steps, most_splits); ++groups) {
          const Tf32Cut cut{turned, width, cluster, groups};
          if (cluster > 1 && tiles_of_c * cluster * groups > capacity.blocks[cluster]) continue;  // its blocks have one tile each
          cuts.emplace_back(time_of(cut, tiles_of_c, steps, p.precision == MatmulPrecision::tf32, right_along, capacity.blocks[cluster]),
                            cut);
        }
    }
  }
  std::stable_sort(cuts.begin(), cuts.end(), [](const auto& one, const auto& other) { return one.first < other.first; });
  std::vector<Tf32Cut> ranked;
  for (const auto& [time, cut] : cuts) ranked.push_back(cut);
  return ranked;
}

void multiply_tf32(const Product& p, const ProductOperands& at, void* to, double alpha, const Tf32Cut& cut, Stream stream) {
  Problem problem{};
  problem.left = {static_cast<const float*>(at.b), p.n, p.b_leading};
  problem.right = {static_cast<const float*>(at.a), p.m, p.a_leading};
  problem.depth = p.k;
  problem.c = static_cast<float*>(to);
  problem.before = p.write == Write::accumulate ? static_cast<const float*>(at.c) : nullptr;
  problem.c_leading = p.c_leading;
  problem.bias = p.epilogue == Epilogue::bias ? static_cast<const float*>(at.bias) : nullptr;
  problem.alpha = static_cast<float>(alpha);
  problem.turned = cut.turned;
  bool left_along = !p.b_transposed, right_along = p.a_transposed;
  if (cut.turned) {
    std::swap(problem.left, problem.right);
    std::swap(left_along, right_along);
  }
  problem.row_tiles = static_cast<int>(tiles(problem.left.size, tile_rows));
  problem.column_tiles = static_cast<int>(tiles(problem.right.size, cut.width));
  problem.cluster = cut.cluster;
  problem.groups = cut.groups;
  const std::size_t count = static_cast<std::size_t>(problem.row_tiles) * static_cast<std::size_t>(problem.column_tiles);
  const Workspace partial(cut.groups > 1 ? count * static_cast<std::size_t>(cut.groups * tile_rows * cut.width) * sizeof(float) : 0,
                          stream);
  if (cut.groups > 1) {
    problem.partial = partial.as<float4>();
    problem.arrived = arrivals(stream, count * static_cast<std::size_t>(cut.cluster));
  }
  problem.left_map = map_of(problem.left, p.k, left_along, left_along ? tile_rows : tile_depth);
  problem.right_map = map_of(problem.right, p.k, right_along, right_along ? cut.width : tile_depth);
  const auto run = [&](auto kernel, std::size_t bytes) {
    use(stream);
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)), "cudaFuncSetAttribute");
    if (cut.cluster > 1)
      launch_clusters(kernel, static_cast<unsigned>(problem.units() * cut.cluster), tf32::threads, static_cast<unsigned>(cut.cluster),
                      bytes, stream, problem);
    else
      launch(kernel, static_cast<unsigned>(std::min(problem.units(), capacity_of(stream).blocks[1])), tf32::threads, bytes, stream,
             problem);
  };
  if (p.precision == MatmulPrecision::tf32) with_kernel<1>(left_along, right_along, cut.width, run);
  else with_kernel<3>(left_along, right_along, cut.width, run);
}

}  // namespace tern::gpu

bool tern::kernels::has_tf32x3(Cuda, Device device) {
  return gpu::attribute(cudaDevAttrComputeCapabilityMajor, device) == 9 && gpu::is_compiled();
}
