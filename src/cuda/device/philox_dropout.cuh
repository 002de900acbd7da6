#pragma once
#include <limits>

#include "tensor/random.h"

// Dropout, defined once for every kernel that has it: random.cu, the fused embedding and norm, both attentions.
namespace tern::gpu {

/// Dropout mask: which elements are dropped, each with probability p. Element i belongs to word i % 4 of the Philox block at
/// `position() + i / 4`, and is dropped where unit_float(word) < p, which is where the word is at most `last_dropped`.
struct DropoutMask {
  PhiloxState philox;
  std::uint32_t last_dropped = 0;
  bool drops = false;  ///< false where p is 0

  DropoutMask() = default;
  TERN_HOST_DEVICE DropoutMask(double p, PhiloxState philox_) : philox(philox_) {
    const double scaled = (p > 0 ? p < 1 ? p : 1 : 0) * 0x1p24;
    auto bound = static_cast<std::uint64_t>(scaled);
    if (static_cast<double>(bound) < scaled) ++bound;  // unit_float(word) < p holds where word >> 8 is below this
    drops = bound > 0;
    if (drops) last_dropped = static_cast<std::uint32_t>((bound << 8) - 1);
  }

  __device__ __forceinline__ bool keep(std::uint32_t word) const { return (word > last_dropped) | !drops; }
  /// The block of element 0. Memory is read for it, so a kernel asks once.
  __device__ __forceinline__ std::uint64_t position() const { return philox.offset + (drops && philox.base ? *philox.base : 0); }
  /// Bit k says whether element 4 (block - position()) + k is kept. For kernels that know that drops is true.
  __device__ __forceinline__ unsigned kept_of_block(std::uint64_t block) const {
    const PhiloxBlock drawn = tern::philox(philox.seed, block);
    unsigned kept = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) kept |= unsigned(drawn.words[k] > last_dropped) << k;
    return kept;
  }
};

/// Dropout of values of type C: a dropped one is 0, a kept one x / (1 - p), bitwise the quotient that the CPU computes.
template <class C>
struct Dropout : DropoutMask {
  C keep_probability = 1, inverse = 1;

  Dropout() = default;
  TERN_HOST_DEVICE Dropout(double p, PhiloxState philox_)
      : DropoutMask(p, philox_), keep_probability(static_cast<C>(1 - p)), inverse(1 / keep_probability) {}

  /// x / (1 - p): the product with the inverse, corrected by its remainder, since a division has a slow path for tiny divisors. The product
  /// is kept finite: the remainder of an infinite one would be infinite too, or NaN, where the quotient of a large x is infinite.
  __device__ __forceinline__ C scale(C x) const {
    constexpr C largest = std::numeric_limits<C>::max();
    const C product = fmin(fmax(x * inverse, -largest), largest);
    return fma(fma(-product, keep_probability, x), inverse, product);
  }
  __device__ __forceinline__ C operator()(C x, std::uint32_t word) const {
    const C kept = scale(x);  // of every element: a branch would cost more
    return keep(word) ? kept : C(0);
  }

  /// Elements first, first + 1, ... of a tensor, where `first` is a multiple of 4 or there is one element; `position` is position().
  template <int width>
  __device__ __forceinline__ void operator()(C (&values)[width], std::int64_t first, std::uint64_t position) const {
#pragma unroll
    for (int block = 0; block < width; block += 4) {
      const PhiloxBlock drawn = tern::philox(philox.seed, position + static_cast<std::uint64_t>(first + block) / 4);
      if constexpr (width == 1) {
        const auto word = static_cast<unsigned>(first) % 4;  // chosen by comparisons: an index would put the words into memory
        const std::uint32_t low = word == 0 ? drawn.words[0] : drawn.words[1], high = word == 2 ? drawn.words[2] : drawn.words[3];
        values[0] = (*this)(values[0], word < 2 ? low : high);
      } else {
#pragma unroll
        for (int k = 0; k < 4; ++k) values[block + k] = (*this)(values[block + k], drawn.words[k]);
      }
    }
  }
};

}  // namespace tern::gpu
