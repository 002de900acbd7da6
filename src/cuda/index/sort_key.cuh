#pragma once
#include <cstdint>

#include "tensor/dtype.h"

// Keys of a sort: unsigned numbers of the elements' order. A float's are its bits, with the sign bit flipped and negative numbers inverted;
// NaN comes last, and the zeros are equal.
namespace tern::gpu {

template <class Bits, class T>
__device__ __forceinline__ Bits order_preserving(T value, Bits sign) {
  const Bits bits = value;
  return bits & sign ? Bits(~bits & (sign | (sign - 1))) : Bits(bits | sign);
}

/// The key of an element, in the low key_bits(dtype) bits.
__device__ inline std::uint64_t key_of(const void* data, DType dtype, std::int64_t offset) {
  switch (dtype) {
    case DType::f64: {
      const double value = static_cast<const double*>(data)[offset];
      if (value != value) return ~std::uint64_t(0);
      return order_preserving<std::uint64_t>(static_cast<std::uint64_t>(__double_as_longlong(value == 0 ? 0.0 : value)), std::uint64_t(1)
                                                                                                                             << 63);
    }
    case DType::f32: {
      const float value = static_cast<const float*>(data)[offset];
      if (value != value) return 0xffffffffu;
      return order_preserving<std::uint32_t>(__float_as_uint(value == 0 ? 0.0f : value), 0x80000000u);
    }
    case DType::f16:
    case DType::bf16: {
      const std::uint32_t bits = static_cast<const std::uint16_t*>(data)[offset];
      const std::uint32_t infinity = dtype == DType::f16 ? 0x7c00u : 0x7f80u, magnitude = bits & 0x7fffu;
      if (magnitude > infinity) return 0xffffu;
      return order_preserving<std::uint32_t>(magnitude == 0 ? 0u : bits, 0x8000u);
    }
    case DType::i64: return static_cast<std::uint64_t>(static_cast<const std::int64_t*>(data)[offset]) ^ (std::uint64_t(1) << 63);
    case DType::i32: return static_cast<std::uint32_t>(static_cast<const std::int32_t*>(data)[offset]) ^ 0x80000000u;
    default: return static_cast<const std::uint8_t*>(data)[offset];
  }
}

}  // namespace tern::gpu
