#pragma once
#include <limits>

#include "cuda/device/group.cuh"
#include "tensor/random.h"

// Dropout, defined once for every kernel that uses it: random.cu, the fused embedding and norm, both attentions.
namespace tern::gpu {

/// Dropout mask: drops each element with probability p, see Note [Dropout's bits] in tensor/random.h. An element is dropped if its 16 bits,
/// as the upper half of a word, are at most `last_dropped`, for any lower half.
struct DropoutMask {
  PhiloxState philox;
  std::uint32_t last_dropped = 0;
  bool drops = false;  ///< false if p is 0

  DropoutMask() = default;
  TERN_HOST_DEVICE DropoutMask(double p, PhiloxState philox_) : philox(philox_) {
    const std::uint64_t bound = dropout_bound(p);
    drops = bound > 0;
    if (drops) last_dropped = static_cast<std::uint32_t>((bound << 16) - 1);
  }

  /// Random position of element 0. It reads memory, so a kernel calls it once.
  __device__ __forceinline__ std::uint64_t position() const { return philox.offset + (drops && philox.base ? *philox.base : 0); }
  /// Philox block that serves an even position and the next.
  __device__ __forceinline__ PhiloxBlock block(std::uint64_t even_position) const {
    return tern::philox<dropout_rounds>(philox.seed, even_position);
  }
  /// True if an element is kept whose bits are the upper half of `word`.
  __device__ __forceinline__ bool keep(std::uint32_t word) const { return (word > last_dropped) | !drops; }
  /// Mask of a block: bit k is set if its element k is kept. For kernels that know that drops is true.
  __device__ __forceinline__ unsigned kept_of_block(std::uint64_t even_position) const {
    const PhiloxBlock drawn = block(even_position);
    unsigned kept = 0;
#pragma unroll
    for (int w = 0; w < 4; ++w)
      kept |= unsigned(drawn.words[w] << 16 > last_dropped) << 2 * w | unsigned(drawn.words[w] > last_dropped) << (2 * w + 1);
    return kept;
  }

  /// Mask of 16 x 16 elements that start at element `first`, in rows `pitch` apart; `position` is position(). A thread gets whole rows: bit
  /// k of the lower half is column k of row `Lanes::group()`, the upper half is 8 rows below. Of the four lanes that share two rows, each
  /// draws one of the blocks of eight; if rows do not start at a block, a third block of each row is drawn as well.
  template <class Lanes>
  __device__ __forceinline__ unsigned kept_16x16(int pitch, std::uint64_t position, std::int64_t first) const {
    const int member = Lanes::member(), shift = member / 2 * 16;
    const std::int64_t element = first + std::int64_t(Lanes::group() + member / 2 * 8) * pitch;
    const std::uint64_t place = position + static_cast<std::uint64_t>(element >> 2), even = place & ~std::uint64_t(1);
    const auto of_all_members = [](unsigned bits) {
      bits |= shuffle_xor(bits, Lanes::low_step);
      return bits | shuffle_xor(bits, Lanes::high_step);
    };
    const unsigned kept = of_all_members(kept_of_block(even + member % 2 * 2) << (shift + member % 2 * 8));
    if ((static_cast<int>(first + 4 * static_cast<std::int64_t>(position & 1)) | pitch) % 8 == 0) return kept;
    const unsigned skipped = static_cast<unsigned>(element & 3) + static_cast<unsigned>(place & 1) * 4,
                   third_block = kept_of_block(even + 4);
    const unsigned third = of_all_members(member % 2 == 0 ? (third_block | skipped << 8) << shift : 0);
    const auto row = [&](int r) {
      const unsigned after = third >> 16 * r;
      return ((kept >> 16 * r & 0xffff) | (after & 0xff) << 16) >> (after >> 8 & 7) & 0xffff;
    };
    return row(0) | row(1) << 16;
  }
};

/// Dropout of values of type C: a dropped value is 0, a kept one x / (1 - p), bitwise the quotient that the CPU computes.
template <class C>
struct Dropout : DropoutMask {
  C keep_probability = 1, inverse = 1;

  Dropout() = default;
  TERN_HOST_DEVICE Dropout(double p, PhiloxState philox_)
      : DropoutMask(p, philox_), keep_probability(static_cast<C>(1 - p)), inverse(1 / keep_probability) {}

  /// x / (1 - p): the product with the inverse, corrected by its remainder, because division has a slow path for tiny divisors. The product
  /// is clamped to finite values: the remainder of an infinite one would be infinite or NaN, where the quotient of a large x is infinite.
  __device__ __forceinline__ C scale(C x) const {
    constexpr C largest = std::numeric_limits<C>::max();
    const C product = fmin(fmax(x * inverse, -largest), largest);
    return fma(fma(-product, keep_probability, x), inverse, product);
  }

  /// Applies dropout to elements first, first + 1, ... of a tensor, where `first` is a multiple of the width, or of 4; `position` is
  /// position().
  template <int width>
  __device__ __forceinline__ void operator()(C (&values)[width], std::int64_t first, std::uint64_t position) const {
    static_assert(width == 1 || width == 4 || width % 8 == 0);
#pragma unroll
    for (int begin = 0; begin < width; begin += 8) {
      const std::uint64_t place = position + static_cast<std::uint64_t>(first + begin) / 4;
      PhiloxBlock drawn = block(place & ~std::uint64_t(1));
      auto& words = drawn.words;
      if (place & 1) {
        words[0] = words[2];
        words[1] = words[3];
        if constexpr (width > 4) {
          const PhiloxBlock next = block(place + 1);
          words[2] = next.words[0];
          words[3] = next.words[1];
        }
      }
      if constexpr (width == 1) {
        const auto k = static_cast<unsigned>(first) % 4;
        values[0] = kept_or_zero(values[0], (k < 2 ? words[0] : words[1]) << (k % 2 == 0 ? 16 : 0));
      } else {
#pragma unroll
        for (int k = 0; k < (width < 8 ? width : 8); ++k)
          values[begin + k] = kept_or_zero(values[begin + k], k % 2 == 0 ? words[k / 2] << 16 : words[k / 2]);
      }
    }
  }

 private:
  __device__ __forceinline__ C kept_or_zero(C x, std::uint32_t word) const {
    const C kept = scale(x);  // for every element: a branch would cost more
    return keep(word) ? kept : C(0);
  }
};

}  // namespace tern::gpu
