#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "tensor/dtype.h"

namespace tern::vector_math {

/// Note [Vector math]: functions for the hot float32 loops, without branches and calls, so that the compiler vectorizes the loop around
/// them for any processor, and so that several of them fuse into one pass. A comparison inside an arm of `?:` counts as a branch, since it
/// might trap: comparisons are made one after the other. Errors are at most 2 units in the last place unless stated; infinities and NaN are
/// handled as in <cmath>. The coefficients are our own minimax fits. float64 loops use <cmath>: they serve gradient checks, where exactness
/// matters.

[[gnu::always_inline]] inline float power_of_two(std::int32_t n) { return std::bit_cast<float>(std::uint32_t(n + 127) << 23); }

/// x = n ln 2 + r, |r| <= ln 2 / 2, and q with exp(r) = 1 + r + q r^2.
struct ReducedExp {
  float shifted;  ///< n + 1.5 * 2^23: the addition rounds to an integer, which is then in the low bits
  float r, q;
};
[[gnu::always_inline]] inline ReducedExp reduced_exp(float x) {
  constexpr float rounder = 0x1.8p23f;
  const float shifted = x * 1.44269504f + rounder;
  const float n = shifted - rounder;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float q = 1.381461313e-3f;
  q = q * r + 8.368709828e-3f;
  q = q * r + 4.166838736e-2f;
  q = q * r + 1.666652069e-1f;
  q = q * r + 4.999999345e-1f;
  return {shifted, r, q};
}

[[gnu::always_inline]] inline float exp(float x) {
  const float above = x < -104.0f ? -104.0f : x, bounded = above > 89.0f ? 89.0f : above;
  const auto [shifted, r, q] = reduced_exp(bounded);
  const float mantissa = (q * r) * r + r + 1.0f;
  // Two factors, because 2^n alone leaves the range of normal numbers before the product does.
  const auto exponent = std::int32_t(std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(0x1.8p23f)), half = exponent >> 1;
  return mantissa * power_of_two(half) * power_of_two(exponent - half);
}

[[gnu::always_inline]] inline double exp(double x) { return std::exp(x); }

/// exp(x) for x <= 0, and 0 where the result would be denormal: fewer instructions than exp, which handles both ends of the range.
[[gnu::always_inline]] inline float exp_below_zero(float x) {
  const auto [shifted, r, q] = reduced_exp(x);
  // Above the integer n there are the bits of 1.5 * 2^23, which are shifted out.
  const float scale = std::bit_cast<float>((std::bit_cast<std::uint32_t>(shifted) << 23) + 0x3f800000u),
              y = ((q * r + 1.0f) * r + 1.0f) * scale;
  return x < -87.0f ? 0.0f : y;
}
[[gnu::always_inline]] inline double exp_below_zero(double x) { return std::exp(x); }

/// 2^x for x that is at most slightly above 0, and 0 where the result would be denormal.
[[gnu::always_inline]] inline float exp2_below_zero(float x) {
  // 2^x = 2^n 2^r with |r| <= 1/2; the polynomial, through 2^r at Chebyshev's nodes, is off by 9e-9.
  constexpr float rounder = 0x1.8p23f;
  const float shifted = x + rounder, r = x - (shifted - rounder);
  float p = 1.54531634e-4f;
  p = p * r + 1.33908633e-3f;
  p = p * r + 9.61808302e-3f;
  p = p * r + 5.55035695e-2f;
  p = p * r + 2.40226507e-1f;
  p = p * r + 6.93147182e-1f;
  p = p * r + 1.0f;
  // The integer n is in the low bits of `shifted`; the bits above it are shifted out.
  const float scale = std::bit_cast<float>((std::bit_cast<std::uint32_t>(shifted) << 23) + 0x3f800000u), y = p * scale;
  return x < -126.0f ? 0.0f : y;
}
[[gnu::always_inline]] inline double exp2_below_zero(double x) { return std::exp2(x); }

[[gnu::always_inline]] inline float log(float x) {
  // x = 2^n m with m in [sqrt(1/2), sqrt(2)); subnormal numbers are scaled up first.
  const bool small = x < 0x1p-126f;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(small ? x * 0x1p25f : x) - 0x3f3504f3u;
  const float n = float(std::int32_t(bits) >> 23) - (small ? 25.0f : 0.0f);
  const float f = std::bit_cast<float>((bits & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
  float p = 6.746641054e-2f;
  p = p * f - 1.167565197e-1f;
  p = p * f + 1.188816210e-1f;
  p = p * f - 1.240558888e-1f;
  p = p * f + 1.421955238e-1f;
  p = p * f - 1.666799586e-1f;
  p = p * f + 2.000211866e-1f;
  p = p * f - 2.500000960e-1f;
  p = p * f + 3.333331260e-1f;
  const float square = f * f;
  const float y = ((p * f) * square - n * 2.12194440e-4f - 0.5f * square) + f + n * 0.693359375f;
  constexpr float infinity = std::bit_cast<float>(0x7f800000u), nan = std::bit_cast<float>(0x7fc00000u);
  const float finite = x < infinity ? y : x, defined = x < 0.0f ? nan : finite;
  return x == 0.0f ? -infinity : defined;
}

/// log(1 + x).
[[gnu::always_inline]] inline float log1p(float x) {
  // First-order correction of log(1 + x): the part of x lost in rounding 1 + x, divided by 1 + x.
  constexpr float infinity = std::bit_cast<float>(0x7f800000u);
  const float sum = 1.0f + x, y = log(sum), corrected = y + (x - (sum - 1.0f)) / sum;
  const float positive = sum > 0.0f ? corrected : y;
  return sum < infinity ? positive : y;
}

[[gnu::always_inline]] inline float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }
[[gnu::always_inline]] inline double sigmoid(double x) { return 1 / (1 + exp(-x)); }

[[gnu::always_inline]] inline float tanh(float x) {
  // Near zero 1 - 2 / (e^2x + 1) cancels, so an odd polynomial is used.
  const float z = x * x, magnitude = std::abs(x);
  float p = -5.704986925e-3f;
  p = p * z + 2.063908716e-2f;
  p = p * z - 5.373971505e-2f;
  p = p * z + 1.333144220e-1f;
  p = p * z - 3.333328194e-1f;
  const float near = (p * z) * x + x;
  const float far = 1.0f - 2.0f / (exp(2.0f * magnitude) + 1.0f);
  return std::copysign(magnitude < 0.625f ? near : far, x);  // also for -0, whose sum with near's first term is +0
}

/// The standard normal distribution function, within 2^-22.
[[gnu::always_inline]] inline float normal_cdf(float x) {
  // 2 cdf - 1 = erf(x / sqrt(2)) is odd, and 1 beyond 5.6.
  const float above = x < -5.6f ? -5.6f : x, bounded = above > 5.6f ? 5.6f : above, z = bounded * bounded;
  float p = 4.459429308e-8f;
  p = p * z + 1.257962872e-5f;
  p = p * z + 3.378672774e-4f;
  p = p * z + 9.354755925e-3f;
  p = p * z + 6.785890256e-2f;
  p = p * z + 7.978845437e-1f;
  float q = 1.179651786e-6f;
  q = q * z + 7.334562349e-5f;
  q = q * z + 1.885517179e-3f;
  q = q * z + 2.867780220e-2f;
  q = q * z + 2.517148485e-1f;
  q = q * z + 1.0f;
  const float inside = 0.5f + 0.5f * (bounded * p / q), upper = x > 5.6f ? 1.0f : inside;
  return x < -5.6f ? 0.0f : upper;
}

/// sine and cosine of a full turn times u, for u in [0, 1].
struct SineCosine {
  float sine, cosine;
};
[[gnu::always_inline]] inline SineCosine sine_cosine_of_turn(float u) {
  // The nearest quarter turn is subtracted exactly.
  const std::int32_t quarter = std::int32_t(u * 4.0f + 0.5f);
  const float r = (u - float(quarter) * 0.25f) * 6.28318531f, z = r * r;
  const float sine = ((-1.951528317e-4f * z + 8.332160762e-3f) * z - 1.666665461e-1f) * z * r + r;
  const float cosine = ((2.443845120e-5f * z - 1.388736751e-3f) * z + 4.166664687e-2f) * z * z - 0.5f * z + 1.0f;
  const bool swap = quarter & 1;
  const float s = swap ? cosine : sine, c = swap ? sine : cosine;
  return {quarter & 2 ? -s : s, (quarter + 1) & 2 ? -c : c};
}

}  // namespace tern::vector_math

// Math functions for functors (Note [Functors]). The CPU's float32 loops get forms that vectorize (Note [Vector math]); float64, and all
// device code, use <cmath>.
namespace tern::math {

#ifdef __CUDACC__
template <class T>
inline constexpr bool vectorises = false;
#else
template <class T>
inline constexpr bool vectorises = std::is_same_v<T, float>;
#endif

template <class T>
TERN_HOST_DEVICE T exp(T x) {
  if constexpr (vectorises<T>) return vector_math::exp(x);
  else return std::exp(x);
}
template <class T>
TERN_HOST_DEVICE T log(T x) {
  if constexpr (vectorises<T>) return vector_math::log(x);
  else return std::log(x);
}
/// log(1 + x), accurate near 0.
template <class T>
TERN_HOST_DEVICE T log1p(T x) {
  if constexpr (vectorises<T>) return vector_math::log1p(x);
  else return std::log1p(x);
}
template <class T>
TERN_HOST_DEVICE T tanh(T x) {
  if constexpr (vectorises<T>) return vector_math::tanh(x);
  else return std::tanh(x);
}
template <class T>
TERN_HOST_DEVICE T sigmoid(T x) {
  if constexpr (vectorises<T>) return vector_math::sigmoid(x);
  else return T(1) / (T(1) + std::exp(-x));
}
/// The standard normal distribution function.
template <class T>
TERN_HOST_DEVICE T normal_cdf(T x) {
  if constexpr (vectorises<T>) return vector_math::normal_cdf(x);
  else return T(0.5) * (T(1) + std::erf(x * T(0.70710678118654752440)));
}
template <class T>
TERN_HOST_DEVICE T erf(T x) {
  return std::erf(x);
}
template <class T>
TERN_HOST_DEVICE T sin(T x) {
  return std::sin(x);
}
template <class T>
TERN_HOST_DEVICE T cos(T x) {
  return std::cos(x);
}

}  // namespace tern::math
