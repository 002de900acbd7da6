#pragma once
#include <cmath>

#include "ops/cpu/loops.h"
#include "tensor/random.h"
#include "tensor/sizes.h"

namespace tern::loops {

/// Philox words of a run of at most `chunk` elements of a tensor, starting anywhere: element i has word i % 4 of block i / 4.
struct PhiloxWords {
  static constexpr std::int64_t max_blocks = chunk / 4 + 1, pitch = round_up(max_blocks, 16);  // rows of whole cache lines
  alignas(64) std::uint32_t of_blocks[4][pitch];
  alignas(64) std::uint32_t of_elements[4 * pitch];

  /// of_blocks[w][b] = word w of block first + b of a Philox stream, for at most max_blocks blocks.
  void draw_blocks(const PhiloxState& state, std::int64_t first, std::int64_t count, std::uint64_t stream = 0);
  /// Words of elements first, first + 1, ...
  const std::uint32_t* draw(const PhiloxState& state, std::int64_t first, std::int64_t count, std::uint64_t stream = 0) {
    const std::int64_t blocks = ceil_div(first % 4 + count, 4);
    draw_blocks(state, first / 4, blocks, stream);
    for (std::int64_t b = 0; b < blocks; ++b)
      for (int w = 0; w < 4; ++w) of_elements[4 * b + w] = of_blocks[w][b];
    return of_elements + first % 4;
  }
};

/// Dropout's random bits of a run of at most `chunk` elements of a tensor, starting anywhere: Note [Dropout's bits].
struct DropoutBits {
  static constexpr std::int64_t max_blocks = chunk / 8 + 2, pitch = (max_blocks + 15) / 16 * 16;  // rows of whole cache lines
  alignas(64) std::uint32_t of_blocks[4][pitch];
  alignas(64) std::uint16_t of_elements[8 * pitch];

  /// Random bits of elements first, first + 1, ...
  const std::uint16_t* draw(const PhiloxState& state, std::int64_t first, std::int64_t count);
};

/// Dropout of runs of at most `chunk` elements of a tensor, starting anywhere.
class DropoutRuns {
 public:
  DropoutRuns(double p, const PhiloxState& draws) : keep_(1 - p), bound_(dropout_bound(p)), draws_(draws) {}

  bool drops() const { return bound_ > 0; }

  /// y[i] = x[i] / (1 - p), or 0 if element first + i is dropped. y may be x.
  template <class C>
  void operator()(const C* x, C* y, std::int64_t first, std::int64_t n) const {
    DropoutBits memory;
    const std::uint16_t* const bits = memory.draw(draws_, first, n);
    const C keep = C(keep_);
    // The quotient is computed for every element: computing it only for kept elements would be a branch.
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) {
      const C scaled = x[i] / keep;
      y[i] = bits[i] < bound_ ? C(0) : scaled;
    }
  }

  /// mask[i] = 1 if element first + i is kept, 0 if it is dropped.
  template <class C>
  void mask(std::int64_t first, std::int64_t n, C* mask) const {
    DropoutBits memory;
    const std::uint16_t* const bits = memory.draw(draws_, first, n);
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) mask[i] = bits[i] < bound_ ? C(0) : C(1);
  }

 private:
  double keep_;
  std::uint32_t bound_;
  PhiloxState draws_;
};

}  // namespace tern::loops
