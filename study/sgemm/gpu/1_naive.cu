// Rung 1: a thread computes an element of c, straight from the formula.
//
// The 32 threads of a warp are neighbours in a column of c. At a step of k they read 32 elements of a that lie a row apart, in 32 sectors
// of 32 bytes of which each gives 4 that are used, and write c in the same way. All 2 m n k operands come through the first-level cache.
#include "ladder.h"

namespace study::gpu {

namespace {

__global__ void multiply(Product p) {
  const int row = static_cast<int>(blockIdx.x * 32 + threadIdx.x), column = static_cast<int>(blockIdx.y * 32 + threadIdx.y);
  if (row >= p.m || column >= p.n) return;
  float sum = 0;
  for (int k = 0; k < p.k; ++k) sum += p.a[static_cast<long>(row) * p.k + k] * p.b[static_cast<long>(k) * p.n + column];
  p.c[static_cast<long>(row) * p.n + column] = sum;
}

}  // namespace

void naive(const Product& p, cudaStream_t stream) { multiply<<<dim3((p.m + 31) / 32, (p.n + 31) / 32), dim3(32, 32), 0, stream>>>(p); }

}  // namespace study::gpu
