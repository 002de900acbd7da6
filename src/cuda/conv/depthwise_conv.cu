#include "cuda/device/group.cuh"
#include "cuda/device/math.cuh"
#include "cuda/device/vec16.cuh"
#include "cuda/runtime/allocator.h"
#include "cuda/runtime/dispatch.h"
#include "cuda/runtime/launch.h"
#include "ops/kernels/conv.h"
#include "tensor/dispatch.h"
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

namespace tern::kernels {

using namespace gpu;
using namespace gpu::conv;

namespace {

constexpr int warps = block_size / 32;

template <class T>
struct Depthwise {
  Signal<const T> u;
  Signal<T> y;
  const T *w, *bias;
  int left;
  bool silu;
};

// Channels last.

/// Partition of positions and vectors of channels over blocks: a warp has 32 adjacent vectors and one tile of positions; a block's warps
/// have consecutive tiles. Blocks that start together have all channels of the same positions, which are adjacent in memory.
struct Tiles {
  unsigned columns, of_batch;  ///< blocks along D, and along L
};

/// Positions per thread.
inline constexpr int tile_size = 8;
/// Blocks per multiprocessor: the more arithmetic a block has between its reads, the more other blocks must be reading.
template <class T, int K>
inline constexpr int blocks_at_once = K == 7 && sizeof(T) == 2 ? 4 : 3;

template <class T, int K>
__global__ void __launch_bounds__(block_size, (blocks_at_once<T, K>))
    convolve_channels_last(__grid_constant__ const Depthwise<T> a, const Tiles tiles, unsigned channels) {
  constexpr int words = words_of_thread, n = per_word<T>, width = words * n, rows = tile_size + K - 1;
  const unsigned column = blockIdx.x % tiles.columns, row = blockIdx.x / tiles.columns, b = row / tiles.of_batch;
  const unsigned channel = (column * 32 + threadIdx.x % 32) * width;
  const int first = static_cast<int>((row % tiles.of_batch * warps + threadIdx.x / 32) * tile_size);
  if (channel >= channels || first >= a.y.length) return;

  // All reads before the first use, so that many are in flight.
  Words<words> x[rows], bias{};
  const T* const u = a.u.data + a.u.at(b, first - a.left, channel);
#pragma unroll
  for (int r = 0; r < rows; ++r) x[r] = a.u.has(first - a.left + r) ? read_words<words>(u + r * a.u.position) : Words<words>{};
  const Taps<T, K, words> all_taps(a.w + std::int64_t(channel) * K);
  if (a.bias) bias = read_words<words>(a.bias + channel);
#pragma unroll
  for (int v = 0; v < words; ++v) {
    float taps[n][K], shift[n], in[rows][n];
    all_taps.widen(v, taps);
    widen_word<T>(bias.values[v], shift);
#pragma unroll
    for (int r = 0; r < rows; ++r) widen_word<T>(x[r].values[v], in[r]);
    float sums[tile_size][n];
#pragma unroll
    for (int l = 0; l < tile_size; ++l) {
#pragma unroll
      for (int i = 0; i < n; ++i) {
        sums[l][i] = shift[i];
#pragma unroll
        for (int k = 0; k < K; ++k) sums[l][i] += taps[i][k] * in[l + k][i];
      }
    }
    if (a.silu) {
#pragma unroll
      for (int l = 0; l < tile_size; ++l) {
#pragma unroll
        for (int i = 0; i < n; ++i) sums[l][i] = silu_approx(sums[l][i]);
      }
    }
#pragma unroll
    for (int l = 0; l < tile_size; ++l) x[l].values[v] = round_word<T>(sums[l]);
  }
  T* const y = a.y.data + a.y.at(b, first, channel);
#pragma unroll
  for (int l = 0; l < tile_size; ++l)
    if (first + l < a.y.length) write_words(y + l * a.y.position, x[l]);
}

// Channels first.

template <class T, int K>
__global__ void __launch_bounds__(block_size)
    convolve_channels_first(__grid_constant__ const Depthwise<T> a, unsigned channels, unsigned vectors, std::int64_t count) {
  constexpr int width = 16 / sizeof(T), at_once = 2;
  const std::int64_t first = std::int64_t(blockIdx.x) * (block_size * at_once) + threadIdx.x;
#pragma unroll
  for (int j = 0; j < at_once; ++j) {
    const std::int64_t vector = first + j * block_size;
    if (vector >= count) return;
    const auto row = static_cast<unsigned>(vector / vectors);
    const unsigned channel = row % channels, b = row / channels;
    const int l = static_cast<int>(vector - std::int64_t(row) * vectors) * width;
    float x[width + K - 1], sum[width];
    read_window<width>(a.u.data + a.u.at(b, 0, channel), l - a.left, a.u.length, x);
    const float bias = a.bias ? convert<float>(a.bias[channel]) : 0;
#pragma unroll
    for (int i = 0; i < width; ++i) sum[i] = bias;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const float tap = convert<float>(a.w[std::int64_t(channel) * K + k]);
#pragma unroll
      for (int i = 0; i < width; ++i) sum[i] += tap * x[i + k];
    }
    if (a.silu) {
#pragma unroll
      for (int i = 0; i < width; ++i) sum[i] = silu_approx(sum[i]);
    }
    write_floats(a.y.data + a.y.at(b, l, channel), sum);
  }
}

// Any K, strides and dtype: a thread has a few positions of a channel, and reads their inputs from the cache once per tap.

template <class T>
__global__ void __launch_bounds__(block_size)
    convolve_any(__grid_constant__ const Depthwise<T> a, int taps, std::int64_t channels, bool channels_last, std::int64_t count) {
  using C = computed_t<T>;
  constexpr int at_once = 4;
  const std::int64_t thread = std::int64_t(blockIdx.x) * block_size + threadIdx.x;
  if (thread >= count) return;
  // Adjacent threads in the block are adjacent in memory.
  const std::int64_t groups = (a.y.length + at_once - 1) / at_once, inner = channels_last ? channels : groups, rest = thread / inner;
  const std::int64_t fast = thread - rest * inner, outer = channels_last ? groups : channels, b = rest / outer, slow = rest - b * outer;
  const std::int64_t channel = channels_last ? fast : slow;
  const auto group = static_cast<int>(channels_last ? slow : fast);
  // Along L, adjacent threads take adjacent positions, and each continues with a stride of `groups`.
  const int first = channels_last ? group * at_once : group, step = channels_last ? 1 : static_cast<int>(groups);
  C sums[at_once];
#pragma unroll
  for (int j = 0; j < at_once; ++j) sums[j] = a.bias ? convert<C>(a.bias[channel]) : C(0);
  const T* const u = a.u.data + a.u.at(b, 0, channel);
  for (int k = 0; k < taps; ++k) {
    const C tap = convert<C>(a.w[channel * taps + k]);
#pragma unroll
    for (int j = 0; j < at_once; ++j) {
      const int position = first + j * step - a.left + k;
      if (a.u.has(position)) sums[j] += tap * convert<C>(u[position * a.u.position]);
    }
  }
#pragma unroll
  for (int j = 0; j < at_once; ++j) {
    const int l = first + j * step;
    if (l < a.y.length) a.y.data[a.y.at(b, l, channel)] = convert<T>(a.silu ? silu_approx(sums[j]) : sums[j]);
  }
}

/// Returns false if the shapes, K or the alignment require convolve_any.
template <class T, int K>
bool convolve_vectors(const DepthwiseConv1d& a, const Depthwise<T>& convolution) {
  const Stream stream = a.y.stream;
  const std::int64_t batches = a.y.shape[0], channels = a.y.shape[2];
  if (is_channels_last(a.u)) {
    constexpr int width = words_of_thread * per_word<T>;
    if (!has_vectors<T, width>(a.u, 2) || !has_vectors<T, width>(a.y, 2) || !is_aligned(a.w.data, sizeof(T) * width) ||
        !is_aligned(a.bias.data, sizeof(T) * width) || channels > (std::int64_t{1} << 30))
      return false;
    const Tiles tiles{blocks_for(channels, 32 * width), blocks_for(a.y.shape[1], warps * tile_size)};
    launch(convolve_channels_last<T, K>, blocks_for(batches * tiles.columns * tiles.of_batch, 1), block_size, 0, stream, convolution, tiles,
           static_cast<unsigned>(channels));
    return true;
  }
  constexpr int width = 16 / sizeof(T);
  const std::int64_t rows = batches * channels, vectors = a.y.shape[1] / width;
  if (!has_vectors<T, width>(a.u, 1) || !has_vectors<T, width>(a.y, 1) || rows >= (std::int64_t{1} << 32)) return false;
  launch(convolve_channels_first<T, K>, blocks_for(rows * vectors, 2 * block_size), block_size, 0, stream, convolution,
         static_cast<unsigned>(channels), static_cast<unsigned>(vectors), rows * vectors);
  return true;
}

}  // namespace

static void depthwise_conv1d(const DepthwiseConv1d& a) {
  if (a.y.numel() == 0) return;
  if (!is_short(a.u) || !is_short(a.y) || a.left >= (1 << 30) || a.w.shape[1] >= (1 << 30))
    fail("depthwise_conv1d", "expected fewer than 2^30 positions and taps");
  const auto operands = [&]<class T>() {
    return Depthwise<T>{Signal<const T>(a.u), Signal<T>(a.y), a.w.as<const T>(), a.bias.as<const T>(), static_cast<int>(a.left), a.silu};
  };
  const bool done = dispatch_short_floats(a.y.dtype, [&]<class T>() {
    bool fits = false;
    with_taps(a.w.shape[1], [&]<int K>() { fits = convolve_vectors<T, K>(a, operands.template operator()<T>()); });
    return fits;
  });
  if (done) return;
  dispatch_floats(a.y.dtype, "depthwise_conv1d", [&]<class T>() {
    const std::int64_t threads = a.y.shape[0] * ((a.y.shape[1] + 3) / 4) * a.y.shape[2];
    launch(convolve_any<T>, blocks_for(threads), block_size, 0, a.y.stream, operands.template operator()<T>(),
           static_cast<int>(a.w.shape[1]), a.y.shape[2], is_channels_last(a.u), threads);
  });
}
void DepthwiseConv1d::run(Cuda) const { depthwise_conv1d(*this); }

// Gradient of the depthwise convolution with one read of u and g and one write of du; Note [Steps of the gradient] in
// ops/cpu/depthwise_conv.cpp gives the order. Each block, or warp, leaves partial sums of dw and db in partials (parts, K + 1, D), which a
// second kernel adds up in order.

namespace {

template <class T>
struct Gradient {
  Signal<const T> u, g;
  Signal<T> du;
  const T *w, *bias;
  int left;
  bool silu;
  int first, end;  ///< range of all steps
  unsigned channels;
  float* partials;
};

/// Partition of steps and channels: as in forward, but with parts of L rather than tiles for channels first.
struct Partition {
  unsigned columns, of_batch;
  int size;  ///< steps per warp
};

// Channels last. A thread has a vector of channels and walks along a part of L, a tile of steps at a time, with the taps, the current
// elements of u and g in their dtype, and the sums of its channels in registers.

/// Note [One window]: without SiLU dz is g, and u[t] is paired with dz[t + left - k] both for du[t] and, as a product, for dw[k]; over all
/// steps these are the products of Note [Steps of the gradient]. So u needs no window.

inline constexpr int last_threads = 128, last_warps = last_threads / 32;
/// Steps per tile, a power of two up to 16, and blocks per multiprocessor, limited by the registers that each thread needs.
template <class T, int K, bool silu>
struct TileShape {
  static constexpr bool is_large = K == 7 && sizeof(T) == 2;
  static constexpr int steps = silu ? (is_large ? 2 : 4) : (sizeof(T) == 4 || K < 4 || is_large ? 8 : 4);
  static constexpr int blocks = is_large ? (silu ? 2 : 3) : 4;
};

template <class T, int K, bool silu>
__global__ void __launch_bounds__(last_threads, (TileShape<T, K, silu>::blocks))
    differentiate_channels_last(__grid_constant__ const Gradient<T> a, const Partition partition) {
  constexpr int words = words_of_thread, tile = TileShape<T, K, silu>::steps, n = per_word<T>, width = words * n;
  constexpr int halo = K - 1, u_halo = silu ? halo : 0;  // positions of u before a step and after it
  __shared__ float shared[last_warps][32 * width];
  const unsigned column = blockIdx.x % partition.columns, row = blockIdx.x / partition.columns, b = row / partition.of_batch;
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, channel = (column * 32 + lane) * width;
  const int first = a.first + static_cast<int>((row % partition.of_batch * last_warps + warp) * partition.size),
            end = min(first + partition.size, a.end);

  float sums[words][K + 1][n] = {};
  if (channel < a.channels && first < end) {
    const Taps<T, K, words> all_taps(a.w + std::int64_t(channel) * K);
    Words<words> bias{};
    if (silu && a.bias) bias = read_words<words>(a.bias + channel);
    const T* const u = a.u.data + a.u.at(b, 0, channel);
    const T* const g = a.g.data + a.g.at(b, 0, channel);
    T* const du = a.du.data ? a.du.data + a.du.at(b, 0, channel) : nullptr;
    const auto read_u = [&](int l) { return a.u.has(l) ? read_words<words>(u + l * a.u.position) : Words<words>{}; };
    const auto read_g = [&](int l) { return a.g.has(l) ? read_words<words>(g + l * a.g.position) : Words<words>{}; };
    // At step t: u[t - u_halo .. t + tile - 1 + u_halo] and g[t + left - halo .. t + left + tile - 1]. Elements that the next tile shares
    // with this one stay, and its new ones are loaded before this one's arithmetic.
    Words<words> raw_u[tile + 2 * u_halo], raw_g[tile + halo];
#pragma unroll
    for (int r = 0; r < 2 * u_halo; ++r) raw_u[tile + r] = read_u(first - u_halo + r);
#pragma unroll
    for (int r = 0; r < halo; ++r) raw_g[tile + r] = read_g(first + a.left - halo + r);
    Words<words> next_u[tile], next_g[tile];
    const auto read_next = [&](int t) {
#pragma unroll
      for (int r = 0; r < tile; ++r) next_u[r] = read_u(t + u_halo + r);
      // A part is whole tiles, except the last one, at whose end u has ended, too.
#pragma unroll
      for (int r = 0; r < tile; ++r) next_g[r] = t + r < end ? read_g(t + a.left + r) : Words<words>{};
    };
    read_next(first);
    for (int t = first; t < end; t += tile) {
#pragma unroll
      for (int r = 0; r < 2 * u_halo; ++r) raw_u[r] = raw_u[tile + r];
#pragma unroll
      for (int r = 0; r < halo; ++r) raw_g[r] = raw_g[tile + r];
#pragma unroll
      for (int r = 0; r < tile; ++r) raw_u[2 * u_halo + r] = next_u[r], raw_g[halo + r] = next_g[r];
      if (t + tile < end) read_next(t + tile);
      Words<words> out[tile];
#pragma unroll
      for (int v = 0; v < words; ++v) {
        float taps[n][K], x[tile + 2 * u_halo][n], dz[tile + halo][n];
        all_taps.widen(v, taps);
#pragma unroll
        for (int r = 0; r < tile + 2 * u_halo; ++r) widen_word<T>(raw_u[r].values[v], x[r]);
#pragma unroll
        for (int r = 0; r < tile + halo; ++r) widen_word<T>(raw_g[r].values[v], dz[r]);
        if constexpr (silu) {
          float shift[n];
          widen_word<T>(bias.values[v], shift);
#pragma unroll
          for (int r = 0; r < tile + halo; ++r) {
#pragma unroll
            for (int i = 0; i < n; ++i) {
              float z = shift[i];
#pragma unroll
              for (int k = 0; k < K; ++k) z += taps[i][k] * x[r + k][i];
              dz[r][i] *= silu_derivative(z);
            }
          }
        }
#pragma unroll
        for (int r = 0; r < tile; ++r) {
          float gradient[n] = {};
#pragma unroll
          for (int i = 0; i < n; ++i) {
#pragma unroll
            for (int k = 0; k < K; ++k) {
              gradient[i] += taps[i][k] * dz[r + halo - k][i];
              sums[v][k][i] += x[r + u_halo][i] * dz[r + halo - k][i];
            }
            sums[v][K][i] += dz[r + halo][i];
          }
          out[r].values[v] = round_word<T>(gradient);
        }
      }
#pragma unroll
      for (int r = 0; r < tile; ++r)
        if (du && t + r < end && a.du.has(t + r)) write_words(du + (t + r) * a.du.position, out[r]);
    }
  }

  if (!a.partials) return;
  float* const partials = a.partials + std::int64_t(row) * (K + 1) * a.channels;
#pragma unroll
  for (int k = 0; k <= K; ++k) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < width; ++i) shared[warp][lane * width + i] = sums[i / n][k][i % n];
    __syncthreads();
    static_assert(32 * width <= last_threads);
    const unsigned c = column * 32 * width + threadIdx.x;
    if (threadIdx.x >= 32 * width || c >= a.channels) continue;
    partials[std::int64_t(k) * a.channels + c] = sum_column(shared, threadIdx.x);
  }
}

// Channels first. A warp has a part of a channel's steps, with a vector of them in each lane at a time.

template <class T, int K>
__global__ void __launch_bounds__(block_size)
    differentiate_channels_first(__grid_constant__ const Gradient<T> a, const Partition partition, std::int64_t count) {
  constexpr int width = 16 / sizeof(T), halo = K - 1;
  const std::int64_t unit = std::int64_t(blockIdx.x) * warps + threadIdx.x / 32;
  if (unit >= count) return;  // whole warps
  const auto part = static_cast<unsigned>(unit / a.channels), channel = static_cast<unsigned>(unit - std::int64_t(part) * a.channels);
  const unsigned lane = threadIdx.x % 32, b = part / partition.of_batch;
  const int first = a.first + static_cast<int>(part % partition.of_batch * partition.size), end = min(first + partition.size, a.end);
  const T* const u_row = a.u.data + a.u.at(b, 0, channel);
  const T* const g_row = a.g.data + a.g.at(b, 0, channel);
  const float bias = a.bias ? convert<float>(a.bias[channel]) : 0;
  float taps[K], sums[K + 1] = {};
#pragma unroll
  for (int k = 0; k < K; ++k) taps[k] = convert<float>(a.w[std::int64_t(channel) * K + k]);

  for (int t = first + static_cast<int>(lane) * width; t < end; t += 32 * width) {
    float u[width + 2 * halo], dz[width + halo];
    read_window<width>(u_row, t - halo, a.u.length, u);
    read_window<width>(g_row, t + a.left - halo, a.g.length, dz);
    if (a.silu) {
#pragma unroll
      for (int i = 0; i < width + halo; ++i) {
        float z = bias;
#pragma unroll
        for (int k = 0; k < K; ++k) z += taps[k] * u[i + k];
        dz[i] *= silu_derivative(z);
      }
    }
#pragma unroll
    for (int i = 0; i < width; ++i) {
#pragma unroll
      for (int k = 0; k < K; ++k) sums[k] += dz[i + halo] * u[i + halo + k];
      sums[K] += dz[i + halo];
    }
    if (a.du.data && a.du.has(t)) {
      float gradient[width] = {};
#pragma unroll
      for (int i = 0; i < width; ++i) {
#pragma unroll
        for (int k = 0; k < K; ++k) gradient[i] += taps[k] * dz[i + halo - k];
      }
      write_floats(a.du.data + a.du.at(b, t, channel), gradient);
    }
  }
  if (!a.partials) return;
#pragma unroll
  for (int k = 0; k <= K; ++k) {
#pragma unroll
    for (unsigned step = 16; step > 0; step /= 2) sums[k] += shuffle_xor(sums[k], step);
    if (lane == 0) a.partials[(std::int64_t(part) * (K + 1) + k) * a.channels + channel] = sums[k];
  }
}

/// dw[c, k] and db[c] = the sum over parts of partials[part, k, c] and partials[part, K, c]. A warp has one column per lane, the block's
/// warps every 8th part, or every 32nd: it is bound by the number of times that a warp waits for memory.
constexpr int max_adding_threads = 1024;
template <class T>
__global__ void __launch_bounds__(max_adding_threads)
    add_partials(const float* __restrict__ partials, unsigned parts, int taps, unsigned channels, T* dw, T* db) {
  __shared__ float shared[max_adding_threads / 32][32];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, adding_warps = blockDim.x / 32, c = blockIdx.x * 32 + lane,
                 k = blockIdx.y;
  float sum = 0;
  if (c < channels) {
#pragma unroll 8
    for (unsigned part = warp; part < parts; part += adding_warps) sum += partials[(std::int64_t(part) * (taps + 1) + k) * channels + c];
  }
  shared[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || c >= channels) return;
  sum = 0;
#pragma unroll 8
  for (unsigned i = 0; i < adding_warps; ++i) sum += shared[i][lane];
  if (k < taps && dw) dw[std::int64_t(c) * taps + k] = convert<T>(sum);
  if (k == taps && db) db[c] = convert<T>(sum);
}

// Any K, strides and dtype, known at run time and computed in f64: dz is written to memory, then du, dw and db are each computed from it.

struct AnySignal {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t strides[3] = {}, length = 0;

  AnySignal() = default;
  explicit AnySignal(const View& x) : data(x.data), dtype(x.dtype) {
    if (!data) return;
    for (int d = 0; d < 3; ++d) strides[d] = x.strides[d];
    length = x.shape[1];
  }
  __device__ double operator()(std::int64_t b, std::int64_t l, std::int64_t d) const {
    return l < 0 || l >= length ? 0 : read<AnyFloat>(data, dtype, b * strides[0] + l * strides[1] + d * strides[2]);
  }
};

struct AnyGradient {
  AnySignal u, g, dz, du;
  const void *w, *bias;
  std::int64_t left, taps, batches, channels;
  bool silu, channels_last;

  __device__ double tap(std::int64_t d, std::int64_t k) const { return read<AnyFloat>(w, u.dtype, d * taps + k); }
};

/// One thread per element of dz, or of du.
__global__ void __launch_bounds__(block_size) differentiate_any(__grid_constant__ const AnyGradient a, bool makes_dz) {
  const std::int64_t thread = std::int64_t(blockIdx.x) * block_size + threadIdx.x;
  const AnySignal& to = makes_dz ? a.dz : a.du;
  if (thread >= a.batches * to.length * a.channels) return;
  const std::int64_t inner = a.channels_last ? a.channels : to.length, outer = a.channels_last ? to.length : a.channels;
  const std::int64_t fast = thread % inner, slow = thread / inner % outer, b = thread / inner / outer;
  const std::int64_t d = a.channels_last ? fast : slow, l = a.channels_last ? slow : fast;
  double value = 0;
  if (makes_dz) {
    double z = a.bias ? read<AnyFloat>(a.bias, a.u.dtype, d) : 0;
    for (std::int64_t k = 0; a.silu && k < a.taps; ++k) z += a.tap(d, k) * a.u(b, l - a.left + k, d);
    value = a.g(b, l, d) * (a.silu ? silu_derivative(z) : 1);
  } else {
    for (std::int64_t k = 0; k < a.taps; ++k) value += a.tap(d, k) * a.dz(b, l + a.left - k, d);
  }
  write<AnyFloat>(to.data, to.dtype, b * to.strides[0] + l * to.strides[1] + d * to.strides[2], value);
}

/// A lane has a channel, the block's warps every eighth position: dw[d, k] for k = blockIdx.y < K, db[d] for K.
__global__ void __launch_bounds__(block_size) add_any(__grid_constant__ const AnyGradient a, void* dw, void* db) {
  __shared__ double shared[warps][32];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::int64_t d = std::int64_t(blockIdx.x) * 32 + lane, k = blockIdx.y;
  double sum = 0;
  if (d < a.channels) {
    for (std::int64_t b = 0; b < a.batches; ++b)
      for (std::int64_t l = warp; l < a.dz.length; l += warps) sum += a.dz(b, l, d) * (k < a.taps ? a.u(b, l - a.left + k, d) : 1);
  }
  shared[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || d >= a.channels) return;
  sum = sum_column(shared, lane);
  if (k < a.taps && dw) write<AnyFloat>(dw, a.u.dtype, d * a.taps + k, sum);
  if (k == a.taps && db) write<AnyFloat>(db, a.u.dtype, d, sum);
}

void differentiate_any_signal(const DepthwiseConv1dGrad& a) {
  const Stream stream = a.u.stream;
  AnyGradient any{AnySignal(a.u), AnySignal(a.g), {},           AnySignal(a.du), a.w.data, a.bias.data,
                  a.left,         a.w.shape[1],   a.u.shape[0], a.u.shape[2],    a.silu,   is_channels_last(a.u)};
  View dz = a.g;
  dz.dtype = a.u.dtype == DType::f64 ? DType::f64 : DType::f32;
  dz.strides = {dz.shape[1] * dz.shape[2], any.channels_last ? dz.shape[2] : 1, any.channels_last ? 1 : dz.shape[1]};
  const Workspace memory(static_cast<std::size_t>(dz.numel()) * size_of(dz.dtype), stream);
  dz.data = memory.as();
  any.dz = AnySignal(dz);
  if (dz.numel() > 0) launch(differentiate_any, blocks_for(dz.numel()), block_size, 0, stream, any, true);
  if (a.du.data && a.du.numel() > 0) launch(differentiate_any, blocks_for(a.du.numel()), block_size, 0, stream, any, false);
  const dim3 grid(blocks_for(any.channels, 32), static_cast<unsigned>(any.taps + 1));
  if (a.dw.data || a.db.data) launch(add_any, grid, block_size, 0, stream, any, a.dw.data, a.db.data);
}

/// Returns false if the shapes, K or the alignment require differentiate_any_signal.
template <class T, int K>
bool differentiate_vectors(const DepthwiseConv1dGrad& a) {
  const Stream stream = a.u.stream;
  const bool channels_last = is_channels_last(a.u);
  const std::int64_t batches = a.u.shape[0], channels = a.u.shape[2];
  constexpr int last_width = words_of_thread * per_word<T>, first_width = 16 / sizeof(T);
  for (const View* x : std::initializer_list<const View*>{&a.u, &a.g, &a.du})
    if (channels_last ? !has_vectors<T, last_width>(*x, 2) : !has_vectors<T, first_width>(*x, 1)) return false;
  if (channels_last && (!is_aligned(a.w.data, sizeof(T) * last_width) || !is_aligned(a.bias.data, sizeof(T) * last_width))) return false;
  if (channels > (std::int64_t{1} << 30)) return false;

  Gradient<T> gradient{Signal<const T>(a.u),
                       Signal<const T>(a.g),
                       Signal<T>(a.du),
                       a.w.as<const T>(),
                       a.bias.as<const T>(),
                       static_cast<int>(a.left),
                       a.silu,
                       0,
                       0,
                       static_cast<unsigned>(channels),
                       nullptr};
  // Vectors of steps begin where vectors of u do.
  gradient.first = -static_cast<int>((a.left + first_width - 1) / first_width * first_width);
  gradient.end = static_cast<int>(std::max(a.u.shape[1], a.g.shape[1] - a.left));
  const std::int64_t steps = gradient.end - gradient.first;
  Partition partition{channels_last ? blocks_for(channels, 32 * last_width) : 1, 1, channels_last ? 128 : 4096};
  // Long parts read fewer positions twice and leave fewer partial sums; short ones keep a small signal on many multiprocessors: some units
  // for each of any GPU (an H200 has 132). Not the device's own number, because the order of the sums depends on it.
  const std::int64_t steps_at_once = channels_last ? last_warps : 1,
                     units = batches * (channels_last ? partition.columns : channels / warps + 1);
  while (partition.size > (channels_last ? 16 : 512) && units * (steps / (steps_at_once * partition.size)) < (channels_last ? 512 : 1024))
    partition.size /= 2;
  partition.of_batch = blocks_for(steps, steps_at_once * partition.size);

  const std::int64_t count = batches * partition.of_batch;
  const Workspace partials(a.dw.data || a.db.data ? static_cast<std::size_t>(count * (K + 1) * channels) * sizeof(float) : 0, stream);
  if (a.dw.data || a.db.data) gradient.partials = partials.as<float>();
  if (channels_last) {
    const auto kernel = a.silu ? differentiate_channels_last<T, K, true> : differentiate_channels_last<T, K, false>;
    launch(kernel, blocks_for(count * partition.columns, 1), last_threads, 0, stream, gradient, partition);
  } else {
    launch(differentiate_channels_first<T, K>, blocks_for(count * channels, warps), block_size, 0, stream, gradient, partition,
           count * channels);
  }
  if (gradient.partials)
    launch(add_partials<T>, dim3(blocks_for(channels, 32), K + 1), count > 64 ? max_adding_threads : block_size, 0, stream,
           gradient.partials, static_cast<unsigned>(count), K, static_cast<unsigned>(channels), a.dw.as<T>(), a.db.as<T>());
  return true;
}

}  // namespace

static void depthwise_conv1d_grad(const DepthwiseConv1dGrad& a) {
  if (a.u.shape[2] == 0) return;
  if (!is_short(a.u) || !is_short(a.g) || a.left >= (1 << 30) || a.w.shape[1] > 65534)
    fail("depthwise_conv1d", "expected fewer than 2^30 positions and at most 65534 taps");
  bool done = false;
  if (a.u.numel() > 0 && a.g.numel() > 0)
    dispatch_short_floats(a.u.dtype, [&]<class T>() { with_taps(a.w.shape[1], [&]<int K>() { done = differentiate_vectors<T, K>(a); }); });
  if (!done) differentiate_any_signal(a);
}
void DepthwiseConv1dGrad::run(Cuda) const { depthwise_conv1d_grad(*this); }

}  // namespace tern::kernels
