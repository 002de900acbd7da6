#pragma once
#include "cuda/device/math.cuh"
#include "cuda/device/vec16.cuh"
#include "cuda/runtime/dispatch.h"
#include "cuda/runtime/launch.h"
#include "tensor/view.h"

// Depthwise convolution, forward and backward: signals, taps and vectors. Both kernels are bound by memory, so each element should be read
// from memory once and in vectors; elements that adjacent threads read twice should come from the caches.
//
// - channels last, (B, L, D) with a unit stride along D: a thread has a vector of channels of a few positions, a tile, and loads all
//   its inputs before it computes. The warps of a block have consecutive tiles along L, whose K - 1 common positions are in the L1
//   cache. Elements stay in their dtype, and one word (4 bytes) of each vector at a time is widened to f32: 16-bit elements then take
//   half the registers, which leaves room for as many loads in flight as with f32.
// - channels first, a unit stride along L: a thread has a vector of positions of one channel, and loads the aligned vectors that cover
//   its inputs. The offset from a vector's start is the same for all threads.
// - anything else (other K, f64, lengths that are not multiples of a vector, any strides): kernels that read element by element.
namespace tern::gpu::conv {

/// Numbers of taps with specialized kernels.
template <class F>
bool with_taps(std::int64_t taps, F&& f) {
  switch (taps) {
    case 2: f.template operator()<2>(); return true;
    case 3: f.template operator()<3>(); return true;
    case 4: f.template operator()<4>(); return true;
    case 5: f.template operator()<5>(); return true;
    case 7: f.template operator()<7>(); return true;
    default: return false;
  }
}

/// Signal (B, L, D): its strides along batch, position and channel.
template <class T>
struct Signal {
  T* data = nullptr;
  std::int64_t batch = 0, position = 0, channel = 0;
  int length = 0;

  Signal() = default;
  explicit Signal(const View& x) : data(x.as<T>()) {
    if (!data) return;
    batch = x.strides[0], position = x.strides[1], channel = x.strides[2];
    length = static_cast<int>(x.shape[1]);
  }
  __device__ std::int64_t at(std::int64_t b, std::int64_t l, std::int64_t d) const { return b * batch + l * position + d * channel; }
  __device__ bool has(int l) const { return l >= 0 && l < length; }
};

/// True if every vector of `width` along dimension `fast` is aligned.
template <class T, int width>
bool has_vectors(const View& x, int fast) {
  if (!x.data) return true;
  const int slow = 3 - fast;
  return (x.strides[fast] == 1 || x.shape[fast] == 1) && x.shape[fast] % width == 0 && x.strides[0] % width == 0 &&
         x.strides[slow] % width == 0 && is_aligned(x.data, sizeof(T) * width);
}
inline bool is_channels_last(const View& u) { return u.strides[1] != 1 || (u.strides[2] == 1 && u.shape[2] > 1); }
/// Positions are counted as int, with room for padding.
inline bool is_short(const View& x) { return !x.data || x.shape[1] < (1 << 30); }

/// Elements of a 4-byte word, widened and rounded in pairs, for which the GPU has instructions.
template <class T>
inline constexpr int per_word = 4 / sizeof(T);
template <class T>
__device__ __forceinline__ void widen_word(unsigned word, float (&x)[per_word<T>]) {
  if constexpr (std::is_same_v<T, float>) {
    x[0] = __uint_as_float(word);
  } else if constexpr (std::is_same_v<T, f16>) {
    const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&word));  // unpack_pair would make the gradient kernels spill
    x[0] = pair.x, x[1] = pair.y;
  } else {
    x[0] = __uint_as_float(word << 16), x[1] = __uint_as_float(word & 0xffff0000u);
  }
}
template <class T>
__device__ __forceinline__ unsigned round_word(const float (&x)[per_word<T>]) {
  if constexpr (std::is_same_v<T, float>) {
    return __float_as_uint(x[0]);
  } else if constexpr (std::is_same_v<T, f16>) {
    const __half2 pair = __floats2half2_rn(x[0], x[1]);
    return *reinterpret_cast<const unsigned*>(&pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x[0], x[1]);
    return *reinterpret_cast<const unsigned*>(&pair);
  }
}

/// Words of a thread's vector of channels. Four words, 16 bytes, take twice the registers and leave half as many warps, too few to keep the
/// memory busy at 7 taps.
inline constexpr int words_of_thread = 2;

/// Adjacent elements, by words.
template <int words>
using Words = Vector<unsigned, words>;
template <int words, class T>
__device__ __forceinline__ Words<words> read_words(const T* from) {
  return read_vector<words>(reinterpret_cast<const unsigned*>(from));
}
template <int words, class T>
__device__ __forceinline__ void write_words(T* to, const Words<words>& from) {
  write_vector(reinterpret_cast<unsigned*>(to), from);
}

/// Taps of a vector of channels: they are contiguous, channel by channel, in K vectors.
template <class T, int K, int words>
struct Taps {
  static constexpr int n = per_word<T>;
  Words<words> raw[K];

  __device__ __forceinline__ explicit Taps(const T* first) {
#pragma unroll
    for (int v = 0; v < K; ++v) raw[v] = read_words<words>(first + v * words * n);
  }
  /// taps[i][k] of the channels i of word `at`.
  __device__ __forceinline__ void widen(int at, float (&taps)[n][K]) const {
#pragma unroll
    for (int j = 0; j < K; ++j) {
      float part[n];
      widen_word<T>(raw[(at * K + j) / words].values[(at * K + j) % words], part);
#pragma unroll
      for (int i = 0; i < n; ++i) taps[(j * n + i) / K][(j * n + i) % K] = part[i];
    }
  }
};

template <class T, int width>
__device__ __forceinline__ void write_floats(T* to, const float (&from)[width]) {
  constexpr int n = per_word<T>;
  Words<width / n> words;
#pragma unroll
  for (int v = 0; v < width / n; ++v) {
    float part[n];
#pragma unroll
    for (int i = 0; i < n; ++i) part[i] = from[v * n + i];
    words.values[v] = round_word<T>(part);
  }
  write_words(to, words);
}

/// x[i] = x[i + by] for by < 2 step, in powers of two: an index that is only known at run time would put the array in local memory.
template <int step, int count>
__device__ __forceinline__ void shift_left(float (&x)[count], int by) {
  if constexpr (step > 0) {
    if (by & step) {
#pragma unroll
      for (int i = 0; i + step < count; ++i) x[i] = x[i + step];
    }
    shift_left<step / 2>(x, by);
  }
}

/// Positions from .. from + count - 1 of a channel, zeros outside of it. `row` is its first element; its vectors are aligned.
template <int width, int count, class T>
__device__ __forceinline__ void read_window(const T* row, int from, int length, float (&x)[count]) {
  constexpr int vectors = (count + 2 * width - 2) / width, n = per_word<T>, words = width / n;
  const int off = from & (width - 1), base = from - off;
  float wide[vectors * width];
#pragma unroll
  for (int v = 0; v < vectors; ++v) {
    const int position = base + v * width;
    Words<words> raw{};
    if (position >= 0 && position < length && v * width < off + count) raw = read_words<words>(row + position);
#pragma unroll
    for (int at = 0; at < words; ++at) {
      float part[n];
      widen_word<T>(raw.values[at], part);
#pragma unroll
      for (int i = 0; i < n; ++i) wide[v * width + at * n + i] = part[i];
    }
  }
  shift_left<width / 2>(wide, off);
#pragma unroll
  for (int i = 0; i < count; ++i) x[i] = wide[i];
}

}  // namespace tern::gpu::conv
