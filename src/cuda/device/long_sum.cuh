#pragma once

namespace tern::gpu {

/// A sum of any length. In float32 the rounding of each addition, which is known exactly (Knuth, The Art of Computer Programming 2,
/// 4.2.2, theorem B), is added up beside it: thousands of equal numbers one after the other would lose 1e-4 of their sum. Sums in f64
/// and of integers are plain.
template <class C>
struct LongSum {
  C sum = 0;
  __device__ __forceinline__ void add(C x) { sum += x; }
  __device__ __forceinline__ C value() const { return sum; }
};

template <>
struct LongSum<float> {
  float sum = 0, lost = 0;
  __device__ __forceinline__ void add(float x) {
    const float next = __fadd_rn(sum, x), added = __fsub_rn(next, sum);
    lost = __fadd_rn(lost, __fadd_rn(__fsub_rn(sum, __fsub_rn(next, added)), __fsub_rn(x, added)));
    sum = next;
  }
  /// Of an infinite sum `lost` is NaN.
  __device__ __forceinline__ float value() const { return lost == lost ? sum + lost : sum; }
};

}  // namespace tern::gpu
