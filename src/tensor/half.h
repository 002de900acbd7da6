#pragma once
#include <bit>
#include <cstdint>

#ifdef __CUDACC__
#define TERN_HOST_DEVICE __host__ __device__
#else
#define TERN_HOST_DEVICE
#endif

namespace tern {

/// bfloat16 storage: the upper half of a float. Arithmetic is done in float; conversion rounds to nearest, ties to even.
struct bf16 {
  std::uint16_t bits = 0;  ///< sign, 8 bits of exponent, 7 of mantissa
  bf16() = default;
  /// Rounds to nearest, ties to even; a NaN stays a NaN, with a truncated payload.
  TERN_HOST_DEVICE constexpr explicit bf16(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    const bool is_nan = (word & 0x7fffffffu) > 0x7f800000u;
    bits = is_nan ? std::uint16_t((word >> 16) | 0x40u) : std::uint16_t((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
  }
  /// Exact conversion.
  TERN_HOST_DEVICE constexpr operator float() const { return std::bit_cast<float>(std::uint32_t(bits) << 16); }
};

/// IEEE binary16 storage. Arithmetic is done in float; conversion rounds to nearest, ties to even.
struct f16 {
  std::uint16_t bits = 0;  ///< sign, 5 bits of exponent, 10 of mantissa
  f16() = default;
  /// Rounds to nearest, ties to even; values beyond 65504 become infinity, those below 2^-24 subnormal numbers or 0.
  TERN_HOST_DEVICE constexpr explicit f16(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (word >> 16) & 0x8000u, magnitude = word & 0x7fffffffu;
    std::uint32_t half = 0;
    if (magnitude > 0x7f800000u) {
      half = 0x7e00u;  // NaN
    } else if (magnitude >= 0x477ff000u) {
      half = 0x7c00u;  // rounds past 65504, the largest finite value
    } else if (magnitude >= 0x38800000u) {
      const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
      half = (rounded - 0x38000000u) >> 13;
    } else {
      // Subnormal: adding 0.5 aligns the mantissa with the smallest half, and the addition rounds.
      half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
    }
    bits = std::uint16_t(sign | half);
  }
  /// Exact conversion, subnormal numbers included.
  TERN_HOST_DEVICE constexpr operator float() const {
    const std::uint32_t sign = std::uint32_t(bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
    if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
    if (magnitude >= 0x400u) return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
    const float subnormal = float(magnitude) * 5.9604644775390625e-8f;  // 2^-24
    return sign ? -subnormal : subnormal;
  }
};

}  // namespace tern
