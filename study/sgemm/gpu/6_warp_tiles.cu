// Rung 6: the threads of a warp have a tile of their own, 64 x 64, in a grid of 8 x 4.
//
// In rung 5 a warp had 16 rows and all 128 columns: at a step of k its threads read 16 + 128 different elements for 2048 multiplications. A
// warp's 64 x 64 needs 64 + 64 for 4096. A thread has 8 x 16: 6 loads for 128 multiplications, where rung 5 took 4 for 64. That leaves 8
// warps on a multiprocessor in place of 16, too few to hide how long global memory takes: so the next tiles are read into registers before
// the present ones are multiplied, and stored in a second pair of tiles after that, with one barrier a step.
#include "ladder.h"

namespace study::gpu {

namespace {

constexpr int tile = 128, depth = 8, rows = 8, columns = 16, threads = 128;
constexpr int warp_side = 64, half = warp_side / 2, quarter = warp_side / 4;  // 2 x 2 warps
constexpr int vectors = tile * depth / 4 / threads;                           // of each tile, that a thread brings

/// x[row, column .. column + 3] of (rows, columns), zeros outside.
template <bool aligned>
__device__ float4 read4(const float* x, int row, int column, int row_count, int column_count) {
  const float* const from = x + static_cast<long>(row) * column_count + column;
  const auto at = [&](int i) { return row < row_count && column + i < column_count ? from[i] : 0; };
  if (!aligned) return {at(0), at(1), at(2), at(3)};
  return row < row_count && column < column_count ? *reinterpret_cast<const float4*>(from) : float4{};
}

template <bool aligned>
__global__ void __launch_bounds__(threads, 2) multiply(Product p) {
  __shared__ alignas(16) float a[2][depth][tile + 4], b[2][depth][tile];
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int row = static_cast<int>(blockIdx.y) * tile, column = static_cast<int>(blockIdx.x) * tile;
  const int y = warp / 2 * warp_side + lane / 4 * 4, x = warp % 2 * warp_side + lane % 4 * 4;
  const int a_row = thread / 2, a_k = thread % 2 * 4, b_k = thread / 32, b_column = thread % 32 * 4;

  float4 next_a[vectors], next_b[vectors];
  const auto read = [&](int start) {
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      next_a[i] = read4<aligned>(p.a, row + a_row + i * (tile / vectors), start + a_k, p.m, p.k);
      next_b[i] = read4<aligned>(p.b, start + b_k + i * (depth / vectors), column + b_column, p.k, p.n);
    }
  };
  const auto store = [&](int to) {
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      const int r = a_row + i * (tile / vectors);
      a[to][a_k][r] = next_a[i].x, a[to][a_k + 1][r] = next_a[i].y, a[to][a_k + 2][r] = next_a[i].z, a[to][a_k + 3][r] = next_a[i].w;
      *reinterpret_cast<float4*>(&b[to][b_k + i * (depth / vectors)][b_column]) = next_b[i];
    }
  };

  float sum[rows][columns] = {};
  read(0);
  store(0);
  __syncthreads();
  for (int start = 0, now = 0; start < p.k; start += depth, now = 1 - now) {
    if (start + depth < p.k) read(start + depth);
#pragma unroll
    for (int k = 0; k < depth; ++k) {
      // Vectors of four rows half a tile apart, and of four columns a quarter apart.
      alignas(16) float left[rows], right[columns];
#pragma unroll
      for (int i = 0; i < rows; i += 4)
        *reinterpret_cast<float4*>(left + i) = *reinterpret_cast<const float4*>(&a[now][k][y + i / 4 * half]);
#pragma unroll
      for (int j = 0; j < columns; j += 4)
        *reinterpret_cast<float4*>(right + j) = *reinterpret_cast<const float4*>(&b[now][k][x + j / 4 * quarter]);
#pragma unroll
      for (int i = 0; i < rows; ++i) {
#pragma unroll
        for (int j = 0; j < columns; ++j) sum[i][j] += left[i] * right[j];
      }
    }
    if (start + depth < p.k) store(1 - now);
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < rows; ++i) {
    const int r = row + y + i / 4 * half + i % 4;
    if (r >= p.m) continue;
#pragma unroll
    for (int j = 0; j < columns; j += 4) {
      const int c = column + x + j / 4 * quarter;
      float* const to = p.c + static_cast<long>(r) * p.n + c;
      if (aligned && c < p.n) *reinterpret_cast<float4*>(to) = {sum[i][j], sum[i][j + 1], sum[i][j + 2], sum[i][j + 3]};
      for (int e = 0; !aligned && e < 4; ++e)
        if (c + e < p.n) to[e] = sum[i][j + e];
    }
  }
}

}  // namespace

void warp_tiles(const Product& p, cudaStream_t stream) {
  const bool aligned = p.k % 4 == 0 && p.n % 4 == 0;
  const auto kernel = aligned ? multiply<true> : multiply<false>;
  kernel<<<dim3((p.n + tile - 1) / tile, (p.m + tile - 1) / tile), threads, 0, stream>>>(p);
}

}  // namespace study::gpu
