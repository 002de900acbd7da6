#pragma once
#include <cstdint>

#include "tensor/half.h"

namespace tern {

/// Philox seed and offset of a draw. A draw is a pure function of the seed and the position, the same on every device: element i belongs to
/// position `offset + *base + i / 4`, and takes word i % 4 of the block there; what dropout takes, Note [Dropout's bits] says. `base` is
/// null, or points to a counter in device memory that moves between replays of a captured graph; see Note [Random position].
struct PhiloxState {
  std::uint64_t seed = 0;               ///< the key of Philox
  std::uint64_t offset = 0;             ///< position of the first block
  const std::uint64_t* base = nullptr;  ///< added to the offset; null for 0
};

/// Four draws: the block at one position of the stream.
struct PhiloxBlock {
  std::uint32_t words[4];  ///< each uniform in [0, 2^32)
};

/// All 64 bits of a product.
TERN_HOST_DEVICE constexpr std::uint64_t multiply_wide(std::uint32_t a, std::uint32_t b) {
#ifdef __CUDA_ARCH__
  std::uint64_t product = 0;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));  // of the line below nvcc makes that and an addition of zero
  return product;
#else
  return std::uint64_t(a) * b;
#endif
}

/// Philox 4x32: rounds over a 128-bit counter with a 64-bit key. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011, who
/// advise ten; seven are the fewest that pass their tests.
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

/// A word as a float in [0, 1), from its upper 24 bits.
TERN_HOST_DEVICE constexpr float unit_float(std::uint32_t word) { return float(word >> 8) * 0x1p-24f; }

/// The numbers of so many bits whose value x 2^-bits is less than `probability`: those below this. At most 31 bits.
TERN_HOST_DEVICE constexpr std::uint32_t draws_below(double probability, int bits) {
  const double scaled = (probability > 0 ? probability < 1 ? probability : 1 : 0) * double(1u << bits);
  const auto whole = static_cast<std::uint32_t>(scaled);
  return whole + (double(whole) < scaled);
}

// Note [Dropout's bits]
// Dropout takes 16 bits an element, and blocks of seven rounds: in attention drawing takes longer than all else, and this is a third of the
// work of a word of ten rounds. The block at an even position serves that position and the next, eight elements, the first of them in the
// lower half of a word and the second in the upper one:
//
//   position   2 m                             2 m + 1
//   element    0    1    2    3    4    5    6    7
//   block      word 0    word 1    word 2    word 3       of position 2 m
//
// An element is dropped where its bits are below p 2^16: with a probability that is p rounded up to a multiple of 2^-16. A Generator gives
// even positions, but a part of a batch may begin at an odd one.

/// Rounds of the Philox blocks that dropout draws.
inline constexpr int dropout_rounds = 7;
/// The numbers of 16 bits that dropout drops: those below this.
TERN_HOST_DEVICE constexpr std::uint32_t dropout_bound(double p) { return draws_below(p, 16); }

/// Rows [first, first + count) of a batch of `total` rows, whose others are elsewhere.
struct BatchRows {
  std::int64_t first = 0;                             ///< number of the first row that is here
  std::int64_t count = 0;                             ///< rows that are here
  std::int64_t total = 0;                             ///< rows of the whole batch; 0: all of them are here
  bool operator==(const BatchRows&) const = default;  ///< the same rows of a batch as large
};

/// Hands out positions of one random stream. Note [Random position]: on the host the position is `next`; while a CUDA
/// graph is captured, `base` points to a counter in device memory that each launch of the graph writes first, so that a
/// replay draws anew although the captured offsets are constants. Positions are even where nothing else was set.
///
/// The rows of a batch may be divided: each part then draws what its rows would draw within the whole batch: a tensor of the part's rows
/// gets the positions that these have in the tensor of all rows, and the position moves past that of all rows.
class Generator {
 public:
  /// Begins at position 0.
  explicit Generator(std::uint64_t seed = 0) : seed_(seed) {}
  /// Begins anew, at position 0, with all rows of a batch.
  void set_seed(std::uint64_t seed) { *this = Generator(seed); }
  std::uint64_t seed() const { return seed_; }      ///< as it was set; 0 for a thread that set none
  std::uint64_t position() const { return next_; }  ///< in blocks of four draws; with the seed, all that a checkpoint needs
  /// Goes on from a position that position() gave.
  void set_position(std::uint64_t position) { next_ = position; }
  /// Draws are of `*base` + position from now on, as Note [Random position] says; null: of the position alone.
  void set_base(const std::uint64_t* base) { base_ = base; }

  const BatchRows& rows() const { return rows_; }  ///< of the batch that tensors are part of
  /// From now on tensors are of these rows of a batch; see BatchRowsScope.
  void set_rows(const BatchRows& rows) { rows_ = rows; }

  /// The state for drawing `count` elements; moves the position past them. Throws Error where the rows of a batch are divided and the
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
