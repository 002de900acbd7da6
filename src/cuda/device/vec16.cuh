#pragma once
#include <bit>

#include "cuda/device/convert.cuh"

// Vectors of 16 bytes, the most that one instruction moves, in two forms:
//
// - Vector<T, width>: an array of elements, of up to 16 bytes. Kernels index it.
// - Packed<T, width>: a vector as it is in registers, four of 32 bits with one float or a pair of 16-bit numbers each, or one element.
//   For kernels that hold many vectors: the compiler would unpack structures of 16-bit numbers to one register for each.
namespace tern::gpu {

/// Elements that one instruction moves, up to 16 bytes. The address must be a multiple of its size.
template <class T, int width>
struct alignas(sizeof(T) * width) Vector {
  T values[width];
};

/// Number of elements in a vector of 16 bytes.
template <class T>
inline constexpr int vec16_width = 16 / sizeof(T);

template <int width, class T>
__device__ __forceinline__ Vector<T, width> read_vector(const T* address) {
  return *reinterpret_cast<const Vector<T, width>*>(address);
}

template <class T, int width>
__device__ __forceinline__ void write_vector(T* address, const Vector<T, width>& vector) {
  *reinterpret_cast<Vector<T, width>*>(address) = vector;
}

template <class T, int width>
using Packed = std::conditional_t<width == 1, T, uint4>;

template <int width, class T>
__device__ __forceinline__ Packed<T, width> read_packed(const T* address) {
  return *reinterpret_cast<const Packed<T, width>*>(address);
}
/// Bypasses the L1 cache (ld.global.cg), to leave it to data that is read often. The kernel may write to the address later.
template <int width, class T>
__device__ __forceinline__ Packed<T, width> read_packed_cg(const T* address) {
  if constexpr (width > 1) return __ldcg(reinterpret_cast<const uint4*>(address));
  else if constexpr (is_half<T>) return std::bit_cast<T>(__ldcg(&address->bits));
  else return __ldcg(address);
}
template <int width, class T>
__device__ __forceinline__ void write_packed(T* address, const Packed<T, width>& packed) {
  *reinterpret_cast<Packed<T, width>*>(address) = packed;
}

/// Vector of one repeated value.
template <int width, class T>
__device__ __forceinline__ Packed<T, width> broadcast(T value) {
  if constexpr (width == 1) {
    return value;
  } else if constexpr (sizeof(T) == 8) {
    return std::bit_cast<uint4>(Vector<T, 2>{value, value});
  } else {
    unsigned bits;
    if constexpr (is_half<T>) bits = value.bits * 0x10001u;
    else bits = __float_as_uint(value);
    return uint4{bits, bits, bits, bits};
  }
}

/// Unpacks the elements of a vector to the type that they are computed in.
template <class T, class C, int width>
__device__ __forceinline__ void unpack(const Packed<T, width>& packed, C (&values)[width]) {
  if constexpr (width == 1) {
    values[0] = convert<C>(packed);
  } else if constexpr (sizeof(T) == 8) {
    const auto elements = std::bit_cast<Vector<T, width>>(packed);
#pragma unroll
    for (int k = 0; k < width; ++k) values[k] = elements.values[k];
  } else {
    const unsigned registers[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if constexpr (is_half<T>) unpack_pair<T>(registers[k], values[2 * k], values[2 * k + 1]);
      else values[k] = __uint_as_float(registers[k]);
    }
  }
}

template <class T, class C, int width>
__device__ __forceinline__ Packed<T, width> pack(const C (&values)[width]) {
  if constexpr (width == 1) {
    return convert<T>(values[0]);
  } else if constexpr (is_half<T>) {
    return uint4{pack_pair<T>(values[0], values[1]), pack_pair<T>(values[2], values[3]), pack_pair<T>(values[4], values[5]),
                 pack_pair<T>(values[6], values[7])};
  } else {
    Vector<T, width> elements;
#pragma unroll
    for (int k = 0; k < width; ++k) elements.values[k] = values[k];
    return std::bit_cast<uint4>(elements);
  }
}

}  // namespace tern::gpu
