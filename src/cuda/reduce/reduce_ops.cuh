#pragma once
#include "cuda/reduce/reduce.cuh"

// The Ops of kernels::Reduce. C is the type of the arithmetic, Out that of the results in memory.
namespace tern::gpu {

/// C, or its unsigned form: integers wrap where they overflow.
template <class C>
using wrapping_t = typename std::conditional_t<std::is_integral_v<C>, std::make_unsigned<C>, std::enable_if<true, C>>::type;

template <class C>
struct SumOp {
  using Accumulator = C;
  using Out = Any<C>;
  static __device__ C identity() { return C(0); }
  static __device__ C combine(C a, C b) { return C(wrapping_t<C>(a) + wrapping_t<C>(b)); }
  static __device__ void add(C& sum, C value) { sum = combine(sum, value); }
  static __device__ C finish(C sum, double scale) { return scale == 1 ? sum : C(static_cast<double>(sum) * scale); }
};

template <class C>
struct ProductOp {
  using Accumulator = C;
  using Out = Any<C>;
  static __device__ C identity() { return C(1); }
  static __device__ C combine(C a, C b) { return C(wrapping_t<C>(a) * wrapping_t<C>(b)); }
  static __device__ void add(C& product, C value) { product = combine(product, value); }
  static __device__ C finish(C product, double) { return product; }
};

template <class C>
__device__ __forceinline__ C lowest() {
  if constexpr (std::is_integral_v<C>) return std::numeric_limits<C>::min();
  else return -std::numeric_limits<C>::infinity();
}
template <class C>
__device__ __forceinline__ C highest() {
  if constexpr (std::is_integral_v<C>) return std::numeric_limits<C>::max();
  else return std::numeric_limits<C>::infinity();
}

/// Maximum or minimum; NaN propagates.
template <class C, bool largest>
struct ExtremeOp {
  using Accumulator = C;
  using Out = Any<C>;
  static __device__ C identity() { return largest ? lowest<C>() : highest<C>(); }
  static __device__ C combine(C a, C b) { return (largest ? b > a : b < a) || b != b ? b : a; }
  static __device__ void add(C& extreme, C value) { extreme = combine(extreme, value); }
  static __device__ C finish(C extreme, double) { return extreme; }
};

template <bool any>
struct AnyAllOp {
  using Accumulator = std::int32_t;
  using Out = bool;
  static __device__ std::int32_t identity() { return any ? 0 : 1; }
  static __device__ std::int32_t combine(std::int32_t a, std::int32_t b) { return any ? a | b : a & b; }
  template <class C>
  static __device__ void add(std::int32_t& found, C value) {
    found = combine(found, value != C(0));
  }
  static __device__ bool finish(std::int32_t found, double) { return found != 0; }
};

/// A maximum and the sum of exp(x - maximum).
template <class C>
struct ScaledSum {
  C maximum, sum;
};
template <class C>
__device__ __forceinline__ ScaledSum<C> shuffle_xor(ScaledSum<C> value, unsigned step) {
  return {shuffle_xor(value.maximum, step), shuffle_xor(value.sum, step)};
}

/// log(sum(exp(x))) in one pass: Milakov & Gimelshein, "Online normalizer calculation for softmax", 2018.
/// Equal maxima are told apart first, since the difference of two infinities is NaN; a NaN propagates in the sum.
template <class C>
struct LogSumExpOp {
  using Accumulator = ScaledSum<C>;
  using Out = Any<C>;
  static __device__ Accumulator identity() { return {-std::numeric_limits<C>::infinity(), C(0)}; }
  static __device__ void add(Accumulator& a, C value) {
    const C difference = value == a.maximum ? C(0) : value - a.maximum;
    const bool rises = difference > C(0);
    const C factor = std::exp(rises ? -difference : difference);
    a.sum = rises ? a.sum * factor + C(1) : a.sum + factor;
    a.maximum = rises ? value : a.maximum;
  }
  static __device__ Accumulator combine(Accumulator a, Accumulator b) {
    const C difference = b.maximum == a.maximum ? C(0) : b.maximum - a.maximum;
    const bool rises = difference > C(0);
    const C factor = std::exp(rises ? -difference : difference);
    return {rises ? b.maximum : a.maximum, rises ? a.sum * factor + b.sum : a.sum + b.sum * factor};
  }
  static __device__ C finish(Accumulator a, double) { return a.maximum + std::log(a.sum); }
};

}  // namespace tern::gpu
