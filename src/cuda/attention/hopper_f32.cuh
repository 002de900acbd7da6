#pragma once
#include "cuda/attention/hopper.cuh"

// float32 on Hopper's tensor cores of 16 bits.
//
// Note [Two parts]
// A number x of float32 becomes two of f16: hi = x rounded, lo = x - hi rounded, together 22 bits or more. Three products, lo hi, hi lo, hi
// hi, make up one of float32: half of what 3xTF32 costs, with all of the layouts that operands of 16 bits have. With one part, hi alone, a
// product has the 11 bits of TF32.
//
// f16's range asks for scales. Each tensor is multiplied by a power of two, for each of its heads (of queries: those that share a head of
// keys), that brings the largest number to [2^14, 2^15); what is 2^17 times smaller than that begins to lose bits. Rows that a mask hides
// count, too. P is computed times 2^15. dS = P (dP - delta) lies within 2 |dy| |v| / (1 - dropout), by the largest lengths of the rows of
// dy and v, and is scaled by that. All scales are powers of two and so exact.
//
// Tensor cores truncate when they add to an accumulator, so a long sum in one drifts towards zero. A tile's product has an accumulator of
// its own, which an ordinary addition adds to the sum: promotion. And lo hi and hi lo come first, while sums are small.
namespace tern::gpu::hopper {

inline constexpr int f16_exponent = 15;  ///< scaled numbers lie below 2 to this

namespace detail {
template <class T> struct Element {
  using type = T;
};
template <> struct Element<float> {
  using type = f16;
};
}  // namespace detail
/// The operands of products.
template <class T>
using element_t = typename detail::Element<T>::type;

/// 2^exponent as a normal number.
__device__ __forceinline__ float power_of_two(int exponent) { return __int_as_float((min(max(exponent, -126), 127) + 127) << 23); }
/// The exponent of x > 0: x < 2^(exponent + 1).
__device__ __forceinline__ int exponent_of(float x) { return (__float_as_int(x) >> 23) - 127; }

/// The numbers that scales are computed from: (values, heads) for the heads of keys of all batch rows.
struct Maxima {
  enum Value { q, k, v, dy, v_length, dy_length, values };  ///< largest magnitudes, and lengths of rows

  const float* data;
  int heads;

  __device__ __forceinline__ int head(const Args& args, int batch, int q_head) const {
    return batch * args.kv_heads + q_head / args.group();
  }
  /// Of the power of two that a tensor is multiplied with. Bounded so that its inverse, and the inverses' product, are numbers.
  __device__ __forceinline__ int exponent(Value value, int head) const {
    return min(f16_exponent - 1 - exponent_of(data[value * heads + head]), 100);
  }
  /// Likewise of dS: 2 a b inverse_keep < 2^-exponent for the lengths a and b.
  __device__ __forceinline__ int ds_exponent(int head, float inverse_keep) const {
    const float a = data[v_length * heads + head], b = data[dy_length * heads + head];
    const int ea = exponent_of(a), eb = exponent_of(b);
    const float mantissas = a * power_of_two(-ea) * (b * power_of_two(-eb)) * inverse_keep;
    return min(-(ea + eb + exponent_of(mantissas) + 2), 100);
  }
};

/// The two parts of two numbers.
__device__ __forceinline__ void split_pair(float x, float y, unsigned& hi, unsigned& lo) {
  hi = pack_pair<f16>(x, y);
  float x_hi, y_hi;
  unpack_pair<f16>(hi, x_hi, y_hi);
  lo = pack_pair<f16>(x - x_hi, y - y_hi);
}

}  // namespace tern::gpu::hopper
