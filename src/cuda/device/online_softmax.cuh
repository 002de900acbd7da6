#pragma once
#include "cuda/device/group.cuh"
#include "cuda/device/math.cuh"

// Online softmax: the maximum and the sum of exponentials of a row in one pass, for every kernel that needs them. Milakov & Gimelshein,
// "Online normalizer calculation for softmax", 2018.
namespace tern::gpu {

/// e^x of the differences of an online softmax: exact, or with the error of exp_approx.
struct ExactExp {
  template <class C>
  static __device__ __forceinline__ C of(C x) {
    return std::exp(x);
  }
};
struct FastExp {
  template <class C>
  static __device__ __forceinline__ C of(C x) {
    return exp_approx(x);
  }
};

/// The maximum so far, and the sum of e^(x - max). NaN is no maximum, and enters through the sum.
template <class C, class Exp>
struct OnlineSoftmax {
  C max, sum;

  /// Continues with one number. Equal ones are handled first, because the difference of two infinities is NaN.
  __device__ __forceinline__ void add(C value) {
    const C difference = value == max ? C(0) : value - max;
    const bool rises = difference > C(0);
    const C factor = Exp::of(rises ? -difference : difference);
    sum = rises ? sum * factor + C(1) : sum + factor;
    max = rises ? value : max;
  }

  /// Rescales only if the maximum increases, once for many numbers. The maximum before is not -inf, whose difference to itself is NaN.
  __device__ __forceinline__ void raise_max(C to) {
    if (to <= max) return;
    sum *= Exp::of(max - to);
    max = to;
  }
  __device__ __forceinline__ C log_sum_exp() const { return max + std::log(sum); }
};

/// Online softmax of the numbers of both. Commutative to the last bit, because each lane of a warp continues with its own result.
template <class C, class Exp>
__device__ __forceinline__ OnlineSoftmax<C, Exp> merge(const OnlineSoftmax<C, Exp>& a, const OnlineSoftmax<C, Exp>& b) {
  const C factor = a.max == b.max ? C(1) : Exp::of(-fabs(a.max - b.max));
  const bool rises = a.max < b.max;
  return {fmax(a.max, b.max), fma(rises ? a.sum : b.sum, factor, rises ? b.sum : a.sum)};
}
template <class C, class Exp>
__device__ __forceinline__ OnlineSoftmax<C, Exp> shuffle_xor(const OnlineSoftmax<C, Exp>& a, unsigned step) {
  return {gpu::shuffle_xor(a.max, step), gpu::shuffle_xor(a.sum, step)};
}

/// Online softmax in base 2 of a tile of scores at a time, whose exponentials become weights: raises the maximum to that of a tile, and
/// returns the number to subtract from its scores, and the factor of all earlier sums. Both are finite if all scores so far are -inf.
struct RaisedMax {
  float shift, rescale;

  __device__ __forceinline__ RaisedMax(float& max, float to) {
    const float before = max;
    max = fmaxf(before, to);
    shift = max == -INFINITY ? 0 : max;
    rescale = exp2_approx(before - shift);
  }
};

}  // namespace tern::gpu
