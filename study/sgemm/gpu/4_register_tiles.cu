// Rung 4: a thread computes V x V elements of c, and each element that it read from shared memory serves V of them.
//
// Shared memory now gives m n k (1 / V + 1 / V) operands. A block of 256 threads has 128 x 128 elements, so that global memory gives
// m n k (1 / 128 + 1 / 128).
#include "ladder.h"

namespace study::gpu {

namespace {

constexpr int tile = 128, depth = 8, V = 8, side = tile / V, threads = side * side;

__global__ void __launch_bounds__(threads) multiply(Product p) {
  // a is turned round, so that a step of k is a row of both. Four elements more a row let the stores of a warp go to 32 different banks.
  __shared__ float a[depth][tile + 4], b[depth][tile];
  const int thread = static_cast<int>(threadIdx.x), x = thread % side, y = thread / side;
  const int row = static_cast<int>(blockIdx.y) * tile, column = static_cast<int>(blockIdx.x) * tile;
  float sum[V][V] = {};
  for (int start = 0; start < p.k; start += depth) {
    for (int i = thread; i < tile * depth; i += threads) {
      const int r = i / depth, k = i % depth;
      a[k][r] = row + r < p.m && start + k < p.k ? p.a[static_cast<long>(row + r) * p.k + start + k] : 0;
    }
    for (int i = thread; i < depth * tile; i += threads) {
      const int k = i / tile, c = i % tile;
      b[k][c] = column + c < p.n && start + k < p.k ? p.b[static_cast<long>(start + k) * p.n + column + c] : 0;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < depth; ++k) {
      // A thread's rows and columns are `side` apart: neighbours then read neighbouring banks.
      float left[V], right[V];
#pragma unroll
      for (int i = 0; i < V; ++i) left[i] = a[k][y + i * side], right[i] = b[k][x + i * side];
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
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const int r = row + y + i * side, c = column + x + j * side;
      if (r < p.m && c < p.n) p.c[static_cast<long>(r) * p.n + c] = sum[i][j];
    }
  }
}

}  // namespace

void register_tiles(const Product& p, cudaStream_t stream) {
  multiply<<<dim3((p.n + tile - 1) / tile, (p.m + tile - 1) / tile), threads, 0, stream>>>(p);
}

}  // namespace study::gpu
