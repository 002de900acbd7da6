#pragma once
#include <cuda_pipeline.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "cuda/device/vec16.cuh"
#include "cuda/runtime/dispatch.h"
#include "tensor/random.h"
#include "tensor/view.h"

// How layer_norm and its gradient read and write rows and parameters: vectors, what of them lies in a row, and dropout.
namespace tern::gpu::norm {

/// How memory lets rows be read.
enum class Alignment {
  whole,   ///< all rows begin and end at multiples of 16 bytes
  skewed,  ///< tensors begin at multiples of 16 bytes, and so do vectors: a row's first one may begin before the row
  single,  ///< element by element
};

template <class T>
Alignment alignment_of(std::int64_t columns, std::initializer_list<const View*> views) {
  if (!std::ranges::all_of(views, [](const View* view) { return is_aligned(view->data, 16); })) return Alignment::single;
  return columns % static_cast<std::int64_t>(16 / sizeof(T)) == 0 ? Alignment::whole : Alignment::skewed;
}

/// Elements of a vector.
template <class T, Alignment alignment>
inline constexpr int width_of = alignment == Alignment::single ? 1 : 16 / sizeof(T);

/// How many elements before a row its first vector begins; `start` is the row's place in the tensor.
template <Alignment alignment, int width>
__device__ __forceinline__ int skew_of(std::int64_t start) {
  return alignment == Alignment::skewed ? static_cast<int>(start) & (width - 1) : 0;
}

/// Whether all of a vector that begins before the row's end lies in the row.
template <Alignment alignment, int width>
__device__ __forceinline__ bool is_inside(int column, int columns) {
  return alignment != Alignment::skewed || (column >= 0 && column + width <= columns);
}

/// Zeros for what a vector holds of other rows.
template <Alignment alignment, int width>
__device__ __forceinline__ void clear_outside(float (&values)[width], int column, int columns) {
  if (is_inside<alignment, width>(column, columns)) return;
#pragma unroll
  for (int k = 0; k < width; ++k)
    if (static_cast<unsigned>(column + k) >= static_cast<unsigned>(columns)) values[k] = 0;
}

/// A vector as it lies in registers: elements of 16 bits in pairs, since a register holds two.
template <class T, int width>
using Words = std::conditional_t<is_half<T> && width % 2 == 0, Vector<std::uint32_t, (width + 1) / 2>, Vector<T, width>>;

/// Starts a copy into shared memory.
template <class V>
__device__ __forceinline__ void copy_ahead(V* to, const void* from) {
  if constexpr (sizeof(V) >= 4) __pipeline_memcpy_async(to, from, sizeof(V));
  else *to = *static_cast<const V*>(from);
}

/// Elements that are read once: they go past the first cache, which keeps the parameters. The kernel may write there later.
template <int width, class T>
__device__ __forceinline__ Words<T, width> read_once(const T* address) {
  using W = Words<T, width>;
  if constexpr (sizeof(W) == 16) return std::bit_cast<W>(__ldcg(reinterpret_cast<const uint4*>(address)));
  else if constexpr (sizeof(W) == 4) return std::bit_cast<W>(__ldcg(reinterpret_cast<const unsigned*>(address)));
  else return std::bit_cast<W>(__ldcg(reinterpret_cast<const unsigned short*>(address)));
}

template <class T, int width>
__device__ __forceinline__ void unpack(const Words<T, width>& words, float (&values)[width]) {
#pragma unroll
  for (int k = 0; k < width; ++k) {
    if constexpr (std::is_same_v<Words<T, width>, Vector<T, width>>) {
      values[k] = convert<float>(words.values[k]);
    } else {
      const std::uint32_t pair = words.values[k / 2];
      if constexpr (std::is_same_v<T, bf16>) values[k] = __uint_as_float(k % 2 ? pair & 0xffff0000u : pair << 16);
      else values[k] = __half2float(__ushort_as_half(static_cast<unsigned short>(pair >> k % 2 * 16)));
    }
  }
}

template <class T, int width>
__device__ __forceinline__ Words<T, width> pack(const float (&values)[width]) {
  Words<T, width> words;
  if constexpr (std::is_same_v<Words<T, width>, Vector<T, width>>) {
#pragma unroll
    for (int k = 0; k < width; ++k) words.values[k] = convert<T>(values[k]);
  } else {
    using Pair = std::conditional_t<std::is_same_v<T, bf16>, __nv_bfloat162, __half2>;
#pragma unroll
    for (int k = 0; k < width; k += 2) {
      Pair pair;
      if constexpr (std::is_same_v<T, bf16>) pair = __floats2bfloat162_rn(values[k], values[k + 1]);
      else pair = __floats2half2_rn(values[k], values[k + 1]);
      words.values[k / 2] = reinterpret_cast<const std::uint32_t&>(pair);
    }
  }
  return words;
}

/// Writes what of a vector lies in the row, which has it at `column`.
template <Alignment alignment, int width, class T>
__device__ __forceinline__ void write_vector(T* to, int column, int columns, const float (&values)[width]) {
  if constexpr (alignment != Alignment::skewed) {
    *reinterpret_cast<Words<T, width>*>(to) = pack<T>(values);
  } else if (is_inside<alignment, width>(column, columns)) {
    // The compiler would make single stores of both branches.
    const auto words = std::bit_cast<uint4>(pack<T>(values));
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w) : "memory");
  } else {
#pragma unroll
    for (int k = 0; k < width; ++k)
      if (static_cast<unsigned>(column + k) < static_cast<unsigned>(columns)) to[k] = convert<T>(values[k]);
  }
}

/// The vector that begins `skew` elements before `high`, which follows `low` in memory.
template <class T, int width>
__device__ __forceinline__ Words<T, width> shifted(const Words<T, width>& low, const Words<T, width>& high, int skew) {
  static_assert(sizeof low == 16);
  struct Registers {
    std::uint32_t words[4];
  };
  const auto before = std::bit_cast<Registers>(low), after = std::bit_cast<Registers>(high);
  const int bytes = skew * static_cast<int>(sizeof(T));
  std::uint32_t all[8], by_two[6], by_one[5];
#pragma unroll
  for (int i = 0; i < 4; ++i) all[i] = before.words[i], all[4 + i] = after.words[i];
#pragma unroll
  for (int i = 0; i < 6; ++i) by_two[i] = bytes & 8 ? all[i] : all[i + 2];
#pragma unroll
  for (int i = 0; i < 5; ++i) by_one[i] = bytes & 4 ? by_two[i] : by_two[i + 1];
  Registers result;
#pragma unroll
  for (int i = 0; i < 4; ++i) result.words[i] = sizeof(T) < 4 ? __funnelshift_l(by_one[i], by_one[i + 1], bytes % 4 * 8) : by_one[i + 1];
  return std::bit_cast<Words<T, width>>(result);
}

/// A parameter's elements from a column on, as a row's vector has them; all are `otherwise` where there is no parameter.
template <Alignment alignment, int width, class T>
__device__ __forceinline__ void read_parameter(const T* parameter, float otherwise, int column, int columns, float (&values)[width]) {
  using W = Words<T, width>;
  float none[width];
#pragma unroll
  for (int k = 0; k < width; ++k) none[k] = otherwise;
  W words = pack<T>(none);
  if constexpr (alignment == Alignment::skewed) {
    // The vectors in which it lies. What lies outside the row is not used: for that, any vector does.
    const int high = (column + width - 1) & -width, last = (columns - 1) & -width;
    const auto at = [&](int c) { return *reinterpret_cast<const W*>(parameter + min(max(c, 0), last)); };
    if (parameter) words = shifted<T, width>(at(high - width), at(high), high - column);
  } else {
    if (parameter) words = *reinterpret_cast<const W*>(parameter + column);
  }
  unpack<T>(words, values);
}

/// Dropout of elements that lie anywhere in a larger tensor.
template <class C>
struct Dropout {
  PhiloxState draws;
  std::uint32_t bound;  ///< unit_float(word) < p holds where word >> 8 is below this, exactly
  C keep, scale;        ///< 1 - p and its inverse

  Dropout(double p, PhiloxState state)
      : draws(state),
        bound(static_cast<std::uint32_t>(std::ceil(std::min(std::max(0.0, p), 1.0) * 0x1p24))),
        keep(static_cast<C>(1 - p)),
        scale(1 / keep) {}

  __device__ std::uint64_t position() const { return draws.offset + (bound > 0 && draws.base ? *draws.base : 0); }

  /// Elements first, first + 1, ... of the tensor, where `first` is a multiple of 4 or there is one element.
  template <int width>
  __device__ void operator()(C (&values)[width], std::int64_t first, std::uint64_t position) const {
#pragma unroll
    for (int block = 0; block < width; block += 4) {
      const PhiloxBlock drawn = philox(draws.seed, position + static_cast<std::uint64_t>(first + block) / 4);
      if constexpr (width == 1) {
        const auto word = static_cast<unsigned>(first) % 4;  // chosen by comparisons: an index would put the words into memory
        const std::uint32_t low = word == 0 ? drawn.words[0] : drawn.words[1], high = word == 2 ? drawn.words[2] : drawn.words[3];
        values[0] = drop(values[0], word < 2 ? low : high);
      } else {
#pragma unroll
        for (int k = 0; k < 4; ++k) values[block + k] = drop(values[block + k], drawn.words[k]);
      }
    }
  }

 private:
  /// value / keep, as the CPU divides: the product, and what it leaves of the value. (Division has a path for tiny divisors.)
  __device__ C drop(C value, std::uint32_t word) const {
    const C product = value * scale;
    return word >> 8 < bound ? C(0) : fma(fma(-product, keep, value), scale, product);
  }
};

}  // namespace tern::gpu::norm
