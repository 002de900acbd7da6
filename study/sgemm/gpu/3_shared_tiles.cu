// Rung 3: a block brings tiles of a and b to shared memory, and each element that it brought serves L threads.
//
// Global memory now gives m n k (1 / L + 1 / L) operands, a 32nd; shared memory gives all the others: each multiplication reads two
// elements from there, and that is what bounds it.
#include "ladder.h"

namespace study::gpu {

namespace {

constexpr int L = 32;

__global__ void __launch_bounds__(L* L) multiply(Product p) {
  __shared__ float a[L][L], b[L][L];
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const int column = static_cast<int>(blockIdx.x) * L + x, row = static_cast<int>(blockIdx.y) * L + y;
  float sum = 0;
  for (int start = 0; start < p.k; start += L) {
    // Zeros outside of a and b: the product has them at its edges.
    a[y][x] = row < p.m && start + x < p.k ? p.a[static_cast<long>(row) * p.k + start + x] : 0;
    b[y][x] = column < p.n && start + y < p.k ? p.b[static_cast<long>(start + y) * p.n + column] : 0;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < L; ++k) sum += a[y][k] * b[k][x];
    __syncthreads();
  }
  if (row < p.m && column < p.n) p.c[static_cast<long>(row) * p.n + column] = sum;
}

}  // namespace

void shared_tiles(const Product& p, cudaStream_t stream) {
  multiply<<<dim3((p.n + L - 1) / L, (p.m + L - 1) / L), dim3(L, L), 0, stream>>>(p);
}

}  // namespace study::gpu
