#pragma once
#include <cuda.h>

#include "cuda/device/math.cuh"
#include "cuda/device/wgmma.cuh"
#include "tensor/ceil_div.h"

// The parts of a TF32 GEMM that its warpgroups share: parameters, shared memory, the schedule of tiles. tf32_mainloop.cuh has the picture.
namespace tern::gpu::tf32 {

inline constexpr int tile_m = 128, tile_k = 32;
inline constexpr int consumers = 256, converters = 128, producers = 128, threads = consumers + converters + producers;

/// An operand, (size, depth), with one stride of 1: along the depth (K-major) or along `size` (MN-major).
struct Operand {
  const float* data;
  std::int64_t size, leading_dimension;
};

/// c (M, N) = a (M, K) b (N, K)^T, row-major.
struct Tf32Params {
  CUtensorMap a_map, b_map;
  Operand a, b;
  std::int64_t depth;
  const float* c_in;  ///< the matrix that is added, laid out as c, or null
  float* c;
  std::int64_t ldc;
  bool swap_ab;       ///< c is stored (N, M)
  const float* bias;  ///< along c's contiguous side, or null
  float alpha;
  int row_tiles, column_tiles;
  int cluster, slices;   ///< TileConfig's
  float4* partials;      ///< (row_tiles column_tiles, slices, tile_n / 8, consumers): sums of the slices, if there are several
  unsigned* completion;  ///< (row_tiles column_tiles, cluster): counters of Note [Last block]

  /// Pieces of work for a cluster.
  __host__ __device__ int work_tiles() const { return row_tiles * column_tiles * slices; }
};

template <int products, int tile_n>
struct Stage {
  float a[tile_m * tile_k];
  float b[tile_n * tile_k];  ///< wgmma truncates to TF32: of three products, this is the big part as it is
  float b_small[products == 3 ? tile_n * tile_k : 1];
};
template <int tile_n>
struct Stage<1, tile_n> {
  float a[tile_m * tile_k];
  float b[tile_n * tile_k];
};

template <int products>
inline constexpr int stages = products == 3 ? 4 : 6;

/// With room to begin at a multiple of the swizzle's span.
template <int products, int tile_n>
inline constexpr std::size_t shared_bytes = stages<products> * sizeof(Stage<products, tile_n>) + swizzle_span;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Barriers of the stages, and `received` of the sums that the blocks of a cluster send each other. is_last: see Note [Last block].
template <int stages>
struct Barriers {
  MBarrier full[stages], converted[stages], empty[stages], received;
  bool is_last;
};

/// Work tile: a tile of c and a range of the depth. A persistent block has several, one after the other, in the same order for its
/// producer, converters and consumers.
struct WorkTile {
  int row_tile, column_tile, slice, first_step, steps;

  /// Finds a block's work tile number `index`; false behind the last.
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

/// The offset of element (row, k) in a K-major tile: in TMA's and wgmma's swizzle of 128 bytes.
__device__ __forceinline__ int k_major_offset(int row, int k) { return row * tile_k + ((k / 4 ^ row % 8) * 4 + k % 4); }
/// And in an MN-major one: boxes of 32 rows, each swizzled.
__device__ __forceinline__ int mn_major_offset(int row, int k) {
  return row / 32 * (32 * tile_k) + k * 32 + ((row % 32 / 4 ^ k % 8) * 4 + row % 4);
}

#endif

}  // namespace tern::gpu::tf32
