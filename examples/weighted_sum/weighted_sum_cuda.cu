#include <cuda_runtime.h>

#include <stdexcept>

#include "weighted_sum.h"

namespace {

constexpr int warp = 32, warps = 8;

/// A warp takes a row at a time of the block's tile; lanes past its end add nothing.
__global__ void weighted_sum_kernel(Matrix size, const float* x, const float* w, float* y) {
  const std::int64_t first = blockIdx.x * rows_per_tile;
  for (std::int64_t i = first + threadIdx.x / warp; i < min(first + rows_per_tile, size.rows); i += warps) {
    float sum = 0;
    for (std::int64_t j = threadIdx.x % warp; j < size.columns; j += warp) sum += x[i * size.columns + j] * w[j];
    for (int step = warp / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % warp == 0) y[i] = sum;
  }
}

/// A thread takes a column of the block's tile, and adds up its part of the weight's gradient on the way down.
__global__ void weighted_sum_grad_kernel(Matrix size, const float* x, const float* w, const float* g, float* dx, float* dw) {
  const std::int64_t first = blockIdx.x * rows_per_tile, last = min(first + rows_per_tile, size.rows);
  for (std::int64_t j = threadIdx.x; j < size.columns; j += blockDim.x) {
    float sum = 0;
    for (std::int64_t i = first; i < last; ++i) {
      dx[i * size.columns + j] = g[i] * w[j];
      sum += g[i] * x[i * size.columns + j];
    }
    dw[blockIdx.x * size.columns + j] = sum;
  }
}

unsigned blocks(Matrix size) { return static_cast<unsigned>(tiles_of(size.rows)); }

void check_launch() {
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

}  // namespace

void on_gpu::weighted_sum(Matrix size, const float* x, const float* w, float* y, void* stream) {
  if (size.rows == 0) return;
  weighted_sum_kernel<<<blocks(size), warps * warp, 0, static_cast<cudaStream_t>(stream)>>>(size, x, w, y);
  check_launch();
}

void on_gpu::weighted_sum_grad(Matrix size, const float* x, const float* w, const float* g, float* dx, float* dw, void* stream) {
  if (size.rows == 0) return;
  weighted_sum_grad_kernel<<<blocks(size), warps * warp, 0, static_cast<cudaStream_t>(stream)>>>(size, x, w, g, dx, dw);
  check_launch();
}
