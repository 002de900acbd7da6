#pragma once
#include <cmath>
#include <limits>

#include "tensor/kernel.h"
#include "tensor/random.h"

namespace tern::kernels {

/// The largest number of a floating dtype that is less than x, which is finite.
template <class S>
S next_below(S x) {
  if constexpr (sizeof(S) > 2) return std::nextafter(x, -std::numeric_limits<S>::infinity());
  else {
    const bool is_zero = (x.bits & 0x7fffu) == 0, is_negative = (x.bits & 0x8000u) != 0;
    x.bits = is_zero ? 0x8001u : static_cast<std::uint16_t>(is_negative ? x.bits + 1 : x.bits - 1);
    return x;
  }
}

/// Half-open range [low, high) of elements of S, which are computed in C. Both the sum in C and its rounding to S may arrive at `high`:
/// such a draw is the largest number below it. If S has no number between the rounded bounds, every draw is `low`.
template <class S, class C>
struct UniformRange {
  C low, width, last;

  UniformRange(double low_, double high)
      : low(static_cast<C>(low_)),
        width(static_cast<C>(high - low_)),
        last(std::fmax(static_cast<C>(static_cast<S>(low)), static_cast<C>(next_below(static_cast<S>(static_cast<C>(high)))))) {}

  TERN_HOST_DEVICE C operator()(float unit) const {
    const C x = low + width * static_cast<C>(unit);
    return x < last ? x : last;
  }
};

/// Whole numbers low + k with k uniform in [0, span), without bias: a draw r of 32 or 64 bits gives k = r span / 2^bits, and is rejected if
/// it is one of those by which some k would have more draws than others (Lemire, "Fast random integer generation in an interval", 2019).
/// Element i has word i % 4 of the blocks at its position of the Philox streams 0, 1, 2, ...: a draw takes one of them if the span is at
/// most 2^32, else two, the upper half first.
struct WholeNumbers {
  std::int64_t low;
  std::uint64_t span, uneven;  ///< `uneven` = 2^bits mod span: that many draws are rejected
  bool is_wide;                ///< draws have 64 bits

  WholeNumbers(std::int64_t low_, std::uint64_t span_) : low(low_), span(span_), is_wide(span_ > std::uint64_t(1) << 32) {
    uneven = is_wide ? (0 - span) % span : (std::uint64_t(1) << 32) % span;
  }

  /// The number of an element whose first words are `upper` and, if is_wide, `lower`; `word` is that of its position.
  TERN_HOST_DEVICE std::int64_t operator()(std::uint32_t upper, std::uint32_t lower, std::uint64_t seed, std::uint64_t position,
                                           int word) const {
    std::uint64_t stream = is_wide ? 2 : 1;
    while (true) {
      std::uint64_t k = 0, rest = 0;
      if (is_wide) {
        const std::uint64_t draw = std::uint64_t(upper) << 32 | lower;
        rest = draw * span;
#ifdef __CUDA_ARCH__
        k = __umul64hi(draw, span);
#else
        k = static_cast<std::uint64_t>(static_cast<unsigned __int128>(draw) * span >> 64);
#endif
      } else {
        k = upper * span >> 32;
        rest = upper * span & 0xffffffffu;
      }
      if (rest >= uneven) return static_cast<std::int64_t>(static_cast<std::uint64_t>(low) + k);
      upper = philox(seed, position, stream++).words[word];
      if (is_wide) lower = philox(seed, position, stream++).words[word];
    }
  }
};

/// Random numbers are functions of (state, row-major element index) alone: see PhiloxState. Both devices give the same words; y is
/// contiguous and floating unless said otherwise.

/// y = low + (high - low) * unit_float(word), less than `high`: see UniformRange.
struct Uniform {
  Out y;
  double low, high;
  PhiloxState state;
  void run(Cpu) const;
  void run(Cuda) const;
};

/// Box-Muller on words (0, 1) and (2, 3) of a block: r = sqrt(-2 ln(u1)), u1 = (word >> 8 + 0.5) 2^-24, angle 2 pi u2;
/// the first of a pair takes the cosine, the second the sine. y = mean + deviation * z.
struct Normal {
  Out y;
  double mean, deviation;
  PhiloxState state;
  void run(Cpu) const;
  void run(Cuda) const;
};

/// y = unit_float(word) < probability, as 1 or 0, in any dtype.
struct Bernoulli {
  Out y;
  double probability;
  PhiloxState state;
  void run(Cpu) const;
  void run(Cuda) const;
};

/// y of i64, i32 or u8, contiguous: see WholeNumbers. All of [low, low + span) is in the dtype's range, and span >= 1.
struct Randint {
  Out y;
  std::int64_t low;
  std::uint64_t span;
  PhiloxState state;
  void run(Cpu) const;
  void run(Cuda) const;
};

/// y (n), i64 = the order that sorts n random 64-bit keys (block i: word 0 low, word 1 high), ties by position.
struct Permutation {
  Out y;
  PhiloxState state;
  void run(Cpu) const;
  void run(Cuda) const;
};

/// y = unit_float(word) < p ? 0 : x / (1 - p); x contiguous of y's shape and dtype; y may be x.
struct Dropout {
  In x;
  Out y;
  double p;
  PhiloxState state;
  void run(Cpu) const;
  void run(Cuda) const;
};

}  // namespace tern::kernels
