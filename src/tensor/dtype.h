#pragma once
#include <cstddef>
#include <cstdint>

#include "tensor/half.h"

namespace tern {

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

}  // namespace tern
