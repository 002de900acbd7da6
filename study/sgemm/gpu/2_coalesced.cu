// Rung 2: rung 1 with a warp along a row of c.
//
// At a step of k a warp now reads one element of a, which all its threads share, and 32 neighbours of b, which are four whole sectors: 5
// sectors in place of 33. The operands that threads ask for are as many as before.
#include "ladder.h"

namespace study::gpu {

namespace {

__global__ void multiply(Product p) {
  const int column = static_cast<int>(blockIdx.x * 32 + threadIdx.x), row = static_cast<int>(blockIdx.y * 32 + threadIdx.y);
  if (row >= p.m || column >= p.n) return;
  float sum = 0;
  for (int k = 0; k < p.k; ++k) sum += p.a[static_cast<long>(row) * p.k + k] * p.b[static_cast<long>(k) * p.n + column];
  p.c[static_cast<long>(row) * p.n + column] = sum;
}

}  // namespace

void coalesced(const Product& p, cudaStream_t stream) { multiply<<<dim3((p.n + 31) / 32, (p.m + 31) / 32), dim3(32, 32), 0, stream>>>(p); }

}  // namespace study::gpu
