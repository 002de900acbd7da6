#include <algorithm>

#include "cuda/device/math.cuh"
#include "cuda/device/wgmma_k16.cuh"
#include "cuda/gemm/algorithm.h"
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
// A block has tiles of 128 x 192. A cluster of two blocks has two tiles one above the other, and each block loads half of their part of b
// for both (multicast). Blocks are persistent; a block's tiles go alternately to its two consumer warpgroups.
//
//   producer warpgroup   24 registers     warp 0       empty[i] -> TMA: a (128, 64), half of b to both blocks -> full[i]
//                                         warp 1, 2    pieces[consumer]: empty[j] -> TMA: before (64, 64) -> full[j]
//                                         gelu_grad
//   two consumer         240 registers    own turn -> full[i] -> 8 wgmma m64n192k16, 192 accumulators a thread -> empty[i] of both blocks;
//   warpgroups                            pass the turn; epilogue: six pieces of the tile, registers -> piece j -> TMA store
//
//   shared memory   | 4 stages of a (128, 64), b (64, 192): 160 KiB | 3 pieces (64, 64) of each consumer: 48 KiB |   128-byte swizzle
//
// A stage takes the tensor cores 768 cycles and loads 28 KiB: 37 bytes per cycle. Each consumer has separate pieces, so that its epilogue
// may take as long as 24 stages at a depth of 768, from the end of one of its products to the end of the next; with one buffer for both,
// the epilogues of a block would wait for each other, for as long as 12 stages.
namespace tern::gpu {

namespace {

constexpr int tile_m = 128, tile_n = 192, tile_k = 64;
constexpr int block_columns = 64;  ///< columns of 128 bytes: a block of the swizzle
constexpr int column_blocks = tile_n / block_columns, stages = 4, cluster_size = 2;
constexpr int warpgroup = 128, threads = 3 * warpgroup;
constexpr int halves = tile_m / 64, sums_of_half = tile_n / 2;  ///< of a thread
/// A piece of the epilogue is half of the rows of a block of columns.
constexpr int piece_m = tile_m / halves, pieces_of_consumer = 3;
constexpr unsigned piece_bytes = piece_m * block_columns * 2;

struct Stage {
  std::uint16_t a[tile_m * tile_k], b[tile_n * tile_k];
};
struct Memory {
  Stage ring[stages];
  std::uint16_t pieces[2][pieces_of_consumer][piece_m * block_columns];
};
constexpr std::size_t shared_bytes = sizeof(Memory) + swizzle_span;

struct GeluGemmParams {
  CUtensorMap a, b, c, before;
  const void* bias;
  float* column_parts;  ///< (row_tiles, n); null if not needed
  int n, k_steps, row_tiles, column_tiles;
  /// Number of pairs of tiles, one above the other.
  __device__ int tile_pairs() const { return (row_tiles + 1) / 2 * column_tiles; }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

struct Barriers {
  Pipeline<stages> ring;
  Pipeline<pieces_of_consumer> pieces[2];  ///< of each consumer
  float sums[2][4][tile_n];                ///< of each consumer's warps
};

/// Tiles of this block, numbered from 0.
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

/// Producer thread: loads the stages of all tiles, in their order.
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
      MBarrier& full = barriers.ring.begin_load(write, sizeof(Stage));
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

/// One thread: loads the values before GELU for the tiles of one consumer, piece by piece.
__device__ __forceinline__ void load_pieces(const GeluGemmParams& p, Memory& memory, Barriers& barriers, int consumer) {
  const Tiles tiles{p};
  PipelineState<pieces_of_consumer> write;
  const int count = tiles.count();
  for (int number = consumer; number < count; number += 2)
    for (int block = 0; block < column_blocks; ++block)
      for (int h = 0; h < halves; ++h, write.advance()) {
        MBarrier& full = barriers.pieces[consumer].begin_load(write, piece_bytes);
        tma_load_2d(memory.pieces[consumer][write.index], p.before, tiles.column(number) + block * block_columns,
                    tiles.row_tile(number) * tile_m + h * piece_m, full);
      }
}

/// Accumulates a consumer's tile. A stage is released when the wgmma of the next one are queued and its own are done.
template <class T, bool b_k_major, class EndTurn>
__device__ __forceinline__ void multiply(const GeluGemmParams& p, const Memory& memory, Barriers& barriers, PipelineState<stages>& read,
                                         float (&sums)[halves][sums_of_half], EndTurn end_turn) {
  constexpr int wgmma_k = 16, half_rows = 64 * tile_k * 2 >> 4;  // in the descriptor's units of 16 bytes
  constexpr int a_step = wgmma_k * 2 >> 4, b_step = b_k_major ? a_step : wgmma_k * block_columns * 2 >> 4;
  const unsigned lane = threadIdx.x % 32;
  int previous = -1;
  const auto release = [&](int stage) {
    if (lane < cluster_size) arrive_at(barriers.ring.empty[stage], lane);
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
    barriers.ring.wait_full(read);
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

/// The ring of pieces of a consumer, and the number of those that it has stored.
struct Pieces {
  Memory& memory;
  Barriers& barriers;
  int consumer;
  PipelineState<pieces_of_consumer> ring;

  /// Address of a thread's pair of columns 8 j + (0, 1) of its first row; its second row is eight rows below.
  __device__ std::uint32_t pair(int j) const {
    const int warp = threadIdx.x % warpgroup / 32, lane = threadIdx.x % 32;
    const int row = warp * 16 + lane / 4;  // lane / 4 is the row within its group of eight, which determines the swizzle
    return shared_address(memory.pieces[consumer][ring.index]) +
           static_cast<std::uint32_t>(row * 128 + ((j ^ lane / 4) << 4) + lane % 4 * 4);
  }
  __device__ void sync() const { named_barrier_sync(3 + consumer, warpgroup); }
  /// Stores the current piece, which all threads of the consumer have written, to global memory, and advances the ring.
  __device__ void store(const CUtensorMap& map, int column, int row) {
    fence_proxy_async();
    sync();
    if (threadIdx.x % warpgroup == 0) {
      tma_store_2d(memory.pieces[consumer][ring.index], map, column, row);
      tma_store_commit();
    }
    ring.advance();
  }
  /// Call before writing to a piece that no TMA load has filled: waits until its last store has read it.
  __device__ void wait_until_free() const {
    if (threadIdx.x % warpgroup == 0) tma_store_wait_read<pieces_of_consumer - 1>();
    sync();
  }
};
constexpr int pairs_of_row = block_columns / 8, pairs_of_piece = 2 * pairs_of_row;  ///< of a thread

/// Accumulator of pair `i` of a thread's piece: row i % 2, columns i / 2.
__device__ __forceinline__ float& sum_of(float (&sums)[halves][sums_of_half], int block, int half, int i, int column) {
  return sums[half][4 * (block * pairs_of_row + i / 2) + 2 * (i % 2) + column];
}

template <class T>
__device__ __forceinline__ void store_gelu(const GeluGemmParams& p, Pieces& pieces, int number, float (&sums)[halves][sums_of_half]) {
  const Tiles tiles{p};
  const int first = tiles.column(number), row = tiles.row_tile(number) * tile_m, own = static_cast<int>(threadIdx.x % 4) * 2;
  const T* const bias = static_cast<const T*>(p.bias) + first + own;
#pragma unroll
  for (int block = 0; block < column_blocks; ++block) {
    const int column = block * block_columns, left = p.n - first - own - column;  // n is even
    float shift[pairs_of_row][2];
#pragma unroll
    for (int j = 0; j < pairs_of_row; ++j)
      for (int c = 0; c < 2; ++c) shift[j][c] = j * 8 < left ? convert<float>(bias[column + j * 8 + c]) : 0;
#pragma unroll
    for (int h = 0; h < halves; ++h) {
      pieces.wait_until_free();
#pragma unroll
      for (int i = 0; i < pairs_of_piece; ++i) {
        float &x = sum_of(sums, block, h, i, 0), &y = sum_of(sums, block, h, i, 1);
        x += shift[i / 2][0];
        y += shift[i / 2][1];
        store_shared(pieces.pair(i / 2) + i % 2 * (8 * 128), pack_pair<T>(x, y));
      }
      pieces.store(p.before, first + column, row + h * piece_m);
      pieces.wait_until_free();
#pragma unroll
      for (int i = 0; i < pairs_of_piece; ++i)
        store_shared(pieces.pair(i / 2) + i % 2 * (8 * 128),
                     pack_pair<T>(gelu_tanh_approx(sum_of(sums, block, h, i, 0)), gelu_tanh_approx(sum_of(sums, block, h, i, 1))));
      pieces.store(p.c, first + column, row + h * piece_m);
    }
  }
}

/// Column sums of a warp's rows of a block of columns.
__device__ __forceinline__ void sum_columns(float (&sums)[halves][sums_of_half], int block, float* to) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < pairs_of_row; ++j)
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float total = 0;
#pragma unroll
      for (int h = 0; h < halves; ++h) total += sum_of(sums, block, h, 2 * j, c) + sum_of(sums, block, h, 2 * j + 1, c);
#pragma unroll
      for (int distance = 4; distance < 32; distance *= 2) total += __shfl_xor_sync(~0u, total, distance);
      if (lane < 4) to[j * 8 + lane * 2 + c] = total;
    }
}

template <class T>
__device__ __forceinline__ void store_gelu_grad(const GeluGemmParams& p, Pieces& pieces, int number, float (&sums)[halves][sums_of_half]) {
  const Tiles tiles{p};
  const int first = tiles.column(number), row_tile = tiles.row_tile(number), thread = threadIdx.x % warpgroup;
  auto& of_warps = pieces.barriers.sums[pieces.consumer];
#pragma unroll
  for (int block = 0; block < column_blocks; ++block) {
#pragma unroll
    for (int h = 0; h < halves; ++h) {
      const int index = pieces.ring.index;
      pieces.barriers.pieces[pieces.consumer].wait_full(pieces.ring);
      unsigned before[pairs_of_piece];  // all loads first: the compiler cannot move loads before stores to unknown addresses
#pragma unroll
      for (int i = 0; i < pairs_of_piece; ++i) before[i] = load_shared<unsigned>(pieces.pair(i / 2) + i % 2 * (8 * 128));
#pragma unroll
      for (int i = 0; i < pairs_of_piece; ++i) {
        float &x = sum_of(sums, block, h, i, 0), &y = sum_of(sums, block, h, i, 1), before_x, before_y;
        unpack_pair<T>(before[i], before_x, before_y);
        x *= gelu_tanh_derivative(before_x);
        y *= gelu_tanh_derivative(before_y);
        store_shared(pieces.pair(i / 2) + i % 2 * (8 * 128), pack_pair<T>(x, y));
      }
      pieces.store(p.c, first + block * block_columns, row_tile * tile_m + h * piece_m);
      if (thread == 0) {  // the previous piece is free
        tma_store_wait_read<1>();
        if (number >= 2 || block + h > 0)
          pieces.barriers.pieces[pieces.consumer].empty[(index + pieces_of_consumer - 1) % pieces_of_consumer].arrive();
      }
    }
    sum_columns(sums, block, of_warps[thread / 32] + block * block_columns);
  }
  pieces.sync();
  if (p.column_parts && row_tile < p.row_tiles)
    for (int i = thread; i < min(tile_n, p.n - first); i += warpgroup)
      p.column_parts[std::int64_t(row_tile) * p.n + first + i] = (of_warps[0][i] + of_warps[1][i]) + (of_warps[2][i] + of_warps[3][i]);
  pieces.sync();  // the pieces have been read
}

/// Consumer 0 or 1. Named barrier 1 + i: consumer i may wait for its stages, because the other one has seen all before them. Otherwise it
/// could mistake a stage of two rounds earlier for its own, since the parity is the same.
template <class T, bool is_gradient>
__device__ __forceinline__ void consume(const GeluGemmParams& p, Memory& memory, Barriers& barriers, int consumer) {
  const int count = Tiles{p}.count();
  Pieces pieces{memory, barriers, consumer, {}};
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
    if constexpr (is_gradient) store_gelu_grad<T>(p, pieces, number, sums);
    else store_gelu<T>(p, pieces, number, sums);
    skip_tile();
  }
  if (threadIdx.x % warpgroup == 0) tma_store_wait_read();  // before the block's memory is given to another block
}

#endif

template <class T, bool is_gradient>
__global__ void __launch_bounds__(threads, 1) gelu_gemm_kernel(__grid_constant__ const GeluGemmParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ float shared[];
  __shared__ Barriers barriers;  // non-empty only if compiled for wgmma: see runs_wgmma_kernel
  auto& memory = *swizzle_aligned<Memory>(shared);
  if (threadIdx.x == 0) {
    barriers.ring.init(4 * cluster_size);
    for (int consumer = 0; consumer < 2; ++consumer) barriers.pieces[consumer].init(1);
    fence_barrier_init();
  }
  cluster_sync();
  const int group = static_cast<int>(threadIdx.x) / warpgroup;
  if (group == 0) {
    warpgroup_reg_dealloc<24>();
    if (threadIdx.x == 0) load_stages<!is_gradient>(p, memory, barriers);
    const int warp = static_cast<int>(threadIdx.x) / 32;
    if (is_gradient && (warp == 1 || warp == 2) && threadIdx.x % 32 == 0) load_pieces(p, memory, barriers, warp - 1);
  } else {
    warpgroup_reg_alloc<240>();
    consume<T, is_gradient>(p, memory, barriers, group - 1);
  }
  __syncwarp();
  cluster_sync();  // no block may exit while the other one loads into its memory or arrives at its barriers
#endif
}

using Kernel = void (*)(GeluGemmParams);

Kernel kernel_of(const GemmProblem& p) {
  return dispatch_halves(p.dtype, [&]<class T>() -> Kernel {
    return p.epilogue == Epilogue::gelu_grad ? gelu_gemm_kernel<T, true> : gelu_gemm_kernel<T, false>;
  });
}

/// Row-major c^T (n, m): rows of c are the problem's n.
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
  params.c = tensor_map(matrix(out, p.m, p.n, p.ldc), block_columns, piece_m);
  params.before = tensor_map(matrix(operands.before_gelu, p.m, p.n, p.ldc), block_columns, piece_m);
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
