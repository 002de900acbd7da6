#pragma once
#include <cmath>

#include "ops/cpu/loops.h"
#include "ops/kernels/math.h"

// Tiles and taps of the depthwise convolution and its gradient. Both process one tile at a time, which stays in the cache. If channels are
// adjacent in memory, a tile is some positions of up to `tile_channels` channels, and loops run along channels, each with its own taps.
// Otherwise it is a range of positions of one channel, and loops run along positions with the same taps. Elements outside a signal are read
// from a row of zeros, so no loop has a branch.
namespace tern::loops::conv {

inline constexpr std::int64_t tile_channels = 512, tile_positions = 16;

inline bool is_channels_last(const View& u) { return u.strides[1] != 1 || (u.strides[2] == 1 && u.shape[2] > 1); }

/// out[i] = bias[i] + sum over k of taps[k][i] rows[k][i] for n elements; for a range of one channel, with taps[k][0] and bias[0].
template <class C>
struct Taps {
  const C* values;  ///< (K, pitch)
  std::int64_t pitch;
  const C* bias;
  std::int64_t count;  ///< number of taps, K
};
template <class C>
using Convolve = void (*)(const C* const* rows, const Taps<C>& taps, C* out, std::int64_t n);

template <class C, bool along_channels, int K>
void convolve(const C* const* rows, const Taps<C>& taps, C* out, std::int64_t n) {
  const C* row[K];
  const C* tap[K];
  for (int k = 0; k < K; ++k) row[k] = rows[k], tap[k] = taps.values + k * taps.pitch;
  const C* const bias = taps.bias;
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    C sum = bias[along_channels ? i : 0];
#pragma GCC unroll 8
    for (int k = 0; k < K; ++k) sum += tap[k][along_channels ? i : 0] * row[k][i];
    out[i] = sum;
  }
}

/// The same for any number of taps: `out` is read from the L1 cache once for each tap.
template <class C, bool along_channels>
void convolve_any(const C* const* rows, const Taps<C>& taps, C* out, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) out[i] = taps.bias[along_channels ? i : 0];
  for (std::int64_t k = 0; k < taps.count; ++k) {
    const C *const row = rows[k], *const tap = taps.values + k * taps.pitch;
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) out[i] += tap[along_channels ? i : 0] * row[i];
  }
}

template <class C, bool along_channels>
Convolve<C> convolve_for(std::int64_t taps) {
  switch (taps) {
    case 2: return convolve<C, along_channels, 2>;
    case 3: return convolve<C, along_channels, 3>;
    case 4: return convolve<C, along_channels, 4>;
    case 5: return convolve<C, along_channels, 5>;
    case 7: return convolve<C, along_channels, 7>;
    default: return convolve_any<C, along_channels>;
  }
}

template <class C>
[[gnu::always_inline]] inline C sigmoid(C z) {
  if constexpr (std::is_same_v<C, float>) return vector_math::sigmoid(z);
  else return 1 / (1 + std::exp(-z));
}

/// rows[r] = n elements, from channel c on, of position first + r of batch b, for r < count: pointers into the signal, or into the buffer,
/// where rows are `tile_channels` apart.
template <class C, class S>
void fetch_rows(const View& x, std::int64_t b, std::int64_t first, std::int64_t count, std::int64_t c, std::int64_t n, const C* zeros,
                C* buffer, const C** rows) {
  for (std::int64_t r = 0; r < count; ++r) {
    const std::int64_t position = first + r;
    const bool is_inside = position >= 0 && position < x.shape[1];
    rows[r] = is_inside ? load(x.as<const S>() + b * x.strides[0] + position * x.strides[1] + c * x.strides[2], x.strides[2], n,
                               buffer + r * tile_channels)
                        : zeros;
  }
}

/// Positions first .. first + count - 1 of a channel: a pointer into the signal, or into the buffer.
template <class C, class S>
const C* fetch_run(const View& x, std::int64_t b, std::int64_t c, std::int64_t first, std::int64_t count, C* buffer) {
  const std::int64_t begin = std::clamp<std::int64_t>(-first, 0, count), end = std::clamp(x.shape[1] - first, begin, count);
  const S* const from = x.as<const S>() + b * x.strides[0] + (first + begin) * x.strides[1] + c * x.strides[2];
  if (begin == 0 && end == count) return load(from, x.strides[1], count, buffer);
  std::fill_n(buffer, begin, C(0));
  std::fill_n(buffer + end, count - end, C(0));
  if (begin < end) {
    const C* const inside = load(from, x.strides[1], end - begin, buffer + begin);
    if (inside != buffer + begin) std::copy_n(inside, end - begin, buffer + begin);
  }
  return buffer;
}

/// Taps (D, K) and bias converted to C: for each channel its taps, or with `by_tap` for each tap its channels; taps reversed with
/// `flipped`.
template <class C>
class Parameters {
 public:
  template <class S>
  Parameters(const View& w, const View& bias, bool by_tap, bool flipped, const Stream& stream, S)
      : channels_(w.shape[0]), count_(w.shape[1]), by_tap_(by_tap), memory_(channels_ * (count_ + 1), stream) {
    C *const values = memory_.data(), *const shifts = values + channels_ * count_;
    for (std::int64_t c = 0; c < channels_; ++c) {
      for (std::int64_t k = 0; k < count_; ++k)
        values[by_tap ? k * channels_ + c : c * count_ + k] = convert<C>(w.as<const S>()[c * count_ + (flipped ? count_ - 1 - k : k)]);
      shifts[c] = bias.data ? convert<C>(bias.as<const S>()[c]) : C(0);
    }
  }

  /// The taps from channel c on, or those of channel c only.
  Taps<C> at(std::int64_t c) const {
    const C *const values = memory_.data(), *const shifts = values + channels_ * count_;
    if (by_tap_) return {values + c, channels_, shifts + c, count_};
    return {values + c * count_, 1, shifts + c, count_};
  }

 private:
  std::int64_t channels_, count_;
  bool by_tap_;
  Scratch<C> memory_;
};

}  // namespace tern::loops::conv
