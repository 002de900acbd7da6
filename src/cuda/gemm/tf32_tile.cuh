#pragma once
#include <cuda.h>

#include "cuda/device/math.cuh"
#include "cuda/device/semaphore.cuh"
#include "cuda/device/wgmma.cuh"
#include "tensor/ceil_div.h"

// A tile of a TF32 GEMM: parameters, shared memory, the schedule of tiles and the epilogue. tf32_mainloop.cuh has the picture.
namespace tern::gpu::tf32 {

inline constexpr int tile_m = 128, tile_k = 32;
inline constexpr int consumers = 256, converters = 128, producers = 128, threads = consumers + converters + producers;

/// Operand, (size, depth), with one stride of 1: along the depth (K-major) or along `size` (MN-major).
struct Operand {
  const float* data;
  std::int64_t size, leading_dimension;
};

/// c (M, N) = a (M, K) b (N, K)^T, row-major.
struct Tf32Params {
  CUtensorMap a_map, b_map;
  Operand a, b;
  std::int64_t depth;
  const float* c_in;  ///< matrix that is added, with c's layout, or null
  float* c;
  std::int64_t ldc;
  bool swap_ab;       ///< c is stored (N, M)
  const float* bias;  ///< along c's contiguous dimension, or null
  float alpha;
  int row_tiles, column_tiles;
  int cluster, slices;   ///< see TileConfig
  float4* partials;      ///< (row_tiles column_tiles, slices, tile_n / 8, consumers): sums of the slices, if there are several
  unsigned* completion;  ///< (row_tiles column_tiles, cluster): counters of Note [Last block]

  /// Number of work tiles for clusters.
  __host__ __device__ int work_tiles() const { return row_tiles * column_tiles * slices; }
};

template <int products, int tile_n>
struct Stage {
  float a[tile_m * tile_k];
  float b[tile_n * tile_k];  ///< for three products this is already the big part, because wgmma truncates to TF32
  float b_small[products == 3 ? tile_n * tile_k : 1];
};
template <int tile_n>
struct Stage<1, tile_n> {
  float a[tile_m * tile_k];
  float b[tile_n * tile_k];
};

template <int products>
inline constexpr int stages = products == 3 ? 4 : 6;

/// Includes room for alignment to the swizzle's span.
template <int products, int tile_n>
inline constexpr std::size_t shared_bytes = stages<products> * sizeof(Stage<products, tile_n>) + swizzle_span;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Barriers of the stages; `received` counts the sums that the blocks of a cluster send each other. is_last: see Note [Last block].
template <int stages>
struct Barriers : Pipeline<stages> {
  MBarrier converted[stages], received;
  bool is_last;
};

/// Work tile: a tile of c and a range of the depth. A persistent block has several, one after the other, in the same order for its
/// producer, converters and consumers.
struct WorkTile {
  int row_tile, column_tile, slice, first_step, steps;

  /// Sets this to a block's work tile number `index`; returns false after the last.
  __device__ bool find(const Tf32Params& p, int index) {
    constexpr int panel = 16;  // row tiles: tiles that run at the same time share rows and columns in the L2 cache
    const int tiles = p.row_tiles * p.column_tiles;
    if (index >= p.work_tiles()) return false;
    slice = index / tiles;
    const int tile = index % tiles, above = tile / (panel * p.column_tiles) * panel, rows = min(panel, p.row_tiles - above);
    const int within = tile - above * p.column_tiles;
    row_tile = above + within % rows;
    column_tile = within / rows;
    const int all = static_cast<int>(ceil_div(p.depth, tile_k)), splits = p.cluster * p.slices;
    const int split = slice * p.cluster + static_cast<int>(blockIdx.x) % p.cluster, longer = all % splits;
    first_step = split * (all / splits) + min(split, longer);
    steps = all / splits + (split < longer ? 1 : 0);
    return true;
  }
  static __device__ int first(const Tf32Params& p) { return static_cast<int>(blockIdx.x) / p.cluster; }
  static __device__ int stride(const Tf32Params& p) { return static_cast<int>(gridDim.x) / p.cluster; }
};

/// Offset of element (row, k) in a K-major tile, with the 128-byte swizzle of TMA and wgmma.
__device__ __forceinline__ int k_major_offset(int row, int k) { return row * tile_k + ((k / 4 ^ row % 8) * 4 + k % 4); }
/// The same in an MN-major tile: boxes of 32 rows, each swizzled.
__device__ __forceinline__ int mn_major_offset(int row, int k) {
  return row / 32 * (32 * tile_k) + k * 32 + ((row % 32 / 4 ^ k % 8) * 4 + row % 4);
}

// Epilogue: a consumer's sums are written to c, with alpha, bias and c's old values; those of a split depth are reduced before, within a
// cluster through DSMEM, between clusters through global memory.

/// Position of a thread's accumulators in a tile. A fragment is 8 columns of the tile, of which the thread has two adjacent columns in two
/// rows: float4 {row: x, y; other_row: z, w}.
struct FragmentPosition {
  int row, other_row, column;
};

/// Writes a thread's accumulators of `count` fragments to c: fragments j, j + stride and so on. All reads come before the first write.
/// is_whole: the tile is completely within c.
template <bool swap_ab, bool is_whole, int tile_n, int count>
__device__ __forceinline__ void store_fragments(const Tf32Params& p, const WorkTile& tile, const FragmentPosition& position, int j,
                                                int stride, float4 (&values)[count]) {
  const std::int64_t row = std::int64_t(tile.row_tile) * tile_m + position.row,
                     column = std::int64_t(tile.column_tile) * tile_n + j * 8 + position.column;
  const int between_rows = position.other_row - position.row;
  const std::int64_t first = swap_ab ? column * p.ldc + row : row * p.ldc + column;
  const std::int64_t next = swap_ab ? stride * 8 * p.ldc : stride * 8, other = swap_ab ? between_rows : between_rows * p.ldc;
  const bool has_row = is_whole || row < p.a.size, has_other = is_whole || row + between_rows < p.a.size;
  const auto has = [&](int t) { return j + t * stride < tile_n / 8 && (is_whole || column + t * stride * 8 < p.b.size); };
  const auto has_next = [&](int t) { return is_whole || column + t * stride * 8 + 1 < p.b.size; };  // of a pair in two lines of c^T
#pragma unroll
  for (int t = 0; t < count; ++t) values[t] = {p.alpha * values[t].x, p.alpha * values[t].y, p.alpha * values[t].z, p.alpha * values[t].w};
  if (p.bias) {
#pragma unroll
    for (int t = 0; t < count; ++t) {
      if (!has(t)) continue;
      float2 bias, other_bias;
      if constexpr (swap_ab) {
        bias.x = bias.y = has_row ? p.bias[row] : 0;
        other_bias.x = other_bias.y = has_other ? p.bias[row + between_rows] : 0;
      } else {
        bias = other_bias = {p.bias[column + t * stride * 8], p.bias[column + t * stride * 8 + 1]};
      }
      values[t] = {values[t].x + bias.x, values[t].y + bias.y, values[t].z + other_bias.x, values[t].w + other_bias.y};
    }
  }
  if (p.c_in) {
    const auto read = [&](int t, std::int64_t place) {
      if constexpr (swap_ab) return float2{p.c_in[place], has_next(t) ? p.c_in[place + p.ldc] : 0};
      else return *reinterpret_cast<const float2*>(p.c_in + place);
    };
#pragma unroll
    for (int t = 0; t < count; ++t) {
      if (!has(t)) continue;
      const float2 in = has_row ? read(t, first + t * next) : float2{}, other_in = has_other ? read(t, first + t * next + other) : float2{};
      values[t] = {values[t].x + in.x, values[t].y + in.y, values[t].z + other_in.x, values[t].w + other_in.y};
    }
  }
  const auto write = [&](int t, std::int64_t place, float2 pair) {
    if constexpr (swap_ab) {
      p.c[place] = pair.x;
      if (has_next(t)) p.c[place + p.ldc] = pair.y;
    } else {
      __stwb(reinterpret_cast<float2*>(p.c + place), pair);  // as one store: the compiler may split a plain assignment
    }
  };
#pragma unroll
  for (int t = 0; t < count; ++t) {
    if (!has(t)) continue;
    if (has_row) write(t, first + t * next, {values[t].x, values[t].y});
    if (has_other) write(t, first + t * next + other, {values[t].z, values[t].w});
  }
}

/// Writes a tile whose depth is not split.
template <bool swap_ab, bool is_whole, int tile_n>
__device__ __forceinline__ void store_tile(const Tf32Params& p, const WorkTile& tile, const FragmentPosition& position,
                                           const float (&sums)[tile_n / 2]) {
  constexpr int fragments = tile_n / 8, together = fragments % 4 == 0 ? 4 : 5;
#pragma unroll
  for (int j = 0; j < fragments; j += together) {
    float4 values[together];
#pragma unroll
    for (int t = 0; t < together; ++t) {
      const float* const own = sums + 4 * (j + t);
      values[t] = {own[0], own[1], own[2], own[3]};
    }
    store_fragments<swap_ab, is_whole, tile_n>(p, tile, position, j, 1, values);
  }
}

__device__ __forceinline__ void prefetch_l2(const float* address) { asm volatile("prefetch.global.L2 [%0];\n" ::"l"(address)); }

__device__ __forceinline__ float4 operator+(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }

/// Adds the sums of a tile's splits, in the order of the splits, and writes them to c:
///
///   within a cluster     each block owns every cluster-th fragment; the others send it their sums (st.async), into its stages, which are
///                        free, because a block of a cluster has only one tile
///   between the slices   each cluster leaves its sums in p.partials; the last one to do so (completion counter) adds them all
template <int tile_n, int stages>
__device__ __forceinline__ void reduce_splits(const Tf32Params& p, const WorkTile& tile, const FragmentPosition& position,
                                              const float (&sums)[tile_n / 2], float4* memory, Barriers<stages>& barriers) {
  // Code that a block runs once is fetched from memory: short loops are faster here than unrolled ones.
  constexpr int fragments = tile_n / 8, together = 2, in_flight = 4;
  const int thread = threadIdx.x, cluster = p.cluster, rank = static_cast<int>(blockIdx.x) % cluster;
  const int tile_index = tile.row_tile * p.column_tiles + tile.column_tile, owned = ceil_div(fragments - rank, cluster);
  float4* const tile_partials = p.partials + (std::int64_t(tile_index) * p.slices * fragments + rank) * consumers + thread;
  float4* const slice_partials = tile_partials + tile.slice * fragments * consumers;
  // Sums of `count` parts of several owned fragments, from number `slot` on, together, so that many loads are in flight.
  const auto add = [&](int slot, int count, float4(&totals)[together], auto part) {
#pragma unroll 1
    for (int i0 = 0; i0 < count; i0 += in_flight)
#pragma unroll
      for (int i = i0; i < i0 + in_flight; ++i)
#pragma unroll
        for (int t = 0; t < together; ++t)
          if (i < count && slot + t < owned) totals[t] = totals[t] + part(i, slot + t);
  };
  const auto of_block = [&](int i, int slot) { return memory[(slot * cluster + i) * consumers + thread]; };
  const auto of_slice = [&](int i, int slot) { return __ldcg(tile_partials + (i * fragments + slot * cluster) * consumers); };
  if (p.c_in) {
    // Prefetched while the sums are exchanged.
#pragma unroll 1
    for (int slot = 0; slot < owned; ++slot) {
      const std::int64_t row = std::int64_t(tile.row_tile) * tile_m + position.row;
      const std::int64_t column = std::int64_t(tile.column_tile) * tile_n + (rank + slot * cluster) * 8 + position.column;
      const std::int64_t other = (position.other_row - position.row) * (p.swap_ab ? 1 : p.ldc);
      const float* const address = p.c_in + (p.swap_ab ? column * p.ldc + row : row * p.ldc + column);
      if (column < p.b.size && row < p.a.size) prefetch_l2(address);
      if (column < p.b.size && row + (position.other_row - position.row) < p.a.size) prefetch_l2(address + other);
    }
  }
  if (cluster > 1) {
    if (thread == 0) barriers.received.arrive_and_expect_tx(owned * cluster * consumers * sizeof(float4));
    cluster_sync();  // every block's stages are free
    float4* place = memory + rank * consumers + thread;
#pragma unroll
    for (int j = 0, owner = 0; j < fragments; ++j) {
      st_async(place, float4{sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]}, barriers.received, owner);
      if (++owner == cluster) {
        owner = 0;
        place += cluster * consumers;
      }
    }
    barriers.received.wait(0);
  } else {
#pragma unroll
    for (int j = 0; j < fragments; ++j) slice_partials[j * consumers] = {sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]};
  }
  if (p.slices > 1) {
#pragma unroll 1
    for (int slot = 0; cluster > 1 && slot < owned; slot += together) {
      float4 totals[together] = {};
      add(slot, cluster, totals, of_block);
#pragma unroll
      for (int t = 0; t < together; ++t)
        if (slot + t < owned) slice_partials[(slot + t) * cluster * consumers] = totals[t];
    }
    unsigned* const counter = p.completion + tile_index * cluster + rank;
    if (!is_last_block(counter, p.slices, barriers.is_last, [] { named_barrier_sync(1, consumers); })) return;
  }
#pragma unroll 1
  for (int slot = 0; slot < owned; slot += together) {
    float4 totals[together] = {};
    if (p.slices > 1) add(slot, p.slices, totals, of_slice);
    else add(slot, cluster, totals, of_block);
    if (p.swap_ab) store_fragments<true, false, tile_n>(p, tile, position, rank + slot * cluster, cluster, totals);
    else store_fragments<false, false, tile_n>(p, tile, position, rank + slot * cluster, cluster, totals);
  }
}

#endif

}  // namespace tern::gpu::tf32
