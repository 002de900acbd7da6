#include "cuda/device/async_copy.cuh"
#include "cuda/device/fragment.cuh"
#include "cuda/device/vec16.cuh"
#include "cuda/gemm/quantized_codes.cuh"
#include "cuda/gemm/quantized_gemm.h"
#include "cuda/runtime/dispatch.h"
#include "cuda/runtime/launch.h"

// GEMM of 16-bit activations with quantised weights, mma.sync on every architecture. A block makes a square tile of y, 64 of the depth at a
// time: operands go from global memory to registers while the step before is multiplied, and from there to shared memory, the weights as
// 16-bit floats on the way. Their codes are whole numbers up to 128, which bf16 and f16 hold exactly: a scale multiplies float32 sums, of a
// whole row at the end, or of a block of 32 as soon as they are there. So no weight is ever rounded, and no copy of one is in memory.
//
//     depth 64 = two chunks of 32         shared memory: x (tile, 64 + 8), weights (tile, 64 + 8), scales of blocks (tile, 2)
//     warps     2 over rows of y, tile / 32 over its columns, each with tile / 2 rows of 32 columns
namespace tern::gpu {

using kernels::QuantizedRows;

namespace {

constexpr int depth = 64, chunk = 32, pitch = depth + 8;  ///< of a shared row: eight rows fall into different banks

template <int tile>
struct Tile {
  static constexpr int threads = 2 * tile, rows = tile / 2, columns = 32;  ///< of a warp
  static constexpr int vectors = tile * depth / 8 / threads;               ///< of x, that a thread brings: 4
};

template <class T>
struct Problem {
  QuantizedRows w;
  const T* x;
  std::int64_t x_stride, rows;
  const T* bias;
  std::int64_t bias_stride;
  T* y;
  bool has_vectors;  ///< rows of x are whole vectors of 16 bytes
};

/// Elements k to k + 7 of a row of x, and zeros past its ends.
template <class T>
__device__ uint4 load_x(const Problem<T>& p, std::int64_t row, std::int64_t k) {
  if (row >= p.rows || k >= p.w.in) return {};
  const T* const from = p.x + row * p.x_stride + k;
  if (p.has_vectors) return *reinterpret_cast<const uint4*>(from);
  unsigned pairs[4];
#pragma unroll
  for (int i = 0; i < 8; i += 2)
    pairs[i / 2] = (k + i < p.w.in ? from[i].bits : 0u) | (k + i + 1 < p.w.in ? unsigned(from[i + 1].bits) : 0u) << 16;
  return {pairs[0], pairs[1], pairs[2], pairs[3]};
}

template <class T, QuantFormat format, int tile>
__global__ void __launch_bounds__(Tile<tile>::threads) quantized_gemm_kernel(Problem<T> p) {
  using S = Tile<tile>;
  using Sums = FragmentTile<S::rows, S::columns>;
  constexpr bool by_blocks = has_blocks(format);
  __shared__ alignas(16) T shared_x[tile][pitch];
  __shared__ alignas(16) T shared_w[tile][pitch];
  __shared__ float shared_scales[tile][2];
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int warp_row = warp % 2 * S::rows, warp_column = warp / 2 * S::columns;
  const std::int64_t first_row = std::int64_t(blockIdx.y) * tile, first_channel = std::int64_t(blockIdx.x) * tile;
  const int own_channel = thread / 2, own_chunk = thread % 2;  // of the weights, that this thread brings

  Sums sums{};
  uint4 x_ahead[S::vectors];
  RawCodes<format> w_ahead;
  const auto fetch = [&](std::int64_t k) {
#pragma unroll
    for (int i = 0; i < S::vectors; ++i) {
      const int v = thread + i * S::threads;
      x_ahead[i] = load_x(p, first_row + v / 8, k + v % 8 * 8);
    }
    w_ahead.load(p.w, first_channel + own_channel, k + own_chunk * chunk);
  };
  fetch(0);
  for (std::int64_t k = 0; k < p.w.in; k += depth) {
    __syncthreads();  // the step before has been multiplied
#pragma unroll
    for (int i = 0; i < S::vectors; ++i) {
      const int v = thread + i * S::threads;
      *reinterpret_cast<uint4*>(&shared_x[v / 8][v % 8 * 8]) = x_ahead[i];
    }
#pragma unroll
    for (int i = 0; i < chunk; i += 8) {
      const unsigned low = w_ahead.bytes(i / 4), high = w_ahead.bytes(i / 4 + 1);
      *reinterpret_cast<uint4*>(&shared_w[own_channel][own_chunk * chunk + i]) = {code_pair<T>(low, 0), code_pair<T>(low, 1),
                                                                                  code_pair<T>(high, 0), code_pair<T>(high, 1)};
    }
    if constexpr (by_blocks) shared_scales[own_channel][own_chunk] = w_ahead.scale();
    __syncthreads();
    if (k + depth < p.w.in) fetch(k + depth);
#pragma unroll
    for (int c = 0; c < depth / chunk; ++c) {
      Sums block_sums{};
      Sums& to = by_blocks ? block_sums : sums;
#pragma unroll
      for (int column = c * chunk; column < (c + 1) * chunk; column += 16) {
        unsigned b[Sums::column_tiles / 2][4];
#pragma unroll
        for (int n = 0; n < Sums::column_tiles / 2; ++n)
          ldmatrix(b[n], shared_address(&shared_w[warp_column + n * 16 + lane / 16 * 8 + lane % 8][column + lane / 8 % 2 * 8]));
#pragma unroll
        for (int m = 0; m < Sums::row_tiles; ++m) {
          unsigned a[4];
          ldmatrix(a, shared_address(&shared_x[warp_row + m * 16 + lane % 16][column + lane / 16 * 8]));
#pragma unroll
          for (int n = 0; n < Sums::column_tiles; ++n) mma_m16n8k16<T>(to.values[m][n], a, b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
        }
      }
      if constexpr (by_blocks) {
#pragma unroll
        for (int j = 0; j < Sums::lane_columns; ++j) {
          const float scale = shared_scales[warp_column + Sums::column_of(j)][c];
#pragma unroll
          for (int r = 0; r < Sums::lane_rows; ++r) sums.at(r, j) += scale * block_sums.at(r, j);
        }
      }
    }
  }
#pragma unroll
  for (int j = 0; j < Sums::lane_columns; j += 2) {
    const std::int64_t channel = first_channel + warp_column + Sums::column_of(j);
    float scale[2] = {1, 1}, bias[2] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (channel + i >= p.w.out) continue;
      if constexpr (!by_blocks) scale[i] = row_scale(p.w.row(channel + i));
      if (p.bias) bias[i] = convert<float>(p.bias[(channel + i) * p.bias_stride]);
    }
#pragma unroll
    for (int r = 0; r < Sums::lane_rows; ++r) {
      const std::int64_t row = first_row + warp_row + Sums::row_of(r);
      if (row >= p.rows || channel >= p.w.out) continue;
      T* const to = p.y + row * p.w.out + channel;
      const float low = scale[0] * sums.at(r, j) + bias[0], high = scale[1] * sums.at(r, j + 1) + bias[1];
      if (p.w.out % 2 == 0) {
        *reinterpret_cast<unsigned*>(to) = pack_pair<T>(low, high);
      } else {
        to[0] = convert<T>(low);
        if (channel + 1 < p.w.out) to[1] = convert<T>(high);
      }
    }
  }
}

template <class T, QuantFormat format, int tile>
void start(const Problem<T>& p, Stream stream) {
  const auto tiles = [](std::int64_t count) { return static_cast<unsigned>((count + tile - 1) / tile); };
  launch(quantized_gemm_kernel<T, format, tile>,
         LaunchConfig{.grid = {tiles(p.w.out), tiles(p.rows)}, .block = Tile<tile>::threads, .stream = stream}, p);
}

}  // namespace

void quantized_gemm(const View& x, const QuantizedRows& w, const View& bias, const View& y) {
  const auto run = [&]<class T>() {
    const Problem<T> p{.w = w,
                       .x = x.as<const T>(),
                       .x_stride = x.strides[0],
                       .rows = x.shape[0],
                       .bias = bias.as<const T>(),
                       .bias_stride = bias.data ? bias.strides[0] : 0,
                       .y = y.as<T>(),
                       .has_vectors = is_aligned(x.data, 16) && x.strides[0] % 8 == 0 && w.in % 8 == 0};
    // Large tiles where they fill the device: each weight is then decoded for twice as many rows.
    const auto large = [](std::int64_t count) { return (count + 127) / 128; };
    const bool is_large = large(p.rows) * large(w.out) >= attribute(cudaDevAttrMultiProcessorCount, y.stream.device);
    const auto start_with = [&]<QuantFormat format>() {
      is_large ? start<T, format, 128>(p, y.stream) : start<T, format, 64>(p, y.stream);
    };
    if (w.format == QuantFormat::q8_0) start_with.template operator()<QuantFormat::q8_0>();
    else if (w.format == QuantFormat::q4_0) start_with.template operator()<QuantFormat::q4_0>();
    else start_with.template operator()<QuantFormat::int8>();
  };
  if (y.dtype == DType::bf16) run.template operator()<bf16>();
  else run.template operator()<f16>();
}

}  // namespace tern::gpu
