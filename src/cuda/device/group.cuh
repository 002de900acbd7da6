#pragma once
#include "cuda/runtime/launch.h"

// Exchange among the threads of a warp and of a block. A combination of values is an Op with an Accumulator type, its
// identity() and combine(a, b).
namespace tern::gpu {

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

/// The combination of the values of a block's threads, valid in thread 0. The block has whole warps, at most 32. A second
/// call in one kernel needs a barrier before it.
template <class Op>
__device__ typename Op::Accumulator block_reduce(typename Op::Accumulator value) {
  __shared__ typename Op::Accumulator shared[32];
#pragma unroll
  for (unsigned step = 16; step > 0; step /= 2) value = Op::combine(value, shuffle_xor(value, step));
  const unsigned warps = blockDim.x / 32, lane = threadIdx.x % 32;
  if (warps == 1) return value;
  if (lane == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x < 32) {
    value = lane < warps ? shared[lane] : Op::identity();
#pragma unroll
    for (unsigned step = 16; step > 0; step /= 2) value = Op::combine(value, shuffle_xor(value, step));
  }
  return value;
}

}  // namespace tern::gpu
