// Rung 5: four elements an instruction, from global memory and from shared memory.
//
// As many bytes as rung 4 in a quarter of the instructions: a step of k is 4 loads for 64 multiplications, not 16. A thread has four
// 4 x 4 corners, half a tile apart. Rows whose length is no multiple of four are read element by element.
#include "ladder.h"

namespace study::gpu {

namespace {

constexpr int tile = 128, depth = 8, V = 8, side = tile / V, threads = side * side;

/// x[row, column .. column + 3] of (rows, columns), zeros outside.
template <bool aligned>
__device__ float4 read4(const float* x, int row, int column, int row_count, int column_count) {
  const float* const from = x + static_cast<long>(row) * column_count + column;
  const auto at = [&](int i) { return row < row_count && column + i < column_count ? from[i] : 0; };
  if (!aligned) return {at(0), at(1), at(2), at(3)};
  return row < row_count && column < column_count ? *reinterpret_cast<const float4*>(from) : float4{};
}

template <bool aligned>
__global__ void __launch_bounds__(threads) multiply(Product p) {
  __shared__ alignas(16) float a[depth][tile + 4], b[depth][tile];
  const int thread = static_cast<int>(threadIdx.x), x = thread % side * 4, y = thread / side * 4;
  const int row = static_cast<int>(blockIdx.y) * tile, column = static_cast<int>(blockIdx.x) * tile;
  // Each thread brings one vector of each tile.
  const int a_row = thread / 2, a_k = thread % 2 * 4, b_k = thread / 32, b_column = thread % 32 * 4;
  float sum[V][V] = {};
  for (int start = 0; start < p.k; start += depth) {
    const float4 from_a = read4<aligned>(p.a, row + a_row, start + a_k, p.m, p.k);
    a[a_k][a_row] = from_a.x, a[a_k + 1][a_row] = from_a.y, a[a_k + 2][a_row] = from_a.z, a[a_k + 3][a_row] = from_a.w;
    *reinterpret_cast<float4*>(&b[b_k][b_column]) = read4<aligned>(p.b, start + b_k, column + b_column, p.k, p.n);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < depth; ++k) {
      alignas(16) float left[V], right[V];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        *reinterpret_cast<float4*>(left + half * 4) = *reinterpret_cast<const float4*>(&a[k][y + half * tile / 2]);
        *reinterpret_cast<float4*>(right + half * 4) = *reinterpret_cast<const float4*>(&b[k][x + half * tile / 2]);
      }
#pragma unroll
      for (int i = 0; i < V; ++i) {
#pragma unroll
        for (int j = 0; j < V; ++j) sum[i][j] += left[i] * right[j];
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const int r = row + y + i / 4 * (tile / 2) + i % 4;
    if (r >= p.m) continue;
#pragma unroll
    for (int j = 0; j < V; j += 4) {
      const int c = column + x + j / 4 * (tile / 2);
      float* const to = p.c + static_cast<long>(r) * p.n + c;
      if (aligned && c < p.n) *reinterpret_cast<float4*>(to) = {sum[i][j], sum[i][j + 1], sum[i][j + 2], sum[i][j + 3]};
      for (int e = 0; !aligned && e < 4; ++e)
        if (c + e < p.n) to[e] = sum[i][j + e];
    }
  }
}

}  // namespace

void vector_loads(const Product& p, cudaStream_t stream) {
  const bool aligned = p.k % 4 == 0 && p.n % 4 == 0;
  const auto kernel = aligned ? multiply<true> : multiply<false>;
  kernel<<<dim3((p.n + tile - 1) / tile, (p.m + tile - 1) / tile), threads, 0, stream>>>(p);
}

}  // namespace study::gpu
