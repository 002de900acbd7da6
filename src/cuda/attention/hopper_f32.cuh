#pragma once
#include "cuda/attention/hopper.cuh"

// float32 on Hopper's tensor cores of 16 bits.
//
// Note [Two parts]
// A float32 number x is split into two f16 numbers: hi = x rounded, lo = x - hi rounded, together at least 22 bits. Three products, lo hi,
// hi lo, hi hi, give one of float32: half the cost of 3xTF32, with all of the layouts that 16-bit operands allow. With one part, hi alone,
// a product has the 11 bits of TF32.
//
// f16's range requires scales. Each tensor is multiplied by a power of two for each of its heads (for queries: for each group that shares a
// key head), which brings the largest number to [2^14, 2^15); numbers 2^17 times smaller than that begin to lose bits. Rows that a mask
// hides are included. P is computed times 2^15. dS = P (dP - delta) is bounded by 2 |dy| |v| / (1 - dropout), with the largest norms of the
// rows of dy and v, and is scaled by that bound. All scales are powers of two and so exact.
//
// Tensor cores truncate when they add to an accumulator, so a long sum in one accumulator drifts towards zero. Each tile's product
// therefore has a separate accumulator, which an ordinary addition adds to the sum (promotion). And lo hi and hi lo come first, while sums
// are small.
namespace tern::gpu::hopper {

inline constexpr int f16_exponent = 15;  ///< scaled numbers are below 2^15

namespace detail {
template <class T> struct Element {
  using type = T;
};
template <> struct Element<float> {
  using type = f16;
};
}  // namespace detail
/// Element type of the operands of products.
template <class T>
using element_t = typename detail::Element<T>::type;

/// 2^exponent as a normal number.
__device__ __forceinline__ float power_of_two(int exponent) { return __int_as_float((min(max(exponent, -126), 127) + 127) << 23); }
/// The exponent of x > 0: x < 2^(exponent + 1).
__device__ __forceinline__ int exponent_of(float x) { return (__float_as_int(x) >> 23) - 127; }

/// Numbers from which scales are computed: (values, heads) for the key heads of all batch rows.
struct Maxima {
  enum Value { q, k, v, dy, v_length, dy_length, values };  ///< largest magnitudes, and norms of rows

  const float* data;
  int heads;

  __device__ __forceinline__ int head(const Args& args, int batch, int q_head) const {
    return batch * args.kv_heads + q_head / args.group();
  }
  /// Exponent of the power of two that a tensor is multiplied by. Bounded so that its inverse, and products of two inverses, are finite.
  __device__ __forceinline__ int exponent(Value value, int head) const {
    return min(f16_exponent - 1 - exponent_of(data[value * heads + head]), 100);
  }
  /// The same for dS: 2 a b inverse_keep < 2^-exponent for the norms a and b.
  __device__ __forceinline__ int ds_exponent(int head, float inverse_keep) const {
    const float a = data[v_length * heads + head], b = data[dy_length * heads + head];
    const int ea = exponent_of(a), eb = exponent_of(b);
    const float mantissas = a * power_of_two(-ea) * (b * power_of_two(-eb)) * inverse_keep;
    return min(-(ea + eb + exponent_of(mantissas) + 2), 100);
  }
};

/// Splits two numbers into their parts.
__device__ __forceinline__ void split_pair(float x, float y, unsigned& hi, unsigned& lo) {
  hi = pack_pair<f16>(x, y);
  float x_hi, y_hi;
  unpack_pair<f16>(hi, x_hi, y_hi);
  lo = pack_pair<f16>(x - x_hi, y - y_hi);
}

}  // namespace tern::gpu::hopper
