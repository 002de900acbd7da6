#pragma once
#include "cuda/gemm/tf32_tile.cuh"

// Float32 GEMM on Hopper's tensor cores: one product of operands rounded to TF32, or the three of Note [3xTF32]. Tiles of 128 x tile_n
// elements of c are accumulated in steps of 32 along the depth. A block of 512 threads has four warpgroups, which share a ring of stages:
//
//   warpgroup 3  producer   24 registers   one thread: empty[i] -> TMA: a (128, 32), b (tile_n, 32) into stage i -> full[i]
//   warpgroup 2  converter  72 registers   full[i] -> b rounded in place, or b_small written; K-major, as wgmma takes it -> converted[i]
//   warpgroups   consumers  208 registers  64 rows of the tile each: full[i] -> a to registers, rounded or split there;
//   0 and 1                                converted[i] -> wgmma m64 n(tile_n) k8, a from registers, b from shared memory -> empty[i]
//
//   shared memory, 3 products   | stage 0: a 16 KiB, b 16 KiB, b_small 16 KiB | ... | stage 3 |     (tile_n = 128)
//                  1 product    | stage 0: a 16 KiB, b 16 KiB | ... | stage 5 |
//   after a split depth         | sums that the cluster's blocks send: tf32_tile.cuh            |
//
// A block is persistent: it computes several tiles, and its producer loads the next one while the consumers write one.
//
// Shared-memory bandwidth is nearly exhausted: of the 1536 cycles in which tensor cores compute three products of a step of width 128,
// their own reads take 768, the TMA loads 256 and the splits 384; of one product's 512 cycles they take 256, 256 and 256, and operand a 128
// more. So two consumer warpgroups that take turns at the tensor cores (ping-pong) would be no faster than these two, which do not.
namespace tern::gpu::tf32 {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

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
template <int products, bool a_k_major, bool b_k_major, int tile_n>
__device__ __forceinline__ void load_tiles(const Tf32Params& p, Stage<products, tile_n>* memory, Barriers<stages<products>>& barriers) {
  WorkTile tile;
  PipelineState<stages<products>> write;
  for (int index = WorkTile::first(p); tile.find(p, index); index += WorkTile::stride(p))
    for (int step = 0; step < tile.steps; ++step, write.advance()) {
      const int k0 = (tile.first_step + step) * tile_k;
      Stage<products, tile_n>& stage = memory[write.index];
      MBarrier& full = barriers.begin_load(write, sizeof(stage.a) + sizeof(stage.b));
      load_tile<a_k_major, tile_m>(p.a_map, tile.row_tile * tile_m, k0, stage.a, full);
      load_tile<b_k_major, tile_n>(p.b_map, tile.column_tile * tile_n, k0, stage.b, full);
    }
}

__device__ __forceinline__ float4 vector_at(const float* tile, int offset) { return *reinterpret_cast<const float4*>(tile + offset); }

/// Rounds a K-major b, or writes its small part; each of four warps converts a quarter.
template <int products, int tile_n>
__device__ __forceinline__ void convert_k_major(int warp, int lane, Stage<products, tile_n>& stage) {
#pragma unroll
  for (int i = 0; i < tile_n / 16; ++i) {
    const int offset = (warp * 32 + lane + i * 128) * 4;
    const float4 x = vector_at(stage.b, offset);
    if constexpr (products == 3) store_shared(shared_address(stage.b_small + offset), tf32_residual(x));
    else store_shared(shared_address(stage.b + offset), round_to_tf32(x));
  }
}
/// The same for an MN-major b of 128 rows, which it transposes in place: wgmma takes TF32 operands only K-major.
template <int products>
__device__ __forceinline__ void convert_mn_major(int warp, int lane, Stage<products, 128>& stage) {
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
      store_shared(shared_address(stage.b + offset), products == 3 ? rows[j] : round_to_tf32(rows[j]));
      if constexpr (products == 3) store_shared(shared_address(stage.b_small + offset), tf32_residual(rows[j]));
    }
  }
}

/// Converter warpgroup.
template <int products, bool b_k_major, int tile_n>
__device__ __forceinline__ void convert_tiles(const Tf32Params& p, Stage<products, tile_n>* memory, Barriers<stages<products>>& barriers) {
  const int lane = threadIdx.x % 32, warp = (static_cast<int>(threadIdx.x) - consumers) / 32;
  WorkTile tile;
  PipelineState<stages<products>> read;
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
template <int products>
struct AFragment {
  std::uint32_t big[4][4], small[products == 3 ? 4 : 1][4];
};

/// Consumer warpgroups.
template <int products, bool a_k_major, int tile_n>
__device__ __forceinline__ void multiply_tiles(const Tf32Params& p, Stage<products, tile_n>* memory, Barriers<stages<products>>& barriers) {
  using State = PipelineState<stages<products>>;
  const int lane = threadIdx.x % 32, warp = static_cast<int>(threadIdx.x) / 32, row_in_8 = lane / 4, member = lane % 4;
  // The assignment of rows of the tile to threads is arbitrary, and is chosen so that a warp's rows are in different banks.
  const int row = a_k_major ? warp * 16 + row_in_8 : warp / 2 * 32 + warp % 2 * 8 + row_in_8 / 4 * 16 + row_in_8 % 4;
  const FragmentPosition position{row, row + (a_k_major ? 8 : 4), member * 2};
  const auto load_a = [&](AFragment<products>& fragment, const State& state) {
    const Stage<products, tile_n>& stage = memory[state.index];
    barriers.wait_full(state);
#pragma unroll
    for (int s = 0; s < 4; ++s)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = i % 2 == 0 ? position.row : position.other_row, k = s * 8 + i / 2 * 4 + member;
        const float x = stage.a[a_k_major ? k_major_offset(r, k) : mn_major_offset(r, k)], big = round_to_tf32(x);
        fragment.big[s][i] = __float_as_uint(big);
        if constexpr (products == 3) fragment.small[s][i] = __float_as_uint(round_to_tf32(x - big));
      }
  };
  const auto release = [&](int stage) { barriers.empty[stage].arrive_warp(lane); };
  WorkTile tile;
  State read;  // of the current step
  for (int index = WorkTile::first(p); tile.find(p, index); index += WorkTile::stride(p)) {
    float sums[tile_n / 2] = {};
    [[maybe_unused]] float step_sums[products == 3 ? tile_n / 2 : 1];
    // While the tensor cores compute one step, a's fragments for the next are prepared.
    AFragment<products> fragments[2];
    load_a(fragments[0], read);
    [[maybe_unused]] int previous = read.index;  // stage of the previous step
    const auto multiply_step = [&](AFragment<products>& now, AFragment<products>& next, int step) {
      constexpr int k8_floats = 8 * sizeof(float) >> 4;  // depth of a wgmma in the descriptor's units of 16 bytes
      const Stage<products, tile_n>& stage = memory[read.index];
      const std::uint64_t b = wgmma_descriptor(stage.b);
      barriers.converted[read.index].wait(read.phase);
      State ahead = read;
      ahead.advance();
      if constexpr (products == 3) {
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
      } else {
        warpgroup_arrive();
#pragma unroll
        for (int s = 0; s < 4; ++s) wgmma_k8_tf32(sums, now.big[s], b + s * k8_floats, true);
        warpgroup_commit_batch();
        warpgroup_wait<1>();
        if (step > 0) release(previous);
        previous = read.index;
        if (step + 1 < tile.steps) load_a(next, ahead);
      }
      read = ahead;
    };
    warpgroup_fence_operand(sums);
    for (int step = 0; step < tile.steps; step += 2) {
      multiply_step(fragments[0], fragments[1], step);
      if (step + 1 < tile.steps) multiply_step(fragments[1], fragments[0], step + 1);
    }
    if constexpr (products == 1) {
      warpgroup_wait<0>();
      warpgroup_fence_operand(sums);
      release(previous);
    }
    const bool is_whole = std::int64_t(tile.row_tile + 1) * tile_m <= p.a.size && std::int64_t(tile.column_tile + 1) * tile_n <= p.b.size;
    if (p.cluster > 1 || p.slices > 1) reduce_splits<tile_n>(p, tile, position, sums, reinterpret_cast<float4*>(memory), barriers);
    else if (p.swap_ab)
      is_whole ? store_tile<true, true, tile_n>(p, tile, position, sums) : store_tile<true, false, tile_n>(p, tile, position, sums);
    else is_whole ? store_tile<false, true, tile_n>(p, tile, position, sums) : store_tile<false, false, tile_n>(p, tile, position, sums);
  }
}

#endif

template <int products, bool a_k_major, bool b_k_major, int tile_n>
__global__ void __launch_bounds__(threads, 1) tf32_gemm_kernel(__grid_constant__ const Tf32Params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ float memory[];
  __shared__ Barriers<stages<products>> barriers;  // non-empty only if compiled for wgmma: see runs_wgmma_kernel
  if (threadIdx.x == 0) {
    tma_prefetch_map(p.a_map);
    tma_prefetch_map(p.b_map);
    barriers.init(consumers / 32 * warp_arrivals);
    for (MBarrier& converted : barriers.converted) converted.init(converters / 32 * warp_arrivals);
    barriers.received.init(1);
    fence_barrier_init();
  }
  __syncthreads();
  auto* const stage = swizzle_aligned<Stage<products, tile_n>>(memory);
  // The registers that warpgroups give up and take add up to those that the block was launched with.
  constexpr int first_producer = consumers + converters;
  if (threadIdx.x >= first_producer) {
    warpgroup_reg_dealloc<24>();
    if (threadIdx.x == first_producer) load_tiles<products, a_k_major, b_k_major>(p, stage, barriers);
  } else if (threadIdx.x >= consumers) {
    warpgroup_reg_dealloc<72>();
    convert_tiles<products, b_k_major>(p, stage, barriers);
  } else {
    warpgroup_reg_alloc<208>();
    multiply_tiles<products, a_k_major>(p, stage, barriers);
  }
#endif
}

}  // namespace tern::gpu::tf32
