#pragma once
#include "cuda/device/convert.cuh"
#include "cuda/device/group.cuh"
#include "cuda/device/indexer.cuh"
#include "cuda/device/philox_dropout.cuh"
#include "cuda/device/vec16.cuh"
#include "ops/kernels/functors.h"

// Functions that generated kernels call (compile/cuda_text.h): memory, and reductions of a row.
namespace tern::gpu {

/// Reads the first `valid` of `width` adjacent elements; all at once if all are valid, and 0 for the others. `whole`: all are, or none.
template <int width, bool whole, class T>
__device__ __forceinline__ void read_some(const T* from, unsigned valid, T* to) {
  Vector<T, width> words = {};
  if (valid >= width) words = read_vector<width>(from);
  else if constexpr (!whole) {
#pragma unroll
    for (int k = 0; k < width; ++k)
      if (k < valid) words.values[k] = from[k];
  }
#pragma unroll
  for (int k = 0; k < width; ++k) to[k] = words.values[k];
}
template <int width, bool whole, class T>
__device__ __forceinline__ void write_some(T* to, unsigned valid, const T* from) {
  Vector<T, width> words;
#pragma unroll
  for (int k = 0; k < width; ++k) words.values[k] = from[k];
  if (valid >= width) write_vector(to, words);
  else if constexpr (!whole) {
#pragma unroll
    for (int k = 0; k < width; ++k)
      if (k < valid) to[k] = words.values[k];
  }
}

/// Reductions of a row, in which NaN propagates.
struct RowSum {
  static __device__ float identity() { return 0; }
  static __device__ float combine(float a, float b) { return a + b; }
};
struct RowMax {
  static __device__ float identity() { return -INFINITY; }
  static __device__ float combine(float a, float b) { return functors::Maximum{}(a, b); }
};
struct RowMin {
  static __device__ float identity() { return INFINITY; }
  static __device__ float combine(float a, float b) { return functors::Minimum{}(a, b); }
};

/// x, or 0 if it is infinite or NaN.
__device__ __forceinline__ float finite_or_zero(float x) { return fabsf(x) < INFINITY ? x : 0.f; }

/// Reduction over the threads of a row, the same bits in all of them: adjacent lanes of a warp, or adjacent warps of a block, which
/// exchange one value for each warp in `shared`.
template <class Op, int threads>
__device__ __forceinline__ float reduce_row(float value, float (&shared)[32]) {
#pragma unroll
  for (int step = (threads < 32 ? threads : 32) / 2; step > 0; step /= 2) value = Op::combine(value, shuffle_xor(value, step));
  if constexpr (threads > 32) {
    constexpr int warps = threads / 32;
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
    __syncthreads();
    value = shared[threadIdx.x / threads * warps + threadIdx.x % warps];
#pragma unroll
    for (int step = warps / 2; step > 0; step /= 2) value = Op::combine(value, shuffle_xor(value, step));
  }
  return value;
}

/// Columns of a block's rows of threads, each thread with n of them, added up in its first row: adjacent rows of a warp by shuffles, then
/// warps through `shared`.
template <int threads, int n, int size>
__device__ __forceinline__ void add_rows(float (&sums)[n], float (&shared)[size]) {
  constexpr int columns = threads * n, rows = size / columns;
#pragma unroll
  for (int step = threads; step < 32; step *= 2)
#pragma unroll
    for (int k = 0; k < n; ++k) sums[k] += shuffle_xor(sums[k], step);
  constexpr int sharing = threads < 32 ? 32 : threads;
  const int row = threadIdx.x / sharing, thread = threadIdx.x % sharing;
  if (thread < threads)
#pragma unroll
    for (int k = 0; k < n; ++k) shared[row * columns + k * threads + thread] = sums[k];
  __syncthreads();
  for (int i = threadIdx.x; i < columns; i += rows * sharing) {
    float total = shared[i];
#pragma unroll
    for (int other = 1; other < rows; ++other) total += shared[other * columns + i];
    shared[i] = total;
  }
  __syncthreads();
  if (row == 0 && thread < threads)
#pragma unroll
    for (int k = 0; k < n; ++k) sums[k] = shared[k * threads + thread];
  __syncthreads();
}

}  // namespace tern::gpu
