#include <cuda.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "cuda/device/math.cuh"
#include "cuda/device/semaphore.cuh"
#include "cuda/device/wgmma.cuh"
#include "cuda/gemm/gemm.h"
#include "cuda/runtime/allocator.h"
#include "cuda/runtime/dispatch.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/tensor_map.h"
#include "tensor/sizes.h"

// Float32 GEMM on Hopper's tensor cores, by the three products of Note [3xTF32]. Tiles of 128 x tile_n elements of c are accumulated in
// steps of 32 along the depth. A block of 512 threads has four warpgroups, which share a ring of stages:
//
//   warpgroup 3  producer   24 registers   one thread: empty[i] -> TMA: a (128, 32), b (tile_n, 32) into stage i -> full[i]
//   warpgroup 2  converter  72 registers   full[i] -> b_small written; both K-major, as wgmma takes them -> converted[i]
//   warpgroups   consumers  208 registers  64 rows of the tile each: full[i] -> a to registers, split there;
//   0 and 1                                converted[i] -> wgmma m64 n(tile_n) k8, a from registers, b from shared memory -> empty[i]
//
//   shared memory         | stage 0: a 16 KiB, b 16 KiB, b_small 16 KiB | ... | stage 3 |     (tile_n = 128)
//   after a split depth   | sums that the cluster's blocks send                       |
//
// A block is persistent: it computes several tiles, and its producer loads the next one while the consumers write one.
//
// Shared-memory bandwidth is nearly exhausted: of the 1536 cycles in which tensor cores compute the products of a step of width 128, their
// own reads take 768, the TMA loads 256 and the splits 384. So two consumer warpgroups that take turns at the tensor cores (ping-pong)
// would be no faster than these two, which do not.
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

template <int tile_n>
struct Stage {
  float a[tile_m * tile_k];
  float b[tile_n * tile_k];  ///< the big part as it is, because wgmma truncates to TF32
  float b_small[tile_n * tile_k];
};

inline constexpr int stages = 4;

/// Includes room for alignment to the swizzle's span.
template <int tile_n>
inline constexpr std::size_t shared_bytes = stages * sizeof(Stage<tile_n>) + swizzle_span;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Barriers of the stages; `received` counts the sums that the blocks of a cluster send each other. is_last: see Note [Last block].
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
template <int tile_n>
__device__ __forceinline__ void reduce_splits(const Tf32Params& p, const WorkTile& tile, const FragmentPosition& position,
                                              const float (&sums)[tile_n / 2], float4* memory, Barriers& barriers) {
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

/// Starts to load a tile of an operand.
template <bool is_k_major, int rows>
__device__ __forceinline__ void load_tile(const CUtensorMap& map, int row0, int k0, float* to, MBarrier& full) {
  if constexpr (is_k_major) {
    tma_load_2d(to, map, k0, row0, full);
  } else {
#pragma unroll
    for (int i = 0; i < rows / 32; ++i) tma_load_2d(to + i * 32 * tile_k, map, row0 + i * 32, k0, full);
  }
}

/// Producer: one thread.
template <bool a_k_major, bool b_k_major, int tile_n>
__device__ __forceinline__ void load_tiles(const Tf32Params& p, Stage<tile_n>* memory, Barriers& barriers) {
  WorkTile tile;
  PipelineState<stages> write;
  for (int index = WorkTile::first(p); tile.find(p, index); index += WorkTile::stride(p))
    for (int step = 0; step < tile.steps; ++step, write.advance()) {
      const int k0 = (tile.first_step + step) * tile_k;
      Stage<tile_n>& stage = memory[write.index];
      MBarrier& full = barriers.begin_load(write, sizeof(stage.a) + sizeof(stage.b));
      load_tile<a_k_major, tile_m>(p.a_map, tile.row_tile * tile_m, k0, stage.a, full);
      load_tile<b_k_major, tile_n>(p.b_map, tile.column_tile * tile_n, k0, stage.b, full);
    }
}

__device__ __forceinline__ float4 vector_at(const float* tile, int offset) { return *reinterpret_cast<const float4*>(tile + offset); }

/// Writes the small part of a K-major b; each of four warps converts a quarter.
template <int tile_n>
__device__ __forceinline__ void convert_k_major(int warp, int lane, Stage<tile_n>& stage) {
#pragma unroll
  for (int i = 0; i < tile_n / 16; ++i) {
    const int offset = (warp * 32 + lane + i * 128) * 4;
    const float4 x = vector_at(stage.b, offset);
    store_shared(shared_address(stage.b_small + offset), tf32_residual(x));
  }
}
/// The same for an MN-major b of 128 rows, which it transposes in place: wgmma takes TF32 operands only K-major.
__device__ __forceinline__ void convert_mn_major(int warp, int lane, Stage<128>& stage) {
  // A warp has a box of 32 rows: squares of 4 x 4 elements, of which those of eight lanes are on a diagonal, so that lines are read and
  // rows written without bank conflicts.
  float4 lines[2][4];
  const int row = warp * 32 + lane % 8 * 4;
  int ks[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    ks[i] = (lane % 8 ^ (lane / 8 + i * 4)) * 4;
#pragma unroll
    for (int j = 0; j < 4; ++j) lines[i][j] = vector_at(stage.b, mn_major_offset(row, ks[i] + j));
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const auto& [a, b, c, d] = lines[i];
    const float4 rows[4] = {{a.x, b.x, c.x, d.x}, {a.y, b.y, c.y, d.y}, {a.z, b.z, c.z, d.z}, {a.w, b.w, c.w, d.w}};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int offset = k_major_offset(row + j, ks[i]);
      store_shared(shared_address(stage.b + offset), rows[j]);
      store_shared(shared_address(stage.b_small + offset), tf32_residual(rows[j]));
    }
  }
}

/// Converter warpgroup.
template <bool b_k_major, int tile_n>
__device__ __forceinline__ void convert_tiles(const Tf32Params& p, Stage<tile_n>* memory, Barriers& barriers) {
  const int lane = threadIdx.x % 32, warp = (static_cast<int>(threadIdx.x) - consumers) / 32;
  WorkTile tile;
  PipelineState<stages> read;
  for (int index = WorkTile::first(p); tile.find(p, index); index += WorkTile::stride(p))
    for (int step = 0; step < tile.steps; ++step, read.advance()) {
      barriers.wait_full(read);
      if constexpr (b_k_major) convert_k_major(warp, lane, memory[read.index]);
      else convert_mn_major(warp, lane, memory[read.index]);
      fence_proxy_async();
      barriers.converted[read.index].arrive_warp(lane);
    }
}

/// A thread's registers for one step of a: fragments of the four wgmma along the depth of 32.
struct AFragment {
  std::uint32_t big[4][4], small[4][4];
};

/// Consumer warpgroups.
template <bool a_k_major, int tile_n>
__device__ __forceinline__ void multiply_tiles(const Tf32Params& p, Stage<tile_n>* memory, Barriers& barriers) {
  using State = PipelineState<stages>;
  const int lane = threadIdx.x % 32, warp = static_cast<int>(threadIdx.x) / 32, row_in_8 = lane / 4, member = lane % 4;
  // The assignment of rows of the tile to threads is arbitrary, and is chosen so that a warp's rows are in different banks.
  const int row = a_k_major ? warp * 16 + row_in_8 : warp / 2 * 32 + warp % 2 * 8 + row_in_8 / 4 * 16 + row_in_8 % 4;
  const FragmentPosition position{row, row + (a_k_major ? 8 : 4), member * 2};
  const auto load_a = [&](AFragment& fragment, const State& state) {
    const Stage<tile_n>& stage = memory[state.index];
    barriers.wait_full(state);
#pragma unroll
    for (int s = 0; s < 4; ++s)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = i % 2 == 0 ? position.row : position.other_row, k = s * 8 + i / 2 * 4 + member;
        const float x = stage.a[a_k_major ? k_major_offset(r, k) : mn_major_offset(r, k)], big = round_to_tf32(x);
        fragment.big[s][i] = __float_as_uint(big);
        fragment.small[s][i] = __float_as_uint(round_to_tf32(x - big));
      }
  };
  const auto release = [&](int stage) { barriers.empty[stage].arrive_warp(lane); };
  WorkTile tile;
  State read;  // of the current step
  for (int index = WorkTile::first(p); tile.find(p, index); index += WorkTile::stride(p)) {
    float sums[tile_n / 2] = {};
    float step_sums[tile_n / 2];
    // While the tensor cores compute one step, a's fragments for the next are prepared.
    AFragment fragments[2];
    load_a(fragments[0], read);
    const auto multiply_step = [&](AFragment& now, AFragment& next, int step) {
      constexpr int k8_floats = 8 * sizeof(float) >> 4;  // depth of a wgmma in the descriptor's units of 16 bytes
      const Stage<tile_n>& stage = memory[read.index];
      const std::uint64_t b = wgmma_descriptor(stage.b);
      barriers.converted[read.index].wait(read.phase);
      State ahead = read;
      ahead.advance();
      const std::uint64_t b_small = wgmma_descriptor(stage.b_small);
      warpgroup_fence_operand(step_sums);
      warpgroup_arrive();
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        wgmma_k8_tf32(step_sums, now.small[s], b + s * k8_floats, s > 0);
        wgmma_k8_tf32(step_sums, now.big[s], b_small + s * k8_floats, true);
      }
#pragma unroll
      for (int s = 0; s < 4; ++s) wgmma_k8_tf32(step_sums, now.big[s], b + s * k8_floats, true);
      warpgroup_commit_batch();
      if (step + 1 < tile.steps) load_a(next, ahead);
      warpgroup_wait<0>();
      warpgroup_fence_operand(step_sums);
      release(read.index);
#pragma unroll
      for (int i = 0; i < tile_n / 2; ++i) sums[i] += step_sums[i];
      read = ahead;
    };
    warpgroup_fence_operand(sums);
    for (int step = 0; step < tile.steps; step += 2) {
      multiply_step(fragments[0], fragments[1], step);
      if (step + 1 < tile.steps) multiply_step(fragments[1], fragments[0], step + 1);
    }
    const bool is_whole = std::int64_t(tile.row_tile + 1) * tile_m <= p.a.size && std::int64_t(tile.column_tile + 1) * tile_n <= p.b.size;
    if (p.cluster > 1 || p.slices > 1) reduce_splits<tile_n>(p, tile, position, sums, reinterpret_cast<float4*>(memory), barriers);
    else if (p.swap_ab)
      is_whole ? store_tile<true, true, tile_n>(p, tile, position, sums) : store_tile<true, false, tile_n>(p, tile, position, sums);
    else is_whole ? store_tile<false, true, tile_n>(p, tile, position, sums) : store_tile<false, false, tile_n>(p, tile, position, sums);
  }
}

#endif

template <bool a_k_major, bool b_k_major, int tile_n>
__global__ void __launch_bounds__(threads, 1) tf32_gemm_kernel(__grid_constant__ const Tf32Params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ float memory[];
  __shared__ Barriers barriers;  // non-empty only if compiled for wgmma: see runs_wgmma_kernel
  if (threadIdx.x == 0) {
    tma_prefetch_map(p.a_map);
    tma_prefetch_map(p.b_map);
    barriers.init(consumers / 32 * warp_arrivals);
    for (MBarrier& converted : barriers.converted) converted.init(converters / 32 * warp_arrivals);
    barriers.received.init(1);
    fence_barrier_init();
  }
  __syncthreads();
  auto* const stage = swizzle_aligned<Stage<tile_n>>(memory);
  // The registers that warpgroups give up and take add up to those that the block was launched with.
  constexpr int first_producer = consumers + converters;
  if (threadIdx.x >= first_producer) {
    warpgroup_reg_dealloc<24>();
    if (threadIdx.x == first_producer) load_tiles<a_k_major, b_k_major>(p, stage, barriers);
  } else if (threadIdx.x >= consumers) {
    warpgroup_reg_dealloc<72>();
    convert_tiles<b_k_major>(p, stage, barriers);
  } else {
    warpgroup_reg_alloc<208>();
    multiply_tiles<a_k_major>(p, stage, barriers);
  }
#endif
}

}  // namespace tern::gpu::tf32

// The launch: tile configurations, ranked by a model of their time.
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
template <class Run>
void with_kernel(bool a_k_major, bool b_k_major, int tile_n, Run run) {
  using tf32::shared_bytes;
  if (!b_k_major) run(tf32_gemm_kernel<false, false, 128>, shared_bytes<128>);
  else if (a_k_major && tile_n == 128) run(tf32_gemm_kernel<true, true, 128>, shared_bytes<128>);
  else if (a_k_major) run(tf32_gemm_kernel<true, true, 80>, shared_bytes<80>);
  else if (tile_n == 128) run(tf32_gemm_kernel<false, true, 128>, shared_bytes<128>);
  else run(tf32_gemm_kernel<false, true, 80>, shared_bytes<80>);
}

constexpr int max_cluster_size = static_cast<int>(max_cluster);

/// Number of blocks that run at once in clusters of `cluster` blocks. A multiprocessor holds one block of any of the kernels.
int blocks_at_once(int cluster, Stream stream) {
  unsigned clusters = 0;
  with_kernel(true, true, 128, [&](auto kernel, std::size_t bytes) {
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
constexpr StepTimes times{1.26, 0.77, 1.12};
constexpr double per_gemm = 3.3;
constexpr double per_round = 1.6;         ///< for one tile of each block, in addition to its steps
constexpr double cluster_reduction = 2;   ///< through DSMEM
constexpr double slice_reduction = 2.8;   ///< through global memory, in addition to the next two
constexpr double per_megabyte = 0.38;     ///< for each megabyte of the slices' sums
constexpr double per_slice_added = 0.25;  ///< added by the last cluster, whose blocks share the additions

double modelled_time(const TileConfig& config, std::int64_t c_tiles, std::int64_t k_steps, bool b_k_major, int blocks_at_once) {
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

bool has_tf32_gemm(Device device) { return runs_wgmma_kernel(tf32_gemm_kernel<true, true, 128>, device); }

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
          timed.emplace_back(modelled_time(config, c_tiles, k_steps, right_k_major, at_once), config);
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
  with_kernel(a_k_major, b_k_major, config.tile_n, run);
}

}  // namespace tern::gpu
