#include <algorithm>

#include "cuda/device/vec16.cuh"
#include "cuda/device/wgmma_k16.cuh"
#include "cuda/gemm/algorithm.h"
#include "cuda/runtime/dispatch.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/tensor_map.h"

// Split-K GEMM of 16-bit floats, c (M, N) = a^T b for a (K, M) and b (K, N): Note [Split-K within a cluster].
//
// A cluster has one tile of c, 64 x 64. Each of its blocks has one split of the depth, and 160 threads:
//
//   producer              1 thread of warp 4    empty[i] -> TMA: a (64, 64), b (64, 64) into stage i -> full[i]
//   consumer warpgroup    warps 0 to 3          full[i] -> 4 wgmma m64n64k16, sums in registers -> empty[i]
//
//   shared memory    | stage 0: a, b | stage 1 | ... | stage 5 |     16 KiB each, with the 128-byte swizzle
//   after the loop   | partial sums (64, 68) |                       of this split, for the cluster to read by DSMEM
//
//   cluster_sync; each block adds 64 / splits rows of all splits' partial sums and writes them to c; cluster_sync
namespace tern::gpu {

namespace {

constexpr int tile = 64;    ///< rows and columns of c, and elements in 128 bytes
constexpr int tile_k = 64;  ///< rows of the operands in a stage
constexpr int stages = 6, consumers = 128, threads = consumers + 32;
constexpr int max_splits = static_cast<int>(max_cluster);
constexpr int sums_pitch = tile + 4;

template <class T>
struct Stage {
  T a[tile_k * tile], b[tile_k * tile];
};
constexpr std::size_t shared_bytes = stages * sizeof(Stage<bf16>) + swizzle_span;  // f16's stages have the same size

struct SplitKParams {
  CUtensorMap a, b;
  const void* c_in;  ///< matrix that is added, with c's layout
  void* c;
  std::int64_t ldc, m, n;  ///< c is row-major
  unsigned splits, column_tiles;
  int k_steps, steps_per_split;
  float alpha;
  bool accumulates;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

using Barriers = Pipeline<stages>;

/// Producer: loads the stages of steps [first, first + count).
template <class T>
__device__ __forceinline__ void load_stages(const SplitKParams& p, Stage<T>* memory, Barriers& barriers, int row, int column, int first,
                                            int count) {
  PipelineState<stages> write;
  for (int step = first; step < first + count; ++step, write.advance()) {
    Stage<T>& stage = memory[write.index];
    MBarrier& full = barriers.begin_load(write, sizeof(Stage<T>));
    tma_load_2d(stage.a, p.a, row, step * tile_k, full);
    tma_load_2d(stage.b, p.b, column, step * tile_k, full);
  }
}

/// Consumer warpgroup. A stage is released when the wgmma of the next one are queued and its own are done.
template <class T>
__device__ __forceinline__ void multiply_stages(const Stage<T>* memory, Barriers& barriers, int count,
                                                float (&sums)[tile * tile / consumers]) {
  constexpr int wgmma_k = 16;
  constexpr int k16_rows = wgmma_k * tile * sizeof(T) >> 4;  // depth of a wgmma in the descriptor's units of 16 bytes
  PipelineState<stages> read;
  int previous = 0;
#pragma unroll 2  // not more: a kernel of 5 us would fetch the code for one use
  for (int i = 0; i < count; ++i, read.advance()) {
    const std::uint64_t a = wgmma_descriptor(memory[read.index].a), b = wgmma_descriptor(memory[read.index].b);
    barriers.wait_full(read);
    warpgroup_fence_operand(sums);
    warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < tile_k / wgmma_k; ++k) wgmma_k16<T, true, true>(sums, a + k * k16_rows, b + k * k16_rows, true);
    warpgroup_commit_batch();
    warpgroup_wait<1>();
    warpgroup_fence_operand(sums);
    if (i > 0 && threadIdx.x % 32 == 0) barriers.empty[previous].arrive();
    previous = read.index;
  }
  warpgroup_wait<0>();
  warpgroup_fence_operand(sums);
}

/// Writes this block's rows of c: adds the partial sums of all blocks of the cluster, in the order of their splits.
template <class T>
__device__ __forceinline__ void reduce_splits(const SplitKParams& p, const float* partial, unsigned split, std::int64_t row0,
                                              std::int64_t column0) {
  constexpr int width = 4;
  const int rows = tile / static_cast<int>(p.splits);
  for (int i = threadIdx.x; i < rows * tile / width; i += threads) {
    const int row = static_cast<int>(split) * rows + i / (tile / width), column = i % (tile / width) * width;
    if (row0 + row >= p.m || column0 + column >= p.n) continue;
    const auto place = reinterpret_cast<const float4*>(partial + row * sums_pitch + column);
    float4 partials[max_splits];
#pragma unroll
    for (unsigned s = 0; s < max_splits; ++s)
      if (s < p.splits) partials[s] = read_dsmem(place, s);
    float4 sum = partials[0];
#pragma unroll
    for (unsigned s = 1; s < max_splits; ++s) {
      if (s >= p.splits) continue;
      sum.x += partials[s].x;
      sum.y += partials[s].y;
      sum.z += partials[s].z;
      sum.w += partials[s].w;
    }
    const float values[] = {sum.x, sum.y, sum.z, sum.w};
    const std::int64_t at = (row0 + row) * p.ldc + column0 + column;
    const T* const from = static_cast<const T*>(p.c_in) + at;
    T* const to = static_cast<T*>(p.c) + at;
    const bool is_aligned = (reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from)) % sizeof(Vector<T, width>) == 0;
    if (column0 + column + width <= p.n && is_aligned) {
      Vector<T, width> in{}, out;
      if (p.accumulates) in = read_vector<width>(from);
#pragma unroll
      for (int k = 0; k < width; ++k) out.values[k] = convert<T>(p.alpha * values[k] + (p.accumulates ? convert<float>(in.values[k]) : 0));
      write_vector(to, out);
    } else {
      for (int k = 0; k < width && column0 + column + k < p.n; ++k)
        to[k] = convert<T>(p.alpha * values[k] + (p.accumulates ? convert<float>(from[k]) : 0));
    }
  }
}

#endif

template <class T>
__global__ void __launch_bounds__(threads) split_k_gemm_kernel(__grid_constant__ const SplitKParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ float shared[];
  __shared__ Barriers barriers;  // non-empty only if compiled for wgmma: see runs_wgmma_kernel
  auto* const memory = swizzle_aligned<Stage<T>>(shared);
  if (threadIdx.x == 0) {
    barriers.init(consumers / 32);
    fence_barrier_init();
  }
  __syncthreads();
  const unsigned split = blockIdx.x % p.splits, tile_index = blockIdx.x / p.splits;
  const int row = static_cast<int>(tile_index / p.column_tiles) * tile, column = static_cast<int>(tile_index % p.column_tiles) * tile;
  const int first = static_cast<int>(split) * p.steps_per_split, count = max(min(p.k_steps - first, p.steps_per_split), 0);
  float sums[tile * tile / consumers] = {};
  if (threadIdx.x < consumers) multiply_stages<T>(memory, barriers, count, sums);
  else if (threadIdx.x == consumers) load_stages<T>(p, memory, barriers, row, column, first, count);
  __syncthreads();  // every stage has been read
  auto* const partial = reinterpret_cast<float*>(memory);
  if (threadIdx.x < consumers) {
    const int lane = threadIdx.x % 32;
    float* const place = partial + (threadIdx.x / 32 * 16 + lane / 4) * sums_pitch + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < tile / 8; ++j) {
      *reinterpret_cast<float2*>(place + j * 8) = {sums[4 * j], sums[4 * j + 1]};
      *reinterpret_cast<float2*>(place + 8 * sums_pitch + j * 8) = {sums[4 * j + 2], sums[4 * j + 3]};
    }
  }
  cluster_sync();
  reduce_splits<T>(p, partial, split, row, column);
  cluster_sync();  // no block may exit while others read its partial sums
#endif
}

}  // namespace

bool has_split_k_gemm(const GemmProblem& p, const GemmOperands& operands, Stream stream) {
  return (p.dtype == DType::bf16 || p.dtype == DType::f16) && p.batch_count == 1 && p.epilogue == Epilogue::none && !p.a_transposed &&
         p.b_transposed && std::min(p.m, p.n) > 0 && p.k >= tile_k && std::max({p.m, p.n, p.k}) < (std::int64_t(1) << 31) &&
         has_tensor_map(operands.a, p.dtype, p.lda) && has_tensor_map(operands.b, p.dtype, p.ldb) &&
         runs_wgmma_kernel(split_k_gemm_kernel<bf16>, stream.device);
}

void split_k_gemm(const GemmProblem& p, const GemmOperands& operands, void* out, double alpha, Stream stream) {
  // Row-major: c^T (n, m) = b^T (n, k) a^T (k, m), so the operands are swapped.
  SplitKParams params{};
  params.a = tensor_map({operands.b, p.dtype, p.n, p.k, p.ldb}, tile, tile_k);
  params.b = tensor_map({operands.a, p.dtype, p.m, p.k, p.lda}, tile, tile_k);
  params.c_in = operands.c;
  params.c = out;
  params.ldc = p.ldc;
  params.m = p.n;
  params.n = p.m;
  params.column_tiles = static_cast<unsigned>(ceil_div(p.m, tile));
  params.k_steps = static_cast<int>(ceil_div(p.k, tile_k));
  params.alpha = static_cast<float>(alpha);
  params.accumulates = p.write == Write::accumulate;
  // As many blocks as run at once, two per multiprocessor, each with some steps at least.
  const std::int64_t c_tiles = ceil_div(p.n, tile) * ceil_div(p.m, tile),
                     at_once = 2 * attribute(cudaDevAttrMultiProcessorCount, stream.device);
  params.splits = 1;
  while (params.splits < max_splits && c_tiles * params.splits * 2 <= at_once && params.k_steps >= 8 * static_cast<int>(params.splits))
    params.splits *= 2;
  params.steps_per_split = static_cast<int>(ceil_div(params.k_steps, params.splits));
  launch(p.dtype == DType::bf16 ? split_k_gemm_kernel<bf16> : split_k_gemm_kernel<f16>,
         LaunchConfig{.grid = static_cast<unsigned>(c_tiles * params.splits),
                      .block = threads,
                      .shared = shared_bytes,
                      .stream = stream,
                      .cluster = params.splits},
         params);
}

}  // namespace tern::gpu
