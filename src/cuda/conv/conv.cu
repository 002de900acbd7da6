#include "cuda/conv/conv.cuh"
#include "cuda/runtime/dispatch.h"
#include "cuda/runtime/launch.h"
#include "ops/kernels/conv.h"
#include "tensor/dispatch.h"

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
bool convolve_vectors(const DepthwiseConv1dArguments& a, const Depthwise<T>& convolution) {
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

void depthwise_conv1d(Cuda, const DepthwiseConv1dArguments& a) {
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

}  // namespace tern::kernels
