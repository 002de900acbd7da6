#pragma once
#include <cuda_runtime.h>

namespace study::gpu {

/// c (m, n) = a (m, k) b (k, n): f32, row-major, without gaps, on the device. Sizes are at least 1.
struct Product {
  const float *a, *b;
  float* c;
  int m, n, k;
};

// A rung each, from the slowest to the fastest: each launches on the stream and differs from the one before by one idea.
void naive(const Product& product, cudaStream_t stream);
void coalesced(const Product& product, cudaStream_t stream);
void shared_tiles(const Product& product, cudaStream_t stream);
void register_tiles(const Product& product, cudaStream_t stream);
void vector_loads(const Product& product, cudaStream_t stream);
void warp_tiles(const Product& product, cudaStream_t stream);
void async_copies(const Product& product, cudaStream_t stream);
void tensor_cores(const Product& product, cudaStream_t stream);

}  // namespace study::gpu
