// Rung 7: the tiles are copied to shared memory without a way through registers, several steps ahead.
//
// cp.async (compute capability 8.0) copies 16 bytes from global to shared memory while the thread goes on. A block has three pairs of
// tiles, one in use and two on their way. A copy cannot turn a round, so a keeps its order, and a thread reads four steps of k of a row at
// once. What a copy needs and keeps from step to step, its pointer above all, is computed once: every instruction in the loop that is no
// multiplication takes the place of one.
#include "ladder.h"

namespace study::gpu {

namespace {

constexpr unsigned tile = 128, depth = 16, rows = 8, columns = 16, threads = 128, stages = 3;
constexpr unsigned warp_side = 64, quarter = warp_side / 4;  // 2 x 2 warps

struct Stage {
  float a[tile][depth + 4];  // the 8 rows that a warp reads at once begin in different banks
  float b[depth][tile];
};

/// Copies `bytes` (4 or 16) to shared memory, or as many zeros.
template <unsigned bytes>
__device__ void copy_async(float* to, const float* from, bool is_inside) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  const unsigned count = is_inside ? bytes : 0;
  if constexpr (bytes == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(count) : "memory");
  else asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(from), "r"(count) : "memory");
}
__device__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Until no more than `pending` of this thread's groups are on their way.
template <int pending>
__device__ void wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

/// A thread's share of the copies of one operand: `count` vectors of `width` elements, `step` rows apart. Of a the rows are outputs and the
/// columns steps of k; of b it is the other way round.
template <unsigned width, unsigned tile_rows, unsigned tile_columns>
struct Share {
  static constexpr unsigned a_row = tile_columns / width, step = threads / a_row, count = tile_rows / step;
  unsigned row, column;
  const float* from;
  long stride;

  __device__ Share(const float* x, unsigned first_row, unsigned first_column, int row_length)
      : row(threadIdx.x / a_row),
        column(threadIdx.x % a_row * width),
        from(x + static_cast<long>(first_row + row) * row_length + first_column + column),
        stride(static_cast<long>(step) * row_length) {}
};

template <bool aligned>
__global__ void __launch_bounds__(threads, 2) multiply(Product p) {
  extern __shared__ __align__(16) char memory[];
  Stage* const stage = reinterpret_cast<Stage*>(memory);
  constexpr unsigned width = aligned ? 4 : 1;
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.y * tile, column = blockIdx.x * tile;
  const unsigned y = warp / 2 * warp_side + lane / 4, x = warp % 2 * warp_side + lane % 4 * 4;
  const auto m = static_cast<unsigned>(p.m), n = static_cast<unsigned>(p.n), depths = static_cast<unsigned>(p.k);

  const Share<width, tile, depth> of_a(p.a, row, 0, p.k);
  const Share<width, depth, tile> of_b(p.b, 0, column, p.n);
  const auto fetch = [&](Stage& to, unsigned start) {
    const bool has_k = start + of_a.column < depths, has_column = column + of_b.column < n;
#pragma unroll
    for (unsigned i = 0; i < of_a.count; ++i) {
      const unsigned r = of_a.row + i * of_a.step;
      const bool is_inside = has_k && row + r < m;
      copy_async<4 * width>(&to.a[r][of_a.column], is_inside ? of_a.from + i * of_a.stride + start : p.a, is_inside);
    }
    const float* const from = of_b.from + static_cast<long>(start) * p.n;
#pragma unroll
    for (unsigned i = 0; i < of_b.count; ++i) {
      const unsigned k = of_b.row + i * of_b.step;
      const bool is_inside = has_column && start + k < depths;
      copy_async<4 * width>(&to.b[k][of_b.column], is_inside ? from + i * of_b.stride : p.b, is_inside);
    }
  };

  float sum[rows][columns] = {};
  const unsigned steps = (depths + depth - 1) / depth;
  for (unsigned s = 0; s + 1 < stages; ++s) {
    if (s < steps) fetch(stage[s], s * depth);
    commit();
  }
  unsigned at = 0, ahead = stages - 1;
  for (unsigned step = 0; step < steps; ++step) {
    wait<stages - 2>();
    // The tiles are here for all threads, and all are done with those that the next ones overwrite.
    __syncthreads();
    if (step + stages - 1 < steps) fetch(stage[ahead], (step + stages - 1) * depth);
    commit();
    const Stage& now = stage[at];
#pragma unroll
    for (unsigned k = 0; k < depth; k += 4) {
      // Rows 8 apart; vectors of four columns a quarter of the warp's apart.
      alignas(16) float left[rows][4];
#pragma unroll
      for (unsigned i = 0; i < rows; ++i) *reinterpret_cast<float4*>(left[i]) = *reinterpret_cast<const float4*>(&now.a[y + i * 8][k]);
#pragma unroll
      for (unsigned e = 0; e < 4; ++e) {
        alignas(16) float right[columns];
#pragma unroll
        for (unsigned j = 0; j < columns; j += 4)
          *reinterpret_cast<float4*>(right + j) = *reinterpret_cast<const float4*>(&now.b[k + e][x + j / 4 * quarter]);
#pragma unroll
        for (unsigned i = 0; i < rows; ++i) {
#pragma unroll
          for (unsigned j = 0; j < columns; ++j) sum[i][j] += left[i][e] * right[j];
        }
      }
    }
    at = at + 1 == stages ? 0 : at + 1;
    ahead = ahead + 1 == stages ? 0 : ahead + 1;
  }
#pragma unroll
  for (unsigned i = 0; i < rows; ++i) {
    const unsigned r = row + y + i * 8;
    if (r >= m) continue;
#pragma unroll
    for (unsigned j = 0; j < columns; j += 4) {
      const unsigned c = column + x + j / 4 * quarter;
      float* const to = p.c + static_cast<long>(r) * p.n + c;
      if (aligned && c < n) *reinterpret_cast<float4*>(to) = {sum[i][j], sum[i][j + 1], sum[i][j + 2], sum[i][j + 3]};
      for (unsigned e = 0; !aligned && e < 4; ++e)
        if (c + e < n) to[e] = sum[i][j + e];
    }
  }
}

}  // namespace

void async_copies(const Product& p, cudaStream_t stream) {
  const auto kernel = p.k % 4 == 0 && p.n % 4 == 0 ? multiply<true> : multiply<false>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, stages * sizeof(Stage));
  kernel<<<dim3((p.n + tile - 1) / tile, (p.m + tile - 1) / tile), threads, stages * sizeof(Stage), stream>>>(p);
}

}  // namespace study::gpu
