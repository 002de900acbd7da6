#include <algorithm>

#include "cuda/device/math.cuh"
#include "cuda/device/wgmma_k16.cuh"
#include "cuda/gemm/gelu_gemm.h"
#include "cuda/runtime/dispatch.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/occupancy.h"
#include "cuda/runtime/tensor_map.h"

// GEMM of 16-bit floats with gelu_tanh in its epilogue, row-major: c (M, N) = a (M, K) b, for b (N, K), K-major, or (K, N), MN-major.
// Note [GELU in the epilogue].
//
//   bias_gelu    before = a b + bias, c = gelu(before)                                             b K-major
//   gelu_grad    c = a b gelu'(before), and the sums of its columns over the rows of each tile     b MN-major
//
// A block has tiles of 128 x 192, and a cluster of two blocks two tiles below each other, whose part of b each block loads half of, for
// both. Blocks are persistent: of the tiles of a block one consumer has the first, third, ..., the other one those between.
//
//   producer warpgroup   24 registers     thread 0     empty[i] -> TMA: a (128, 64), half of b to both blocks -> full[i]
//                                         thread 32    tile_empty -> TMA: before (128, 192) -> tile_full[consumer]       gelu_grad
//   two consumer         240 registers    its turn -> full[i] -> 8 wgmma m64n192k16, 192 sums a thread -> empty[i] of both blocks;
//   warpgroups                            the other one's turn; epilogue: registers, the tile in shared memory -> TMA -> tile_empty
//
//   shared memory   | 4 stages of a (128, 64), b (64, 192): 160 KiB | tile of c or before: 48 KiB |       in the swizzle of 128 bytes
//
// A stage takes the tensor cores 768 cycles and loads 28 KiB: 37 bytes a cycle. An epilogue of 192 elements a thread takes a consumer less
// than the 12 stages of a depth of 768 take the other one.
namespace tern::gpu {

namespace {

constexpr int tile_m = 128, tile_n = 192, tile_k = 64;
constexpr int block_columns = 64;  ///< of 128 bytes: a block of the swizzle
constexpr int column_blocks = tile_n / block_columns, stages = 4, cluster_size = 2;
constexpr int warpgroup = 128, threads = 3 * warpgroup;
constexpr int halves = tile_m / 64, sums_of_half = tile_n / 2;  ///< a thread's

struct Stage {
  std::uint16_t a[tile_m * tile_k], b[tile_n * tile_k];
};
struct Memory {
  Stage ring[stages];
  std::uint16_t tile[tile_m * tile_n];
};
constexpr std::size_t shared_bytes = sizeof(Memory) + swizzle_span;

struct GeluGemmParams {
  CUtensorMap a, b, c, before;
  const void* bias;
  float* column_parts;  ///< (row_tiles, n); null where nobody wants them
  int n, k_steps, row_tiles, column_tiles;
  /// Pairs of tiles below each other.
  __device__ int tile_pairs() const { return (row_tiles + 1) / 2 * column_tiles; }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

struct Barriers {
  MBarrier full[stages], empty[stages];
  MBarrier tile_full[2];  ///< of each consumer, for its tiles
  MBarrier tile_empty;    ///< the memory of a tile's epilogue is free again
  float sums[2][4][tile_n];
};

/// The tiles of this block, numbered from 0.
struct Tiles {
  const GeluGemmParams& p;
  __device__ int count() const {
    const int first = static_cast<int>(blockIdx.x) / cluster_size, clusters = static_cast<int>(gridDim.x) / cluster_size;
    return (p.tile_pairs() - first + clusters - 1) / clusters;
  }
  __device__ int pair_of(int number) const { return (static_cast<int>(blockIdx.x) + number * static_cast<int>(gridDim.x)) / cluster_size; }
  __device__ int row_tile(int number) const { return pair_of(number) / p.column_tiles * 2 + static_cast<int>(blockIdx.x) % cluster_size; }
  __device__ int column(int number) const { return pair_of(number) % p.column_tiles * tile_n; }
};

/// One thread: the stages of all tiles, in their order.
template <bool b_k_major>
__device__ __forceinline__ void load_stages(const GeluGemmParams& p, Memory& memory, Barriers& barriers) {
  const Tiles tiles{p};
  const unsigned rank = cluster_rank();
  constexpr std::uint16_t both = 3;
  PipelineState<stages> write;
  const int count = tiles.count();
  for (int number = 0; number < count; ++number) {
    const int row = tiles.row_tile(number) * tile_m, column = tiles.column(number);
    for (int step = 0; step < p.k_steps; ++step, write.advance()) {
      Stage& stage = memory.ring[write.index];
      MBarrier& full = barriers.full[write.index];
      barriers.empty[write.index].wait(write.phase ^ 1);
      full.arrive_and_expect_tx(sizeof(Stage));
      const int k = step * tile_k;
      tma_load_2d(stage.a, p.a, k, row, full);
      if constexpr (b_k_major) {
        constexpr int half = tile_n / cluster_size;  // rows of b
        tma_load_2d(stage.b + rank * half * tile_k, p.b, k, column + static_cast<int>(rank) * half, full, both);
      } else {
        constexpr int half = tile_k / cluster_size;  // rows of each block of columns
#pragma unroll
        for (int block = 0; block < column_blocks; ++block)
          tma_load_2d(stage.b + (block * tile_k + rank * half) * block_columns, p.b, column + block * block_columns,
                      k + static_cast<int>(rank) * half, full, both);
      }
    }
  }
}

/// One thread: what was there before GELU, for the tiles of both consumers.
__device__ __forceinline__ void load_tiles(const GeluGemmParams& p, Memory& memory, Barriers& barriers) {
  const Tiles tiles{p};
  const int count = tiles.count();
  for (int number = 0; number < count; ++number) {
    barriers.tile_empty.wait((number & 1) ^ 1);
    MBarrier& full = barriers.tile_full[number & 1];
    full.arrive_and_expect_tx(sizeof(memory.tile));
#pragma unroll
    for (int block = 0; block < column_blocks; ++block)
      tma_load_2d(memory.tile + block * tile_m * block_columns, p.before, tiles.column(number) + block * block_columns,
                  tiles.row_tile(number) * tile_m, full);
  }
}

/// A consumer's sums of a tile. A stage is empty when the wgmma after it have been queued and its own are done.
template <class T, bool b_k_major, class EndTurn>
__device__ __forceinline__ void multiply(const GeluGemmParams& p, const Memory& memory, Barriers& barriers, PipelineState<stages>& read,
                                         float (&sums)[halves][sums_of_half], EndTurn end_turn) {
  constexpr int wgmma_k = 16, half_rows = 64 * tile_k * 2 >> 4;  // in a descriptor's units of 16 bytes
  constexpr int a_step = wgmma_k * 2 >> 4, b_step = b_k_major ? a_step : wgmma_k * block_columns * 2 >> 4;
  const unsigned lane = threadIdx.x % 32;
  int previous = -1;
  const auto release = [&](int stage) {
    if (lane < cluster_size) arrive_at(barriers.empty[stage], lane);
  };
#pragma unroll
  for (int h = 0; h < halves; ++h)
#pragma unroll
    for (int i = 0; i < sums_of_half; ++i) sums[h][i] = 0;
#pragma unroll 1
  for (int step = 0; step < p.k_steps; ++step) {
    const Stage& stage = memory.ring[read.index];
    const std::uint64_t a = wgmma_descriptor(shared_address(stage.a), 0);
    const std::uint64_t b = wgmma_descriptor(shared_address(stage.b), b_k_major ? 0 : tile_k * block_columns * 2);
    barriers.full[read.index].wait(read.phase);
#pragma unroll
    for (int h = 0; h < halves; ++h) warpgroup_fence_operand(sums[h]);
    warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < tile_k / wgmma_k; ++k)
#pragma unroll
      for (int h = 0; h < halves; ++h) wgmma_k16<T, false, !b_k_major>(sums[h], a + h * half_rows + k * a_step, b + k * b_step, true);
    warpgroup_commit_batch();
    if (step + 1 == p.k_steps) end_turn();
    warpgroup_wait<1>();
#pragma unroll
    for (int h = 0; h < halves; ++h) warpgroup_fence_operand(sums[h]);
    if (previous >= 0) release(previous);
    previous = read.index;
    read.advance();
  }
  warpgroup_wait<0>();
#pragma unroll
  for (int h = 0; h < halves; ++h) warpgroup_fence_operand(sums[h]);
  release(previous);
}

/// Calls f(address, column, x, y) for each pair of neighbouring sums of a thread, with the address of its place in the tile's memory, eight
/// columns after another.
template <class F>
__device__ __forceinline__ void for_each_pair(std::uint32_t tile, float (&sums)[halves][sums_of_half], F f) {
  const int warp = threadIdx.x % warpgroup / 32, lane = threadIdx.x % 32;
  const int first_row = warp * 16 + lane / 4, swizzle = lane / 4;  // a row's place in its group of eight, of all rows of this thread
  const std::uint32_t rows = tile + static_cast<std::uint32_t>(first_row * 128 + lane % 4 * 4);
#pragma unroll
  for (int j = 0; j < tile_n / 8; ++j) {
    const std::uint32_t place = rows + j / 8 * (tile_m * 128) + ((j % 8 ^ swizzle) << 4);
#pragma unroll
    for (int h = 0; h < halves; ++h)
#pragma unroll
      for (int r = 0; r < 2; ++r) f(place + (h * 64 + r * 8) * 128, j, sums[h][4 * j + 2 * r], sums[h][4 * j + 2 * r + 1]);
  }
}

/// Of a consumer: its threads' writes of the tile go to memory. `is_over`: the memory is the next tile's, else this consumer's again.
__device__ __forceinline__ void store_tile(const CUtensorMap& map, const Memory& memory, Barriers& barriers, int column, int row,
                                           int consumer, bool is_over) {
  fence_proxy_async();
  named_barrier_sync(3 + consumer, warpgroup);
  if (threadIdx.x % warpgroup == 0) {
#pragma unroll
    for (int block = 0; block < column_blocks; ++block)
      tma_store_2d(memory.tile + block * tile_m * block_columns, map, column + block * block_columns, row);
    tma_store_commit();
    tma_store_wait_read();
    if (is_over) barriers.tile_empty.arrive();
  }
  if (!is_over) named_barrier_sync(3 + consumer, warpgroup);
}

template <class T>
__device__ __forceinline__ void store_gelu(const GeluGemmParams& p, Memory& memory, Barriers& barriers, int number, int consumer,
                                           float (&sums)[halves][sums_of_half]) {
  const Tiles tiles{p};
  const int column = tiles.column(number), row = tiles.row_tile(number) * tile_m;
  const std::uint32_t tile = shared_address(memory.tile);
  if (number > 0) barriers.tile_empty.wait((number - 1) & 1);
  const T* const bias = static_cast<const T*>(p.bias) + column + threadIdx.x % 4 * 2;
  const int left = p.n - column - static_cast<int>(threadIdx.x % 4) * 2;  // columns from the thread's first on: n is even
  float low = 0, high = 0;
  int known = -1;
  for_each_pair(tile, sums, [&](std::uint32_t address, int j, float& x, float& y) {
    if (j != known) {
      low = j * 8 < left ? convert<float>(bias[j * 8]) : 0;
      high = j * 8 < left ? convert<float>(bias[j * 8 + 1]) : 0;
      known = j;
    }
    x += low;
    y += high;
    store_shared(address, pack_pair<T>(x, y));
  });
  store_tile(p.before, memory, barriers, column, row, consumer, false);
  for_each_pair(tile, sums, [&](std::uint32_t address, int, float x, float y) {
    store_shared(address, pack_pair<T>(gelu_tanh_approx(x), gelu_tanh_approx(y)));
  });
  store_tile(p.c, memory, barriers, column, row, consumer, true);
}

template <class T>
__device__ __forceinline__ void store_gelu_grad(const GeluGemmParams& p, Memory& memory, Barriers& barriers, int number, int consumer,
                                                float (&sums)[halves][sums_of_half]) {
  const Tiles tiles{p};
  const int column = tiles.column(number), row_tile = tiles.row_tile(number), thread = threadIdx.x % warpgroup, lane = thread % 32;
  barriers.tile_full[consumer].wait(number / 2 & 1);
  float low = 0, high = 0;
  int rows = 0;
  for_each_pair(shared_address(memory.tile), sums, [&](std::uint32_t address, int j, float x, float y) {
    float before_x, before_y;
    unpack_pair<T>(load_shared<unsigned>(address), before_x, before_y);
    x *= gelu_tanh_derivative(before_x);
    y *= gelu_tanh_derivative(before_y);
    store_shared(address, pack_pair<T>(x, y));
    low += x;
    high += y;
    if (++rows % (2 * halves) != 0) return;
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) {
      low += __shfl_xor_sync(~0u, low, distance);
      high += __shfl_xor_sync(~0u, high, distance);
    }
    if (lane < 4) {
      float* const to = barriers.sums[consumer][thread / 32] + j * 8 + lane * 2;
      to[0] = low;
      to[1] = high;
    }
    low = high = 0;
  });
  store_tile(p.c, memory, barriers, column, row_tile * tile_m, consumer, true);  // and its barrier: the sums are there
  if (p.column_parts && row_tile < p.row_tiles)
    for (int i = thread; i < min(tile_n, p.n - column); i += warpgroup) {
      float total = 0;
#pragma unroll
      for (int warp = 0; warp < 4; ++warp) total += barriers.sums[consumer][warp][i];
      p.column_parts[std::int64_t(row_tile) * p.n + column + i] = total;
    }
  named_barrier_sync(3 + consumer, warpgroup);  // they have been read
}

/// Consumer 0 or 1. Named barrier 1 + i: consumer i may wait for its stages, for the other one has seen all before them. Without that it
/// could take a stage of two rounds before for its own, as parity does not tell them apart.
template <class T, bool is_gradient>
__device__ __forceinline__ void consume(const GeluGemmParams& p, Memory& memory, Barriers& barriers, int consumer) {
  const int count = Tiles{p}.count();
  PipelineState<stages> read;
  const auto skip_tile = [&] {
    for (int step = 0; step < p.k_steps; ++step) read.advance();
  };
  if (consumer == 1) skip_tile();
  for (int number = consumer; number < count; number += 2) {
    float sums[halves][sums_of_half];
    if (number > 0) named_barrier_sync(1 + consumer, 2 * warpgroup);
    multiply<T, !is_gradient>(p, memory, barriers, read, sums, [&] {
      if (number + 1 < count) named_barrier_arrive(2 - consumer, 2 * warpgroup);
    });
    if constexpr (is_gradient) store_gelu_grad<T>(p, memory, barriers, number, consumer, sums);
    else store_gelu<T>(p, memory, barriers, number, consumer, sums);
    skip_tile();
  }
}

#endif

template <class T, bool is_gradient>
__global__ void __launch_bounds__(threads, 1) gelu_gemm_kernel(__grid_constant__ const GeluGemmParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ float shared[];
  __shared__ Barriers barriers;  // its presence says that this was compiled for wgmma: see runs_wgmma_kernel
  auto& memory = *swizzle_aligned<Memory>(shared);
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; ++i) {
      barriers.full[i].init(1);
      barriers.empty[i].init(4 * cluster_size);
    }
    barriers.tile_full[0].init(1);
    barriers.tile_full[1].init(1);
    barriers.tile_empty.init(1);
    fence_barrier_init();
  }
  cluster_sync();
  const int group = static_cast<int>(threadIdx.x) / warpgroup;
  if (group == 0) {
    warpgroup_reg_dealloc<24>();
    if (threadIdx.x == 0) load_stages<!is_gradient>(p, memory, barriers);
    if (is_gradient && threadIdx.x == 32) load_tiles(p, memory, barriers);
  } else {
    warpgroup_reg_alloc<240>();
    consume<T, is_gradient>(p, memory, barriers, group - 1);
  }
  __syncwarp();
  cluster_sync();  // nobody leaves while the other block loads into its memory or arrives at its barriers
#endif
}

using Kernel = void (*)(GeluGemmParams);

Kernel kernel_of(const GemmProblem& p) {
  return dispatch_halves(p.dtype, [&]<class T>() -> Kernel {
    return p.epilogue == Epilogue::gelu_grad ? gelu_gemm_kernel<T, true> : gelu_gemm_kernel<T, false>;
  });
}

/// Row-major, c^T (n, m): rows of c are the problem's n.
std::int64_t tile_pairs(const GemmProblem& p) { return (ceil_div(p.n, tile_m) + 1) / 2 * ceil_div(p.m, tile_n); }

}  // namespace

bool has_gelu_gemm(const GemmProblem& p, const GemmOperands& operands, Stream stream) {
  return (p.dtype == DType::bf16 || p.dtype == DType::f16) && (p.epilogue == Epilogue::bias_gelu || p.epilogue == Epilogue::gelu_grad) &&
         p.batch_count == 1 && p.write == Write::overwrite && p.a_transposed == (p.epilogue == Epilogue::bias_gelu) && !p.b_transposed &&
         std::min({p.m, p.n, p.k}) > 0 && p.m % 8 == 0 && std::max({p.m, p.n, p.k}) < (std::int64_t(1) << 30) &&
         tile_pairs(p) < (std::int64_t(1) << 30) && has_tensor_map(operands.a, p.dtype, p.lda) &&
         has_tensor_map(operands.b, p.dtype, p.ldb) && has_tensor_map(operands.c, p.dtype, p.ldc) && is_aligned(operands.before_gelu, 16) &&
         runs_wgmma_kernel(kernel_of(p), stream.device);
}

unsigned gelu_gemm_parts(const GemmProblem& p) { return static_cast<unsigned>(ceil_div(p.n, tile_m)); }

bool is_gelu_gemm_faster(const GemmProblem& p, Stream stream) {
  return p.k <= 1024 && 2 * tile_pairs(p) >= attribute(cudaDevAttrMultiProcessorCount, stream.device);
}

void gelu_gemm(const GemmProblem& p, const GemmOperands& operands, void* out, Stream stream) {
  GeluGemmParams params{};
  const bool b_k_major = p.epilogue == Epilogue::bias_gelu;
  const auto matrix = [&](const void* data, std::int64_t inner, std::int64_t outer, std::int64_t leading_dimension) {
    return TmaMatrix{data, p.dtype, inner, outer, leading_dimension};
  };
  params.a = tensor_map(matrix(operands.b, p.k, p.n, p.ldb), tile_k, tile_m);
  params.b = b_k_major ? tensor_map(matrix(operands.a, p.k, p.m, p.lda), tile_k, tile_n / cluster_size)
                       : tensor_map(matrix(operands.a, p.m, p.k, p.lda), block_columns, tile_k / cluster_size);
  params.c = tensor_map(matrix(out, p.m, p.n, p.ldc), block_columns, tile_m);
  params.before = tensor_map(matrix(operands.before_gelu, p.m, p.n, p.ldc), block_columns, tile_m);
  params.bias = operands.bias;
  params.column_parts = operands.column_parts;
  params.n = static_cast<int>(p.m);
  params.k_steps = static_cast<int>(ceil_div(p.k, tile_k));
  params.row_tiles = static_cast<int>(ceil_div(p.n, tile_m));
  params.column_tiles = static_cast<int>(ceil_div(p.m, tile_n));
  const Kernel kernel = kernel_of(p);
  const auto clusters =
      static_cast<unsigned>(std::min<std::int64_t>(tile_pairs(p), clusters_at_once(kernel, cluster_size, threads, shared_bytes, stream)));
  launch(kernel,
         LaunchConfig{.grid = clusters * cluster_size, .block = threads, .shared = shared_bytes, .stream = stream, .cluster = cluster_size},
         params);
}

}  // namespace tern::gpu
