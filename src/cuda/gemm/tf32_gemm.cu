#include <algorithm>
#include <cmath>
#include <utility>

#include "cuda/gemm/algorithm.h"
#include "cuda/gemm/tf32_mainloop.cuh"
#include "cuda/runtime/allocator.h"
#include "cuda/runtime/dispatch.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/occupancy.h"
#include "cuda/runtime/tensor_map.h"
#include "tensor/ceil_div.h"

// Tile configurations of the kernel of tf32_mainloop.cuh, ranked by a model of its time, and its launch.
namespace tern::gpu {

namespace {

using tf32::tf32_gemm_kernel, tf32::Tf32Params, tf32::Operand, tf32::tile_k, tf32::tile_m;

/// Tensor map with boxes of 32 elements of the operand's contiguous dimension, and `outer` lines.
CUtensorMap map_of(const Operand& operand, std::int64_t depth, bool is_k_major, int outer) {
  const std::int64_t size = operand.size;
  return tensor_map({operand.data, DType::f32, is_k_major ? depth : size, is_k_major ? size : depth, operand.leading_dimension}, 32, outer);
}

/// Calls run with the kernel and its bytes of shared memory. If the operands' layouts differ, b is the K-major one; an MN-major b only has
/// tiles of 128.
template <int products, class Run>
void with_kernel(bool a_k_major, bool b_k_major, int tile_n, Run run) {
  using tf32::shared_bytes;
  if (!b_k_major) run(tf32_gemm_kernel<products, false, false, 128>, shared_bytes<products, 128>);
  else if (a_k_major && tile_n == 128) run(tf32_gemm_kernel<products, true, true, 128>, shared_bytes<products, 128>);
  else if (a_k_major) run(tf32_gemm_kernel<products, true, true, 80>, shared_bytes<products, 80>);
  else if (tile_n == 128) run(tf32_gemm_kernel<products, false, true, 128>, shared_bytes<products, 128>);
  else run(tf32_gemm_kernel<products, false, true, 80>, shared_bytes<products, 80>);
}

constexpr int max_cluster_size = static_cast<int>(max_cluster);

/// Number of blocks that run at once in clusters of `cluster` blocks. A multiprocessor holds one block of any of the kernels.
int blocks_at_once(int cluster, Stream stream) {
  unsigned clusters = 0;
  with_kernel<3>(true, true, 128, [&](auto kernel, std::size_t bytes) {
    clusters = clusters_at_once(kernel, static_cast<unsigned>(cluster), tf32::threads, bytes, stream);
  });
  return static_cast<int>(clusters) * cluster;
}

/// Note [Model of a TF32 GEMM's time]
/// Microseconds on an H200. The model ranks configurations; the first four are timed (Note [Choice of algorithms]), as the fastest is
/// nearly always among them. Devices of another compute capability than 9 have none of these configurations.
struct StepTimes {
  double b_mn_major, width_80, width_128;  ///< time of a step of tile_k
};
constexpr StepTimes one_product{0.68, 0.42, 0.57}, three_products{1.26, 0.77, 1.12};
constexpr double per_gemm = 3.3;
constexpr double per_round = 1.6;         ///< for one tile of each block, in addition to its steps
constexpr double cluster_reduction = 2;   ///< through DSMEM
constexpr double slice_reduction = 2.8;   ///< through global memory, in addition to the next two
constexpr double per_megabyte = 0.38;     ///< for each megabyte of the slices' sums
constexpr double per_slice_added = 0.25;  ///< added by the last cluster, whose blocks share the additions

double modelled_time(const TileConfig& config, std::int64_t c_tiles, std::int64_t k_steps, bool is_one_product, bool b_k_major,
                     int blocks_at_once) {
  const StepTimes& times = is_one_product ? one_product : three_products;
  const double step = !b_k_major ? times.b_mn_major : config.tile_n == 80 ? times.width_80 : times.width_128;
  const int splits = config.splits();
  const double rounds = std::ceil(static_cast<double>(c_tiles * splits) / blocks_at_once);
  const auto steps_of_split = static_cast<double>(ceil_div(k_steps, splits));
  double time = per_gemm + rounds * (steps_of_split * step + per_round);
  if (config.cluster > 1) time += cluster_reduction;
  if (config.slices > 1) {
    const double megabytes = static_cast<double>(c_tiles * config.slices * tile_m * config.tile_n) * sizeof(float) / 1e6;
    time += slice_reduction + per_megabyte * megabytes + per_slice_added * rounds * config.slices / config.cluster;
  }
  return time;
}

}  // namespace

bool has_tf32_gemm(Device device) { return runs_wgmma_kernel(tf32_gemm_kernel<3, true, true, 128>, device); }

std::vector<TileConfig> tf32_configs(const GemmProblem& p, const GemmOperands& operands, Stream stream) {
  constexpr int max_splits = 64;
  if (p.dtype != DType::f32 || p.batch_count != 1 || p.epilogue == Epilogue::bias_gelu || std::min(p.m, p.n) < 64 || p.k < tile_k ||
      p.m % 2 != 0 || !has_tensor_map(operands.a, p.dtype, p.lda) || !has_tensor_map(operands.b, p.dtype, p.ldb) ||
      !has_tensor_map(operands.c, p.dtype, p.ldc) || !has_tf32_gemm(stream.device))
    return {};
  // Row-major, c^T (n, m) = b^T (n, k) a^T (k, m): unless swapped, the kernel's a is the problem's b.
  const bool a_k_major = p.a_transposed, b_k_major = !p.b_transposed;
  const std::int64_t k_steps = ceil_div(p.k, tile_k);
  std::vector<std::pair<double, TileConfig>> timed;
  for (const bool swap_ab : {false, true}) {
    // If one of the two is K-major, it must be the kernel's b.
    if (b_k_major != a_k_major && swap_ab != b_k_major) continue;
    const std::int64_t rows = swap_ab ? p.m : p.n, columns = swap_ab ? p.n : p.m;
    const bool right_k_major = swap_ab ? b_k_major : a_k_major;
    for (const int tile_n : {128, 80}) {
      if (tile_n != 128 && !right_k_major) continue;
      const std::int64_t c_tiles = ceil_div(rows, tile_m) * ceil_div(columns, tile_n);
      if (c_tiles > (std::int64_t(1) << 24)) continue;  // work tiles are counted as int
      for (int cluster = 1; cluster <= max_cluster_size; ++cluster) {
        const int at_once = blocks_at_once(cluster, stream);
        for (int slices = 1; cluster * slices <= std::min<std::int64_t>(k_steps, max_splits); ++slices) {
          const TileConfig config{swap_ab, tile_n, cluster, slices};
          if (cluster > 1 && c_tiles * cluster * slices > at_once) continue;  // a block of a cluster has only one tile
          timed.emplace_back(modelled_time(config, c_tiles, k_steps, p.precision == MatmulPrecision::tf32, right_k_major, at_once), config);
        }
      }
    }
  }
  std::stable_sort(timed.begin(), timed.end(), [](const auto& one, const auto& other) { return one.first < other.first; });
  std::vector<TileConfig> ranked;
  for (const auto& [time, config] : timed) ranked.push_back(config);
  return ranked;
}

void tf32_gemm(const GemmProblem& p, const GemmOperands& operands, void* out, double alpha, const TileConfig& config, Stream stream) {
  Tf32Params params{};
  params.a = {static_cast<const float*>(operands.b), p.n, p.ldb};
  params.b = {static_cast<const float*>(operands.a), p.m, p.lda};
  params.depth = p.k;
  params.c = static_cast<float*>(out);
  params.c_in = p.write == Write::accumulate ? static_cast<const float*>(operands.c) : nullptr;
  params.ldc = p.ldc;
  params.bias = p.epilogue == Epilogue::bias ? static_cast<const float*>(operands.bias) : nullptr;
  params.alpha = static_cast<float>(alpha);
  params.swap_ab = config.swap_ab;
  bool a_k_major = !p.b_transposed, b_k_major = p.a_transposed;
  if (config.swap_ab) {
    std::swap(params.a, params.b);
    std::swap(a_k_major, b_k_major);
  }
  params.row_tiles = static_cast<int>(ceil_div(params.a.size, tile_m));
  params.column_tiles = static_cast<int>(ceil_div(params.b.size, config.tile_n));
  params.cluster = config.cluster;
  params.slices = config.slices;
  const std::size_t c_tiles = static_cast<std::size_t>(params.row_tiles) * static_cast<std::size_t>(params.column_tiles);
  const bool has_slices = config.slices > 1;
  const Workspace partials(has_slices ? c_tiles * static_cast<std::size_t>(config.slices * tile_m * config.tile_n) * sizeof(float) : 0,
                           stream);
  if (has_slices) {
    params.partials = partials.as<float4>();
    params.completion = completion_counters(stream, c_tiles * static_cast<std::size_t>(config.cluster));
  }
  params.a_map = map_of(params.a, p.k, a_k_major, a_k_major ? tile_m : tile_k);
  params.b_map = map_of(params.b, p.k, b_k_major, b_k_major ? config.tile_n : tile_k);
  const int blocks = config.cluster > 1 ? params.work_tiles() * config.cluster : std::min(params.work_tiles(), blocks_at_once(1, stream));
  const auto run = [&](auto kernel, std::size_t bytes) {
    launch(kernel,
           LaunchConfig{.grid = static_cast<unsigned>(blocks),
                        .block = tf32::threads,
                        .shared = bytes,
                        .stream = stream,
                        .cluster = static_cast<unsigned>(config.cluster)},
           params);
  };
  if (p.precision == MatmulPrecision::tf32) with_kernel<1>(a_k_major, b_k_major, config.tile_n, run);
  else with_kernel<3>(a_k_major, b_k_major, config.tile_n, run);
}

}  // namespace tern::gpu
