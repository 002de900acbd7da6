#pragma once
#include <cmath>

// Sums of a thread, and reductions over the threads of a warp and of a block. An Op has an Accumulator type, its identity() and an
// associative combine(a, b). An all-reduce leaves the result in all threads, the same bits if combine is exactly commutative.
namespace tern::gpu {

/// Compensated sum: in float32 the rounding error of each addition, computed exactly by TwoSum (Knuth, The Art of Computer Programming 2,
/// 4.2.2, theorem B), is summed separately; a plain sum of thousands of equal numbers would be off by 1e-4. Sums in float64 and of integers
/// are plain.
template <class C>
struct CompensatedSum {
  C sum = 0;
  __device__ __forceinline__ void add(C x) { sum += x; }
  __device__ __forceinline__ C value() const { return sum; }
};

template <>
struct CompensatedSum<float> {
  float sum = 0, error = 0;
  __device__ __forceinline__ void add(float x) {
    const float next = __fadd_rn(sum, x), rounded = __fsub_rn(next, sum);
    error = __fadd_rn(error, __fadd_rn(__fsub_rn(sum, __fsub_rn(next, rounded)), __fsub_rn(x, rounded)));
    sum = next;
  }
  /// For an infinite sum the error is NaN, and is left out.
  __device__ __forceinline__ float value() const { return error == error ? sum + error : sum; }
};

inline constexpr unsigned whole_warp = 0xffffffffu;

template <class T>
__device__ __forceinline__ T shuffle_xor(T value, unsigned step) {
  return __shfl_xor_sync(whole_warp, value, step);
}

template <class C>
struct PlusOp {
  using Accumulator = C;
  static __device__ C identity() { return C(0); }
  static __device__ C combine(C a, C b) { return a + b; }
};

/// Maximum, which ignores NaN.
struct MaxOp {
  using Accumulator = float;
  static __device__ float identity() { return -INFINITY; }
  static __device__ float combine(float a, float b) { return fmaxf(a, b); }
};

/// All-reduce over the lanes of a warp.
template <class Op>
__device__ __forceinline__ typename Op::Accumulator warp_all_reduce(typename Op::Accumulator value) {
#pragma unroll
  for (unsigned step = 16; step > 0; step /= 2) value = Op::combine(value, shuffle_xor(value, step));
  return value;
}
/// All-reduce over adjacent lanes, a power of two of them.
template <class Op>
__device__ __forceinline__ typename Op::Accumulator lanes_all_reduce(typename Op::Accumulator value, unsigned lanes) {
  for (unsigned step = lanes / 2; step > 0; step /= 2) value = Op::combine(value, shuffle_xor(value, step));
  return value;
}

/// Reduction over the threads of a block, valid in thread 0. The block has whole warps, at most 32. A second call in one kernel needs a
/// barrier before it.
template <class Op>
__device__ typename Op::Accumulator block_reduce(typename Op::Accumulator value) {
  __shared__ typename Op::Accumulator shared[32];
  value = warp_all_reduce<Op>(value);
  const unsigned warps = blockDim.x / 32, lane = threadIdx.x % 32;
  if (warps == 1) return value;
  if (lane == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x < 32) value = warp_all_reduce<Op>(lane < warps ? shared[lane] : Op::identity());
  return value;
}

/// Reduction over the columns of threads of a block, whose threads are `rows` rows, a power of two, of `across` threads; valid in row 0.
/// `row` is this thread's.
template <class Op, int width, int threads>
__device__ __forceinline__ void column_reduce(typename Op::Accumulator (&values)[width], typename Op::Accumulator (&shared)[width][threads],
                                              unsigned across, unsigned row, unsigned rows) {
#pragma unroll
  for (int k = 0; k < width; ++k) shared[k][threadIdx.x] = values[k];
  __syncthreads();
  for (unsigned step = rows / 2; step > 0; step /= 2) {
    if (row < step) {
#pragma unroll
      for (int k = 0; k < width; ++k) {
        values[k] = Op::combine(values[k], shared[k][threadIdx.x + step * across]);
        shared[k][threadIdx.x] = values[k];
      }
    }
    __syncthreads();
  }
}

/// Sum of a column of partial sums in shared memory, over their rows in order: the end of a column sum, of which each row of threads has
/// left its part.
template <class C, int rows, int columns>
__device__ __forceinline__ C sum_column(const C (&parts)[rows][columns], unsigned column) {
  C sum = 0;
#pragma unroll
  for (int row = 0; row < rows; ++row) sum += parts[row][column];
  return sum;
}

/// All-reduce over the threads of a block of at most `max_warps`: each warp reduces the warps' values by itself.
template <class Op, unsigned max_warps = 32>
__device__ __forceinline__ typename Op::Accumulator block_all_reduce(typename Op::Accumulator value) {
  __shared__ typename Op::Accumulator shared[max_warps];
  value = warp_all_reduce<Op>(value);
  const unsigned warps = blockDim.x / 32, lane = threadIdx.x % 32;
  if (lane == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  return warp_all_reduce<Op>(lane < warps ? shared[lane] : Op::identity());
}

}  // namespace tern::gpu
