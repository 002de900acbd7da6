#pragma once
#include <bit>

#include "cuda/device/convert.cuh"
#include "tensor/dtype.h"

// From a dtype to what a kernel is compiled for, on the host. (tensor/dispatch.h has its C++ type.)
namespace tern::gpu {

/// Calls f with the type of a dtype of 16 bits.
template <class F>
decltype(auto) dispatch_halves(DType dtype, F&& f) {
  return dtype == DType::f16 ? f.template operator()<f16>() : f.template operator()<bf16>();
}

/// The bits of a number in the dtype, in the low bytes.
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

/// True where a vector of `bytes` may be read at the address.
inline bool is_aligned(const void* data, std::size_t bytes) { return reinterpret_cast<std::uintptr_t>(data) % bytes == 0; }

}  // namespace tern::gpu
