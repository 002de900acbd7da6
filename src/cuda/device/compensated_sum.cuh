#pragma once

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

}  // namespace tern::gpu
