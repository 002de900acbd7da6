#pragma once
#include "cuda/device/convert.cuh"
#include "cuda/device/group.cuh"
#include "cuda/device/indexer.cuh"
#include "cuda/device/philox_dropout.cuh"
#include "cuda/device/vec16.cuh"
#include "ops/kernels/functors.h"

// Functions that generated kernels call (compile/cuda_text.h): memory, and reductions of a row.
namespace tern::gpu {

/// Reads the first `valid` of `width` adjacent elements; all at once if all are valid, and 0 for the others.
template <int width, class T>
__device__ __forceinline__ void read_some(const T* from, unsigned valid, T* to) {
  Vector<T, width> words = {};
  if (valid >= width) words = read_vector<width>(from);
  else {
#pragma unroll
    for (int k = 0; k < width; ++k)
      if (k < valid) words.values[k] = from[k];
  }
#pragma unroll
  for (int k = 0; k < width; ++k) to[k] = words.values[k];
}
template <int width, class T>
__device__ __forceinline__ void write_some(T* to, unsigned valid, const T* from) {
  Vector<T, width> words;
#pragma unroll
  for (int k = 0; k < width; ++k) words.values[k] = from[k];
  if (valid >= width) write_vector(to, words);
  else {
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

/// Reduction over the threads of a row, the same bits in all of them: adjacent lanes of a warp, or all threads of a block, which exchange
/// one value for each warp in `shared`.
template <class Op, int threads>
__device__ __forceinline__ float reduce_row(float value, float (&shared)[32]) {
#pragma unroll
  for (int step = (threads < 32 ? threads : 32) / 2; step > 0; step /= 2) value = Op::combine(value, shuffle_xor(value, step));
  if constexpr (threads > 32) {
    constexpr int warps = threads / 32;
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
    __syncthreads();
    value = shared[threadIdx.x % warps];
#pragma unroll
    for (int step = warps / 2; step > 0; step /= 2) value = Op::combine(value, shuffle_xor(value, step));
  }
  return value;
}

}  // namespace tern::gpu
