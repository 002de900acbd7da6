#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>

#include "tensor/sizes.h"

// Formats of numbers in memory: 16-bit floats, dtypes, and blocks of quantized weights.
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

/// Type of a tensor's elements: floats of 32 and 64 bits, IEEE half and bfloat16, integers and bool.
enum class DType : std::uint8_t { f32, f64, f16, bf16, i32, i64, u8, boolean };

/// Size of an element in bytes.
constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64: return 8;
    case DType::f32:
    case DType::i32: return 4;
    case DType::f16:
    case DType::bf16: return 2;
    default: return 1;
  }
}

/// Name of a dtype: "f32", "f64", "f16", "bf16", "i32", "i64", "u8", "bool".
constexpr const char* name(DType dtype) {
  constexpr const char* names[] = {"f32", "f64", "f16", "bf16", "i32", "i64", "u8", "bool"};
  return names[static_cast<int>(dtype)];
}

/// True for f32, f64, f16 and bf16, the dtypes that have gradients.
constexpr bool is_floating(DType dtype) { return dtype <= DType::bf16; }

namespace detail {
/// True if the dtype can represent the number: for an integer dtype a whole number within bounds, for a float any number.
bool holds(DType dtype, double number);
/// True if elements of the dtype can be set to the number: an integer dtype truncates it, and the result must be in range.
bool takes(DType dtype, double number);
}  // namespace detail

/// Dtype of `a op b`: floats win over integers, integers over bool; among floats the wider one wins, and f16 with bf16 gives f32, which
/// holds both.
constexpr DType promote(DType a, DType b) {
  if (a == b) return a;
  if (is_floating(a) != is_floating(b)) return is_floating(a) ? a : b;
  if (is_floating(a)) {
    if (a == DType::f64 || b == DType::f64) return DType::f64;
    return DType::f32;
  }
  if (a == DType::i64 || b == DType::i64) return DType::i64;
  if (a == DType::i32 || b == DType::i32) return DType::i32;
  return DType::u8;
}

namespace detail {
template <class T>
struct DTypeOf;
template <> struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <> struct DTypeOf<double> {
  static constexpr DType value = DType::f64;
};
template <> struct DTypeOf<f16> {
  static constexpr DType value = DType::f16;
};
template <> struct DTypeOf<bf16> {
  static constexpr DType value = DType::bf16;
};
template <> struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::i32;
};
template <> struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::i64;
};
template <> struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::u8;
};
template <> struct DTypeOf<bool> {
  static constexpr DType value = DType::boolean;
};
}  // namespace detail

/// DType of a C++ type: dtype_of<float> is DType::f32.
template <class T>
inline constexpr DType dtype_of = detail::DTypeOf<T>::value;

/// Type of the arithmetic on T: float for the 16-bit floats, T itself otherwise.
template <class T>
struct ComputeType {
  using type = T;  ///< f32 for f32, i64 for i64
};
/// Sums in f16 would round to 11 bits: kernels add in float.
template <> struct ComputeType<f16> {
  using type = float;  ///< exact for every f16
};
/// Sums in bf16 would round to 8 bits: kernels add in float.
template <> struct ComputeType<bf16> {
  using type = float;  ///< exact for every bf16
};
/// Shorthand for ComputeType<T>::type.
template <class T>
using compute_t = typename ComputeType<T>::type;

/// Memory format of a quantized weight (out, in): `out` rows of bytes, each independent. A row of the first two formats is one block: an
/// f32 scale and `in` bytes of 128 + q, padded with 128 to a multiple of four. The others are ggml's blocks of 32 weights, each with an f16
/// scale d first; the last block of a row is padded with zeros.
enum class QuantFormat : std::uint8_t {
  int8,          ///< w = scale q, q in [-127, 127]
  dynamic_int8,  ///< the same bytes; on a CPU the rows of x are rounded to 8 bits as well, for integer products
  q8_0,          ///< w = d q: 32 bytes of q in [-127, 127]
  q4_0,          ///< w = d (q - 8): 16 bytes; byte j holds q of weight j in its low half and that of weight j + 16 in its high half
};
/// All formats, for options and tests.
inline constexpr QuantFormat quant_formats[] = {QuantFormat::int8, QuantFormat::dynamic_int8, QuantFormat::q8_0, QuantFormat::q4_0};

/// Name of a format: "int8", "dynamic-int8", "q8_0", "q4_0".
constexpr const char* name(QuantFormat format) {
  constexpr const char* names[] = {"int8", "dynamic-int8", "q8_0", "q4_0"};
  return names[static_cast<int>(format)];
}

/// Number of weights in a block of q8_0 and q4_0.
inline constexpr std::int64_t quant_block = 32;
/// True for ggml's formats, which have a scale for each 32 weights rather than for each row.
constexpr bool has_blocks(QuantFormat format) { return format >= QuantFormat::q8_0; }
/// Bytes of a block of 32 weights with its scale, for a format that has_blocks.
constexpr std::int64_t block_bytes(QuantFormat format) { return format == QuantFormat::q8_0 ? 34 : 18; }

/// Bytes of a row of `in` weights.
constexpr std::int64_t row_bytes(QuantFormat format, std::int64_t in) {
  if (!has_blocks(format)) return 4 + round_up(in, 4);
  return ceil_div(in, quant_block) * block_bytes(format);
}

}  // namespace tern
