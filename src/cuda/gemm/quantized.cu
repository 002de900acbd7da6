#include <algorithm>

#include "backend/observer.h"
#include "cuda/device/async_copy.cuh"
#include "cuda/device/convert.cuh"
#include "cuda/device/fragment.cuh"
#include "cuda/device/group.cuh"
#include "cuda/device/semaphore.cuh"
#include "cuda/device/vec16.cuh"
#include "cuda/runtime/dispatch.h"
#include "cuda/runtime/launch.h"
#include "ops/kernels/matmul.h"
#include "tensor/dispatch.h"
#include "tensor/sizes.h"

// Quantized weights on a GPU. Decoding a few rows is bound by reading the weights: a warp reads the row of an output channel once, four
// weights per lane, and multiplies it with all rows of x, which are in the caches. More rows of 16-bit x use tensor cores
// (quantized_gemm below); for more rows of float32 x, the op dequantizes a part of the weight at a time for a plain product.
namespace tern::kernels {

using namespace gpu;

namespace {

// Codes (tensor/dtype.h), integers, as floats, and their scales, one per row or one per block of 32.

/// Loads two bytes: blocks begin at even addresses, but not at multiples of four.
__device__ __forceinline__ unsigned load_half_word(const std::uint8_t* at) { return *reinterpret_cast<const std::uint16_t*>(at); }

__device__ __forceinline__ float block_scale(const std::uint8_t* block) {
  f16 half;
  half.bits = static_cast<std::uint16_t>(load_half_word(block));
  return convert<float>(half);
}
__device__ __forceinline__ float row_scale(const std::uint8_t* row) { return *reinterpret_cast<const float*>(row); }

/// Byte `i` of a word, unsigned and signed.
__device__ __forceinline__ float byte_of(unsigned word, int i) { return static_cast<float>(word >> (8 * i) & 255u); }
__device__ __forceinline__ float signed_byte_of(unsigned word, int i) {
  return static_cast<float>(static_cast<std::int8_t>(word >> (8 * i) & 255u));
}

/// Loads codes k to k + 3 of a row, k a multiple of 4 below `in`, and returns the scale of their block, or 1 if the scale is the row's.
/// Codes past `in` are 0: rows and blocks are padded.
__device__ __forceinline__ float load_four_codes(const QuantizedRows& w, const std::uint8_t* row, std::int64_t k, float (&codes)[4]) {
  if (!has_blocks(w.format)) {
    const unsigned word = *reinterpret_cast<const std::uint32_t*>(row + 4 + k);
#pragma unroll
    for (int i = 0; i < 4; ++i) codes[i] = byte_of(word, i) - 128.0f;
    return 1;
  }
  const std::uint8_t* const block = row + k / quant_block * block_bytes(w.format);
  const int first = static_cast<int>(k % quant_block);
  const bool is_q8 = w.format == QuantFormat::q8_0;
  const std::uint8_t* const at = block + 2 + (is_q8 ? first : first % 16);
  const unsigned word = load_half_word(at) | load_half_word(at + 2) << 16;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    codes[i] = is_q8 ? signed_byte_of(word, i) : static_cast<float>(word >> (8 * i + first / 16 * 4) & 15u) - 8.0f;
  return block_scale(block);
}

/// Decodes two codes, stored as bytes plus 128 in a half word, to 16-bit floats. Without a conversion: under the exponent of 128 (bf16) or
/// 1024 (f16) the bits of a byte are its value. bf16 has only 7 of them, so the eighth selects the subtrahend, 256 or 128.
template <class T>
__device__ __forceinline__ unsigned code_pair(unsigned half_word) {
  const unsigned pair = __byte_perm(half_word, 0, 0x4140);
  unsigned result;
  if constexpr (std::is_same_v<T, bf16>) {
    const unsigned low_bits = (pair & 0x007f007fu) | 0x43004300u, subtracted = (~pair & 0x00800080u) | 0xc300c300u;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(low_bits), "r"(0x3f803f80u), "r"(subtracted));
  } else {
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(result) : "r"(pair | 0x64006400u), "r"(0xe480e480u));
  }
  return result;
}

/// The same for the low four bits of each byte, in which codes are stored plus 8: subtracts 136 (bf16) or 1032 (f16).
template <class T>
__device__ __forceinline__ unsigned four_bit_pair(unsigned half_word) {
  const unsigned pair = __byte_perm(half_word, 0, 0x4140) & 0x000f000fu;
  unsigned result;
  if constexpr (std::is_same_v<T, bf16>)
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(pair | 0x43004300u), "r"(0x3f803f80u), "r"(0xc308c308u));
  else asm("add.rn.f16x2 %0, %1, %2;" : "=r"(result) : "r"(pair | 0x64006400u), "r"(0xe408e408u));
  return result;
}

// A few rows.

constexpr int lanes = 32, warps = block_size / lanes, max_rows = 16;

/// Value of weight k of a row.
template <class C>
__device__ C value_at(const QuantizedRows& w, const std::uint8_t* row, std::int64_t k) {
  if (!has_blocks(w.format)) return C(row_scale(row)) * C(row[4 + k] - 128);
  const std::uint8_t* const block = row + k / quant_block * block_bytes(w.format);
  const int i = static_cast<int>(k % quant_block), half = static_cast<int>(quant_block / 2);
  if (w.format == QuantFormat::q8_0) return C(block_scale(block)) * C(static_cast<std::int8_t>(block[2 + i]));
  const int pair = block[2 + i % half];
  return C(block_scale(block)) * C((i < half ? pair & 15 : pair >> 4) - 8);
}

template <class T>
__global__ void __launch_bounds__(block_size) write_values(QuantizedRows w, const std::int64_t* ids, std::int64_t count, T* y) {
  const std::int64_t i = std::int64_t(blockIdx.x) * block_size + threadIdx.x;
  if (i >= count) return;
  const std::int64_t n = i / w.in, row = ids ? ids[n] : n;
  y[i] = convert<T>(row >= 0 && row < w.out ? value_at<computed_t<T>>(w, w.row(row), i % w.in) : computed_t<T>(0));
}

/// y (rows, out) for at most R rows, one warp per output channel. Rows of x are x_stride apart.
template <class T, int R>
__global__ void __launch_bounds__(block_size)
    multiply_rows(QuantizedRows w, const T* x, std::int64_t x_stride, const T* bias, std::int64_t bias_stride, T* y, int rows) {
  const std::int64_t channel = std::int64_t(blockIdx.x) * warps + threadIdx.x / lanes;
  if (channel >= w.out) return;
  const int lane = threadIdx.x % lanes;
  const std::uint8_t* const row = w.row(channel);
  float sums[R] = {};
  for (std::int64_t k = 4 * lane; k < w.in; k += 4 * lanes) {
    float codes[4];
    const float scale = load_four_codes(w, row, k, codes);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (k + i >= w.in) break;
      const float weight = scale * codes[i];
#pragma unroll
      for (int r = 0; r < R; ++r)
        if (r < rows) sums[r] += weight * convert<float>(x[r * x_stride + k + i]);
    }
  }
  const float scale = has_blocks(w.format) ? 1.0f : row_scale(row);
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const float sum = warp_all_reduce<PlusOp<float>>(sums[r]);
    if (lane == 0 && r < rows) {
      const float added = bias ? convert<float>(bias[channel * bias_stride]) : 0.0f;
      y[r * w.out + channel] = convert<T>(scale * sum + added);
    }
  }
}

// GEMM of 16-bit activations with quantized weights: mma.sync fed by cp.async, on every architecture. A ring of stages holds x and the
// codes of the weights as they are stored; a warp decodes codes to 16-bit floats as it loads them from shared memory into fragments of b.
// Codes are integers up to 128, exact in bf16 and f16, and scales multiply the float32 sums: a row's scale in the epilogue, a block's after
// each 32 of the depth. So weights are not rounded, and dequantized weights are never written to memory.
//
//     block   warps over rows of y x over columns x over the depth; a warp's tile has 32 columns
//     stage   x (rows, depth), swizzled | codes (columns, depth), each row in 4-byte words, a pitch apart
//     end     the sums of the warps along the depth are added in shared memory, in order
//
// With few rows and channels there are few tiles, and latency matters: small tiles divide the depth over all warps, and load a depth of 256
// at once. Large tiles use each decoded code for more rows.

constexpr int chunk = 32;  ///< depth of a warp's step: a block of q8_0 and q4_0

template <QuantFormat format_, int row_tiles, int warps_m_, int warps_n_, int warps_k_, int chunks_>
struct Tile {
  static constexpr QuantFormat format = format_;
  static constexpr int warps_m = warps_m_, warps_n = warps_n_, warps_k = warps_k_, chunks = chunks_;
  static constexpr int threads = 32 * warps_m * warps_n * warps_k, warp_rows = 16 * row_tiles, warp_columns = 32;
  static constexpr int rows = warps_m * warp_rows, columns = warps_n * warp_columns, depth = chunk * warps_k * chunks;
  static constexpr bool by_blocks = has_blocks(format);
  static_assert(depth % 64 == 0);  // two blocks are whole words

  using Sums = FragmentTile<warp_rows, warp_columns>;
  static constexpr int fragments = row_tiles * Sums::column_tiles, own_fragments = fragments / warps_k;  ///< of a warp, at the end
  static constexpr int own_columns = own_fragments < Sums::column_tiles ? own_fragments : Sums::column_tiles;

  static constexpr int chunk_bytes = by_blocks ? static_cast<int>(block_bytes(format)) : chunk;
  static constexpr int row_step = depth / chunk * chunk_bytes;  ///< bytes of a row of codes in a stage
  /// Words of a row: a power of two, and for formats with blocks a tail, one word longer if the row begins in the middle of a word.
  static constexpr int main_words = row_step / 4 / 8 * 8, tail_words = by_blocks ? row_step / 4 - main_words + 1 : 0;
  /// Four words off a multiple of eight, so that eight rows are in different banks.
  static constexpr int pitch = ((main_words + tail_words + 3) / 8 * 8 + 4) * 4;
  static constexpr int x_bytes = SharedTile<depth>::bytes(rows), stage_bytes = x_bytes + columns * pitch;
  static constexpr int y_pitch = columns * 2 + 16, epilogue_bytes = warps_k > 1 ? threads * fragments * 16 : rows *y_pitch;
  /// As many stages as fit into 99 KiB, which every device has from compute capability 8.0 on.
  static constexpr int stages = std::min(4, 99 * 1024 / stage_bytes);
  static_assert(stages >= 2 && epilogue_bytes <= 99 * 1024);
};
template <QuantFormat format> using SmallTile = Tile<format, 2, 1, 1, 8, 1>;   ///< (32, 32), 256 of the depth a stage
template <QuantFormat format> using MediumTile = Tile<format, 2, 1, 2, 4, 2>;  ///< (32, 64), 256
/// (64, 128), 64: with sums of blocks, which take registers too, by twice as many warps.
template <QuantFormat format> using LargeTile = Tile<format, has_blocks(format) ? 2 : 4, has_blocks(format) ? 2 : 1, 4, 1, 2>;

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

/// Byte offsets of the rows of even and of odd channels within their first word: 0 or 2. Blocks begin at even addresses.
struct Shifts {
  unsigned even, odd;
  __device__ __forceinline__ unsigned of(int channel) const { return channel % 2 ? odd : even; }
};

/// Copies eight elements of each of some rows, of which the first `left` exist and the others are zeros, if rows are not aligned. Slow, and
/// therefore out of line.
template <class T>
__device__ __noinline__ void store_elements(unsigned to, unsigned to_step, const T* from, std::int64_t from_step, int rows,
                                            std::int64_t left) {
#pragma unroll 1
  for (int i = 0; i < rows * 8; ++i)
    store_shared(to + i / 8 * to_step + i % 8 * 2, static_cast<std::uint16_t>(i % 8 < left ? from[i / 8 * from_step + i % 8].bits : 0u));
}

/// Loads the stages of a block's tile by cp.async. A thread copies the same column of every few rows, so that its addresses are computed
/// once. Rows and channels out of bounds are not written, because no element of y depends on them; the depth is padded with zeros.
template <class S, class T>
class StageLoader {
  static constexpr int vectors = S::depth / 8, x_rows = S::threads / vectors;
  static constexpr int header = S::by_blocks ? 0 : 4;  ///< bytes of the row's scale
  static_assert(x_rows % 8 == 0);                      // rows of one swizzle period

 public:
  __device__ __forceinline__ StageLoader(const Problem<T>& p, std::int64_t first_row, std::int64_t first_channel, Shifts shifts)
      : p_(p),
        row_(first_row + threadIdx.x / vectors),
        x_to_(SharedTile<S::depth>::offset(threadIdx.x / vectors, threadIdx.x % vectors)),
        channels_(static_cast<int>(min(p.w.out - first_channel, std::int64_t(S::columns)))) {
    place(threadIdx.x / S::main_words, threadIdx.x % S::main_words, first_channel, shifts, codes_, codes_to_, codes_left_);
    if constexpr (S::tail_words > 0)
      place(threadIdx.x / S::tail_words, S::main_words + threadIdx.x % S::tail_words, first_channel, shifts, tail_, tail_to_, tail_left_);
  }

  __device__ __forceinline__ void operator()(int step, unsigned stage) const {
    load_x(stage, std::int64_t(step) * S::depth);
    load_words<S::main_words>(codes_, codes_left_, step * S::row_step, stage + S::x_bytes + codes_to_);
    if constexpr (S::tail_words > 0) load_words<S::tail_words>(tail_, tail_left_, step * S::row_step, stage + S::x_bytes + tail_to_);
  }

 private:
  /// Position of a word of row n in the first stage, and the number of the row's bytes from there on. A word that is partly in the row is
  /// read as a whole.
  __device__ __forceinline__ void place(int n, int word, std::int64_t first_channel, Shifts shifts, const std::uint8_t*& from, unsigned& to,
                                        int& left) const {
    const int at = header + 4 * word - static_cast<int>(shifts.of(n));
    from = p_.w.row(first_channel + n) + at;
    to = n * S::pitch + 4 * word;
    left = static_cast<int>(p_.w.bytes) - at;
  }
  /// Copies the thread's word of every `step`-th row, from byte `first` of the row's codes on.
  template <int words>
  __device__ __forceinline__ void load_words(const std::uint8_t* from, int left, int first, unsigned to) const {
    constexpr int step = S::threads / words / 2 * 2;
    if (threadIdx.x >= step * words) return;
#pragma unroll
    for (int n = 0; n < S::columns; n += step)
      if (static_cast<int>(threadIdx.x / words) + n < channels_)
        cp_async<4>(to + n * S::pitch, from + first + n * p_.w.bytes, first < left);
  }
  __device__ __forceinline__ void load_x(unsigned stage, std::int64_t k) const {
    const std::int64_t column = k + threadIdx.x % vectors * 8;
    const T* from = p_.x + row_ * p_.x_stride + column;
    const bool is_there = column < p_.w.in;
    if (!p_.has_vectors) {
      const auto there = static_cast<int>(max(std::int64_t{0}, min(ceil_div(p_.rows - row_, x_rows), std::int64_t(S::rows / x_rows))));
      return store_elements(stage + x_to_, x_rows * SharedTile<S::depth>::row_bytes, from, x_rows * p_.x_stride, there, p_.w.in - column);
    }
#pragma unroll
    for (int i = 0; i < S::rows / x_rows; ++i, from += x_rows * p_.x_stride)
      if (row_ + i * x_rows < p_.rows) cp_async<16>(stage + x_to_ + i * x_rows * SharedTile<S::depth>::row_bytes, from, is_there);
  }

  const Problem<T>& p_;
  std::int64_t row_;
  unsigned x_to_, codes_to_, tail_to_;
  int channels_;
  const std::uint8_t *codes_, *tail_;
  int codes_left_, tail_left_;
};

/// Two fragments b (16, 8): the codes of a chunk of the depth for 8 channels as 16-bit floats. `chunk_of_row` is the address for the lane's
/// channel.
template <class S, class T>
__device__ __forceinline__ void load_b(unsigned (&b)[2][2], unsigned chunk_of_row) {
  const unsigned at = chunk_of_row + (S::by_blocks ? 2 : 0) + 2 * MmaLanes::member();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if constexpr (S::format == QuantFormat::q4_0) {
      const unsigned codes = load_shared<std::uint16_t>(at + 8 * half);  // low nibbles: the first 16 of the depth, high ones: the others
      b[0][half] = four_bit_pair<T>(codes);
      b[1][half] = four_bit_pair<T>(codes >> 4);
    } else {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const unsigned codes = load_shared<std::uint16_t>(at + 16 * k + 8 * half);
        b[k][half] = code_pair<T>(S::format == QuantFormat::q8_0 ? codes ^ 0x8080u : codes);
      }
    }
  }
}

/// sums += x (warp rows, 32) codes (32, warp columns) for a chunk of a stage.
template <class S, class T>
__device__ __forceinline__ void multiply_chunk(typename S::Sums& sums, unsigned stage, int warp_row, int warp_column, int which,
                                               Shifts shifts) {
  using Sums = typename S::Sums;
  const OperandA<S::depth> x(stage, warp_row, which * (chunk / 8));
  const unsigned codes = stage + S::x_bytes + which * S::chunk_bytes + warp_column * S::pitch;
  unsigned b[Sums::column_tiles][2][2];
  float scales[Sums::column_tiles][2];
#pragma unroll
  for (int n = 0; n < Sums::column_tiles; ++n) {
    const int channel = n * 8 + MmaLanes::group();
    load_b<S, T>(b[n], codes + channel * S::pitch + shifts.of(channel));
    if constexpr (S::by_blocks)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        scales[n][i] = convert<float>(load_shared<f16>(codes + (n * 8 + 2 * MmaLanes::member() + i) * S::pitch + shifts.of(i)));
  }
#pragma unroll
  for (int m = 0; m < Sums::row_tiles; ++m) {
    unsigned a[2][4];
#pragma unroll
    for (int k = 0; k < 2; ++k) x.template load<T>(a[k], m, k);
    float block[Sums::column_tiles][4] = {};
#pragma unroll
    for (int k = 0; k < 2; ++k)
#pragma unroll
      for (int n = 0; n < Sums::column_tiles; ++n)
        mma_m16n8k16<T>(S::by_blocks ? block[n] : sums.values[m][n], a[k], b[n][k][0], b[n][k][1]);
    if constexpr (S::by_blocks)
#pragma unroll
      for (int n = 0; n < Sums::column_tiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) sums.values[m][n][e] += scales[n][e % 2] * block[n][e];
  }
}

/// Stores two adjacent elements of y, from an even channel on, if they are within bounds.
template <class T>
__device__ __forceinline__ void store_pair(const Problem<T>& p, std::int64_t row, std::int64_t channel, unsigned pair) {
  if (row >= p.rows || channel >= p.w.out) return;
  T* const to = p.y + row * p.w.out + channel;
  if (p.w.out % 2 == 0) {
    *reinterpret_cast<unsigned*>(to) = pair;
  } else {
    to[0].bits = static_cast<std::uint16_t>(pair);
    if (channel + 1 < p.w.out) to[1].bits = static_cast<std::uint16_t>(pair >> 16);
  }
}

/// Epilogue: applies scales and bias to a lane's sums. A warp with few of them stores pairs; a whole tile goes through shared memory and is
/// stored in vectors.
template <class S, class T>
class Epilogue {
 public:
  /// The lane's first row and channel of y, and their address in shared memory.
  __device__ __forceinline__ Epilogue(const Problem<T>& p, std::int64_t first_row, std::int64_t first_channel, unsigned to)
      : p_(p),
        row_(first_row + MmaLanes::group()),
        channel_(first_channel + 2 * MmaLanes::member()),
        to_(to + MmaLanes::group() * S::y_pitch + MmaLanes::member() * 4) {}

  /// Loads the scales and biases.
  __device__ __forceinline__ void load() {
#pragma unroll
    for (int n = 0; n < S::own_columns; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const std::int64_t channel = channel_ + n * 8 + i;
        const bool is_there = channel < p_.w.out;
        scale_[n][i] = !S::by_blocks && is_there ? row_scale(p_.w.row(channel)) : 1.0f;
        bias_[n][i] = p_.bias && is_there ? convert<float>(p_.bias[channel * p_.bias_stride]) : 0.0f;
      }
  }

  /// Writes y of a fragment, `row` rows and `n` fragments after the first.
  __device__ __forceinline__ void write(const float (&sums)[4], int row, int n) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const unsigned pair = pack_pair<T>(scale_[n][0] * sums[2 * half] + bias_[n][0], scale_[n][1] * sums[2 * half + 1] + bias_[n][1]);
      if constexpr (S::warps_k > 1) store_pair(p_, row_ + row + half * 8, channel_ + n * 8, pair);
      else store_shared(to_ + (row + half * 8) * S::y_pitch + n * 16, pair);
    }
  }

 private:
  const Problem<T>& p_;
  std::int64_t row_, channel_;
  unsigned to_;
  float scale_[S::own_columns][2], bias_[S::own_columns][2];
};

/// Stores a block's tile of y.
template <class S, class T>
__device__ __forceinline__ void store_tile(const Problem<T>& p, std::int64_t first_row, std::int64_t first_channel, unsigned tile) {
  constexpr int vectors = S::columns / 8, pairs = S::columns / 2;
  if (p.w.out % 8 == 0 && reinterpret_cast<std::uintptr_t>(p.y) % 16 == 0) {
#pragma unroll
    for (int v = threadIdx.x; v < S::rows * vectors; v += S::threads) {
      const std::int64_t row = first_row + v / vectors, channel = first_channel + v % vectors * 8;
      if (row < p.rows && channel < p.w.out)
        *reinterpret_cast<float4*>(p.y + row * p.w.out + channel) = load_shared<float4>(tile + v / vectors * S::y_pitch + v % vectors * 16);
    }
  } else {
#pragma unroll 4
    for (int v = threadIdx.x; v < S::rows * pairs; v += S::threads)
      store_pair(p, first_row + v / pairs, first_channel + v % pairs * 2,
                 load_shared<unsigned>(tile + v / pairs * S::y_pitch + v % pairs * 4));
  }
}

template <class T, class S>
__global__ void __launch_bounds__(S::threads, 512 / S::threads) quantized_gemm_kernel(const __grid_constant__ Problem<T> p) {
  using Sums = typename S::Sums;
  extern __shared__ __align__(128) unsigned char memory[];
  const unsigned shared = shared_address(memory);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_k = warp % S::warps_k, tile = warp / S::warps_k;
  const int warp_row = tile % S::warps_m * S::warp_rows, warp_column = tile / S::warps_m * S::warp_columns;
  const std::int64_t first_row = std::int64_t(blockIdx.y) * S::rows, first_channel = std::int64_t(blockIdx.x) * S::columns;
  // The fragments of the warp tile that this warp writes.
  const int own_first = warp_k * S::own_fragments, own_row = warp_row + own_first / Sums::column_tiles * 16,
            own_column = warp_column + own_first % Sums::column_tiles * 8;
  const auto first_byte = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(p.w.row(first_channel)));
  const Shifts shifts{S::by_blocks ? first_byte & 2 : 0, S::by_blocks ? first_byte + static_cast<unsigned>(p.w.bytes) & 2 : 0};
  const StageLoader<S, T> load_stage(p, first_row, first_channel, shifts);

  grid_dependency_wait();  // the previous kernel may still be writing x
  Epilogue<S, T> epilogue(p, first_row + own_row, first_channel + own_column, shared + own_row * S::y_pitch + own_column * 2);
  if constexpr (S::warps_k > 1)
    epilogue.load();  // a short product could not hide their latency later; a large tile has no registers for them

  Sums sums{};
  const int steps = static_cast<int>(ceil_div(p.w.in, S::depth));
#pragma unroll 1
  for (int ahead = 0; ahead < steps + S::stages - 1;
       ++ahead) {  // one loop for prologue and steps: it runs only a few times, and its code must be fetched, too
    const int step = ahead - (S::stages - 1);
    if (step >= 0) {
      cp_async_wait<S::stages - 2>();
      __syncthreads();  // the stage is full, and the previous one is empty
    }
    if (ahead < steps) load_stage(ahead, shared + ahead % S::stages * S::stage_bytes);
    cp_async_commit();
    if (step < 0) continue;
    const unsigned stage = shared + step % S::stages * S::stage_bytes;
#pragma unroll
    for (int c = 0; c < S::chunks; ++c) multiply_chunk<S, T>(sums, stage, warp_row, warp_column, warp_k * S::chunks + c, shifts);
  }

  __syncthreads();  // no stage is being read
  if constexpr (S::warps_k > 1) {
    auto* const partial = reinterpret_cast<float4*>(memory) + tile * S::warps_k * S::fragments * 32;
#pragma unroll
    for (int f = 0; f < S::fragments; ++f) {
      const float (&from)[4] = sums.values[f / Sums::column_tiles][f % Sums::column_tiles];
      partial[(warp_k * S::fragments + f) * 32 + lane] = {from[0], from[1], from[2], from[3]};
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < S::own_fragments; ++i) {
      float total[4] = {};
#pragma unroll
      for (int k = 0; k < S::warps_k; ++k) {
        const float4 part = partial[(k * S::fragments + own_first + i) * 32 + lane];
        total[0] += part.x, total[1] += part.y, total[2] += part.z, total[3] += part.w;
      }
      epilogue.write(total, i / Sums::column_tiles * 16, i % S::own_columns);
    }
  } else {
    epilogue.load();
#pragma unroll
    for (int m = 0; m < Sums::row_tiles; ++m)
#pragma unroll
      for (int n = 0; n < Sums::column_tiles; ++n) epilogue.write(sums.values[m][n], m * 16, n);
    __syncthreads();
    store_tile<S>(p, first_row, first_channel, shared);
  }
}

template <class S, class T>
void launch_tile(const Problem<T>& p, Stream stream) {
  const auto tiles = [](std::int64_t count, int size) { return static_cast<unsigned>(ceil_div(count, size)); };
  const std::int64_t steps = std::clamp<std::int64_t>(ceil_div(p.w.in, S::depth), 1, S::stages);
  launch(quantized_gemm_kernel<T, S>,
         LaunchConfig{.grid = {tiles(p.w.out, S::columns), tiles(p.rows, S::rows)},
                      .block = S::threads,
                      .shared = std::max<std::size_t>(steps * S::stage_bytes, S::epilogue_bytes),
                      .stream = stream,
                      .overlaps_previous = true},
         p);
}

/// Small tiles as long as all of them run at once, large ones once they fill most of the device. The bounds are in tiles per
/// multiprocessor.
template <QuantFormat format, class T>
void launch_fitting(const Problem<T>& p, Stream stream) {
  const std::int64_t multiprocessors = attribute(cudaDevAttrMultiProcessorCount, stream.device);
  const auto blocks = [&]<class S>() { return ceil_div(p.rows, S::rows) * ceil_div(p.w.out, S::columns); };
  if (blocks.template operator()<SmallTile<format>>() <= multiprocessors) launch_tile<SmallTile<format>>(p, stream);
  else if (5 * blocks.template operator()<LargeTile<format>>() < 3 * multiprocessors) launch_tile<MediumTile<format>>(p, stream);
  else launch_tile<LargeTile<format>>(p, stream);
}

/// y = x @ w transposed + bias of 16-bit x and y.
void quantized_gemm(const View& x, const QuantizedRows& w, const View& bias, const View& y) {
  dispatch_halves(y.dtype, [&]<class T>() {
    const Problem<T> p{.w = w,
                       .x = x.as<const T>(),
                       .x_stride = x.strides[0],
                       .rows = x.shape[0],
                       .bias = bias.as<const T>(),
                       .bias_stride = bias.data ? bias.strides[0] : 0,
                       .y = y.as<T>(),
                       .has_vectors = is_aligned(x.data, 16) && x.strides[0] % 8 == 0 && w.in % 8 == 0};
    if (w.format == QuantFormat::q8_0) launch_fitting<QuantFormat::q8_0>(p, y.stream);
    else if (w.format == QuantFormat::q4_0) launch_fitting<QuantFormat::q4_0>(p, y.stream);
    else launch_fitting<QuantFormat::int8>(p, y.stream);
  });
}

}  // namespace

bool has_quantized_linear(Cuda, const View& x) { return x.shape[0] <= max_rows || size_of(x.dtype) == 2; }

void QuantizedLinear::run(Cuda) const {
  if (y.numel() == 0) return;
  backend::count_flops(2 * static_cast<double>(y.numel()) * static_cast<double>(w.in), true);
  if (x.shape[0] > max_rows) return quantized_gemm(x, w, bias, y);
  dispatch_floats(y.dtype, "quantized_linear", [&]<class T>() {
    if constexpr (!std::is_same_v<T, double>) {
      const auto rows = static_cast<int>(x.shape[0]);
      const auto start = [&](auto kernel) {
        launch(kernel, blocks_for(w.out, warps), block_size, 0, y.stream, w, x.as<const T>(), x.strides[0], bias.as<const T>(),
               bias.data ? bias.strides[0] : 0, y.as<T>(), rows);
      };
      if (rows == 1) start(multiply_rows<T, 1>);
      else if (rows <= 4) start(multiply_rows<T, 4>);
      else start(multiply_rows<T, max_rows>);
    }
  });
}

void Dequantize::run(Cuda) const {
  if (y.numel() == 0) return;
  dispatch_floats(y.dtype, "dequantize", [&]<class T>() {
    launch(write_values<T>, blocks_for(y.numel()), block_size, 0, y.stream, w, ids.as<const std::int64_t>(), y.numel(), y.as<T>());
  });
}

}  // namespace tern::kernels
