#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <limits>
#include <type_traits>

#include "tensor/dtype.h"

// Conversion, loads and stores of elements in kernels. The 16-bit types of tensor/dtype.h convert in portable code; here by the GPU's
// instructions.
namespace tern::gpu {

/// Converts a number to an integer type: truncated and clamped; NaN gives 0.
template <class T>
__host__ __device__ constexpr T number_as(double number) {
  constexpr double low = static_cast<double>(std::numeric_limits<T>::min()), high = static_cast<double>(std::numeric_limits<T>::max());
  if (!(number > low)) return number != number ? T(0) : std::numeric_limits<T>::min();
  return number >= high ? std::numeric_limits<T>::max() : static_cast<T>(number);  // high may be one past the largest T
}

template <class T>
inline constexpr bool is_half = std::is_same_v<T, f16> || std::is_same_v<T, bf16>;
template <class T>
inline constexpr bool is_float = std::is_floating_point_v<T> || is_half<T>;

__device__ __forceinline__ float widen(f16 value) { return __half2float(__ushort_as_half(value.bits)); }
__device__ __forceinline__ float widen(bf16 value) { return __uint_as_float(std::uint32_t(value.bits) << 16); }

/// Converts two numbers to a register of two 16-bit numbers, the first in the lower half, by one instruction.
template <class T>
__device__ __forceinline__ unsigned pack_pair(float low, float high) {
  unsigned result;
  if constexpr (std::is_same_v<T, bf16>) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
}
/// Converts a value to To: != 0 for bool, truncated and clamped for floats to integers (NaN: 0), otherwise as C++ does.
template <class To, class From>
__device__ __forceinline__ To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (is_half<From>) {
    return convert<To>(widen(value));
  } else if constexpr (std::is_same_v<To, f16>) {
    f16 result;
    result.bits = static_cast<std::uint16_t>(pack_pair<f16>(static_cast<float>(value), 0.f));
    return result;
  } else if constexpr (std::is_same_v<To, bf16>) {
    // As the upper half of a pair: the instruction for one has a quarter of the rate, and this one leaves the bits of a float.
    bf16 result;
    result.bits = static_cast<std::uint16_t>(pack_pair<bf16>(0.f, static_cast<float>(value)) >> 16);
    return result;
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != From(0);
  } else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<From>) {
    return number_as<To>(static_cast<double>(value));
  } else {
    return static_cast<To>(value);
  }
}

/// Converts such a register back to two numbers.
template <class T>
__device__ __forceinline__ void unpack_pair(unsigned both, float& low, float& high) {
  T first, second;
  first.bits = static_cast<std::uint16_t>(both);
  second.bits = static_cast<std::uint16_t>(both >> 16);
  low = widen(first);
  high = widen(second);
}

/// Tag of an element type that is only known at run time: elements are converted to C as they are read, and from C as they are written. One
/// kernel then serves all dtypes that are computed in C; used where speed is not critical.
template <class C>
struct Any {};
/// As Any<double>, for all floating dtypes.
struct AnyFloat {};
/// As Any<double>, for integers combined with a number that is not whole. Read only.
struct IntegerAsDouble {};
/// Tag of an output of any dtype, bool included. Written only.
struct AnyNumber {};
/// True for the tags, false for element types.
template <class T>
inline constexpr bool is_tag = std::is_empty_v<T>;

namespace detail {
template <class T> struct Computed {
  using type = compute_t<T>;
};
template <class C> struct Computed<Any<C>> {
  using type = C;
};
template <> struct Computed<AnyFloat> {
  using type = double;
};
template <> struct Computed<IntegerAsDouble> {
  using type = double;
};
}  // namespace detail

/// Type in which elements of T are computed.
template <class T>
using computed_t = typename detail::Computed<T>::type;
/// Tag under which T shares the kernel with run-time types.
template <class T>
using erased_t = std::conditional_t<std::is_same_v<T, float> || is_half<T>, Any<float>, T>;

/// Calls f.operator()<S>() with the type S that elements have in memory: T itself, or if T is a tag, the type of the dtype.
template <class T, class F>
__device__ __forceinline__ decltype(auto) with_type(DType dtype, F&& f) {
  if constexpr (std::is_same_v<T, Any<float>>) {
    switch (dtype) {
      case DType::f16: return f.template operator()<f16>();
      case DType::bf16: return f.template operator()<bf16>();
      default: return f.template operator()<float>();
    }
  } else if constexpr (std::is_same_v<T, Any<double>>) {
    return f.template operator()<double>();
  } else if constexpr (std::is_same_v<T, AnyFloat>) {
    if (dtype == DType::f64) return f.template operator()<double>();
    return with_type<Any<float>>(dtype, f);
  } else if constexpr (std::is_same_v<T, Any<std::int64_t>> || std::is_same_v<T, IntegerAsDouble>) {
    switch (dtype) {
      case DType::i64: return f.template operator()<std::int64_t>();
      case DType::i32: return f.template operator()<std::int32_t>();
      default: return f.template operator()<std::uint8_t>();  // u8 and bool
    }
  } else {
    return f.template operator()<T>();
  }
}

/// Reads element `offset` of memory that holds T.
template <class T>
__device__ __forceinline__ computed_t<T> read(const void* data, DType dtype, std::int64_t offset) {
  return with_type<T>(dtype, [&]<class S>() { return convert<computed_t<T>>(static_cast<const S*>(data)[offset]); });
}

template <class T, class V>
__device__ __forceinline__ void write(void* data, DType dtype, std::int64_t offset, V value) {
  const auto put = [&]<class To>() { static_cast<To*>(data)[offset] = convert<To>(value); };
  if constexpr (std::is_same_v<T, AnyNumber>) {
    if (dtype <= DType::bf16) with_type<AnyFloat>(dtype, put);
    else write<Any<std::int64_t>>(data, dtype, offset, value);
  } else if constexpr (std::is_same_v<T, Any<std::int64_t>>) {
    if (dtype == DType::boolean) put.template operator()<bool>();
    else with_type<T>(dtype, put);
  } else {
    with_type<T>(dtype, put);
  }
}

}  // namespace tern::gpu
