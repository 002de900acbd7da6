#pragma once
#include <bit>

#include "cuda/device/convert.cuh"
#include "tensor/dtype.h"
#include "tensor/view.h"

// Host-side dispatch: from a dtype to a kernel's element type, and alignment checks. (tensor/dispatch.h has all C++ types.)
namespace tern::gpu {

/// Calls f with the type of a 16-bit dtype.
template <class F>
decltype(auto) dispatch_halves(DType dtype, F&& f) {
  return dtype == DType::f16 ? f.template operator()<f16>() : f.template operator()<bf16>();
}

/// Calls f with the element type of f32, f16 or bf16, all computed in float32. Returns false for another dtype, for which f is not called,
/// else f's result, or true if it returns nothing.
template <class F>
bool dispatch_short_floats(DType dtype, F&& f) {
  const auto call = [&]<class T>() {
    if constexpr (std::is_void_v<decltype(f.template operator()<T>())>) f.template operator()<T>();
    else return f.template operator()<T>();
    return true;
  };
  switch (dtype) {
    case DType::f32: return call.template operator()<float>();
    case DType::f16: return call.template operator()<f16>();
    case DType::bf16: return call.template operator()<bf16>();
    default: return false;
  }
}

/// As dispatch_short_floats, and f64 through the tag of its kernels, which need not be the fastest.
template <class F>
bool dispatch_elements(DType dtype, F&& f) {
  if (dtype != DType::f64) return dispatch_short_floats(dtype, f);
  f.template operator()<Any<double>>();
  return true;
}

/// Bits of a number in the dtype, in the low bytes.
inline std::uint64_t bits_of(double number, DType dtype) {
  switch (dtype) {
    case DType::f32: return std::bit_cast<std::uint32_t>(static_cast<float>(number));
    case DType::f64: return std::bit_cast<std::uint64_t>(number);
    case DType::f16: return f16(static_cast<float>(number)).bits;
    case DType::bf16: return bf16(static_cast<float>(number)).bits;
    case DType::i32: return static_cast<std::uint32_t>(number_as<std::int32_t>(number));
    case DType::i64: return static_cast<std::uint64_t>(number_as<std::int64_t>(number));
    case DType::u8: return number_as<std::uint8_t>(number);
    default: return number != 0;
  }
}

/// True if a vector of `bytes` may be read at the address.
inline bool is_aligned(const void* data, std::size_t bytes) { return reinterpret_cast<std::uintptr_t>(data) % bytes == 0; }

/// True if all rows, along the last dimension, begin at multiples of `bytes` bytes.
inline bool rows_are_aligned(const View& x, std::int64_t bytes) {
  const auto size = static_cast<std::int64_t>(size_of(x.dtype));
  if (!is_aligned(x.data, static_cast<std::size_t>(bytes))) return false;
  for (int d = 0; d + 1 < x.dims(); ++d)
    if (x.shape[d] > 1 && x.strides[d] * size % bytes != 0) return false;
  return true;
}

/// True if all rows, whose elements are contiguous, are whole vectors of 16 bytes.
inline bool has_vec16_rows(const View& x) {
  return rows_are_aligned(x, 16) && x.shape.back() * static_cast<std::int64_t>(size_of(x.dtype)) % 16 == 0;
}

}  // namespace tern::gpu
