#pragma once
#include <cstdint>

#include "tensor/sizes.h"

namespace tern {

/// Philox seed and offset of a random draw. Random numbers are a pure function of seed and position, the same on every device: element i is
/// at position `offset + *base + i / 4`, and uses word i % 4 of the block there; for dropout see Note [Dropout's bits]. `base` is null, or
/// points to a counter in device memory that changes between replays of a captured graph; see Note [Random position].
struct PhiloxState {
  std::uint64_t seed = 0;               ///< the key of Philox
  std::uint64_t offset = 0;             ///< position of the first block
  const std::uint64_t* base = nullptr;  ///< added to the offset; null for 0
};

/// Four random words: the block at one position of the stream.
struct PhiloxBlock {
  std::uint32_t words[4];  ///< each uniform in [0, 2^32)
};

/// Full 64-bit product.
TERN_HOST_DEVICE constexpr std::uint64_t multiply_wide(std::uint32_t a, std::uint32_t b) {
#ifdef __CUDA_ARCH__
  std::uint64_t product = 0;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));  // nvcc compiles the line below to this and an addition of zero
  return product;
#else
  return std::uint64_t(a) * b;
#endif
}

/// Philox 4x32: rounds over a 128-bit counter with a 64-bit key. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011, who
/// recommend ten rounds; seven are the fewest that pass their tests.
template <int rounds = 10>
TERN_HOST_DEVICE constexpr PhiloxBlock philox(std::uint64_t seed, std::uint64_t position, std::uint64_t stream = 0) {
  std::uint32_t c0 = std::uint32_t(position), c1 = std::uint32_t(position >> 32);
  std::uint32_t c2 = std::uint32_t(stream), c3 = std::uint32_t(stream >> 32);
  std::uint32_t k0 = std::uint32_t(seed), k1 = std::uint32_t(seed >> 32);
  for (int round = 0; round < rounds; ++round) {
    const std::uint64_t p0 = multiply_wide(0xD2511F53u, c0), p1 = multiply_wide(0xCD9E8D57u, c2);
    c0 = std::uint32_t(p1 >> 32) ^ c1 ^ k0;
    c1 = std::uint32_t(p1);
    c2 = std::uint32_t(p0 >> 32) ^ c3 ^ k1;
    c3 = std::uint32_t(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

/// Converts a word to a float in [0, 1), from its upper 24 bits.
TERN_HOST_DEVICE constexpr float unit_float(std::uint32_t word) { return float(word >> 8) * 0x1p-24f; }

/// Bound b such that a number of that many bits, times 2^-bits, is less than `probability` if and only if it is below b. At most 31 bits.
TERN_HOST_DEVICE constexpr std::uint32_t draws_below(double probability, int bits) {
  const double scaled = (probability > 0 ? probability < 1 ? probability : 1 : 0) * double(1u << bits);
  const auto whole = static_cast<std::uint32_t>(scaled);
  return whole + (double(whole) < scaled);
}

// Note [Dropout's bits]
// Dropout uses 16 bits for each element, and Philox blocks of seven rounds: in attention, random numbers take longer than everything else,
// and this is a third of the work of one ten-round word per element. The block at an even position serves that position and the next, eight
// elements, two for each word, the first in its lower half and the second in its upper half:
//
//   position   2 m                             2 m + 1
//   element    0    1    2    3    4    5    6    7
//   block      word 0    word 1    word 2    word 3       of position 2 m
//
// An element is dropped if its bits are below p 2^16, so the probability is p rounded up to a multiple of 2^-16. A Generator returns even
// positions, but a part of a batch may begin at an odd one.

/// Philox rounds of the blocks that dropout uses.
inline constexpr int dropout_rounds = 7;
/// Bound of the 16-bit numbers that dropout drops: those below it.
TERN_HOST_DEVICE constexpr std::uint32_t dropout_bound(double p) { return draws_below(p, 16); }

/// Rows [first, first + count) of a batch of `total` rows; the others are in other processes.
struct BatchRows {
  std::int64_t first = 0;                             ///< index of the first row that is here
  std::int64_t count = 0;                             ///< number of rows that are here
  std::int64_t total = 0;                             ///< number of rows of the whole batch; 0: all of them are here
  bool operator==(const BatchRows&) const = default;  ///< the same rows of a batch of the same size
};

/// Random number generator: reserves positions of one random stream. Note [Random position]: on the host the position is `next`; while a
/// CUDA graph is captured, `base` points to a counter in device memory that each launch of the graph first writes, so that a replay draws
/// new numbers although the captured offsets are constants. Positions are even unless set otherwise.
///
/// If a batch is divided among processes, each part draws the numbers that its rows would draw within the whole batch: a tensor of the
/// part's rows gets the positions that these have in the tensor of all rows, and the position advances past that of all rows.
class Generator {
 public:
  /// Starts at position 0.
  explicit Generator(std::uint64_t seed = 0) : seed_(seed) {}
  /// Restarts with this seed, at position 0, with all rows of a batch.
  void set_seed(std::uint64_t seed) { *this = Generator(seed); }
  std::uint64_t seed() const { return seed_; }      ///< the seed that was set; 0 in a thread that set none
  std::uint64_t position() const { return next_; }  ///< in blocks of four words; with the seed, all that a checkpoint needs
  /// Continues from a position that position() returned.
  void set_position(std::uint64_t position) { next_ = position; }
  /// Sets the counter that is added to positions, see Note [Random position]; null: none.
  void set_base(const std::uint64_t* base) { base_ = base; }

  const BatchRows& rows() const { return rows_; }  ///< the rows of the batch that tensors hold
  /// Sets the rows of the batch that tensors hold; see BatchRowsScope.
  void set_rows(const BatchRows& rows) { rows_ = rows; }

  /// Reserves the numbers for `count` elements and advances the position past them. Throws Error if the rows of a batch are divided and the
  /// elements are not those of whole rows, or do not begin at a block of four.
  PhiloxState reserve(std::int64_t count) {
    if (rows_.total > 0) return reserve_rows(count);
    const PhiloxState state{seed_, next_, base_};
    next_ += positions_of(count);
    return state;
  }

 private:
  static std::uint64_t positions_of(std::int64_t count) { return static_cast<std::uint64_t>((count + 7) / 8) * 2; }
  PhiloxState reserve_rows(std::int64_t count);

  std::uint64_t seed_ = 0, next_ = 0;
  const std::uint64_t* base_ = nullptr;
  BatchRows rows_;
};

}  // namespace tern
