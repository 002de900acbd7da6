#pragma once
#include "cuda/device/async_copy.cuh"
#include "cuda/device/fragment.cuh"
#include "cuda/device/vec16.cuh"
#include "cuda/runtime/allocator.h"
#include "cuda/runtime/dispatch.h"
#include "cuda/runtime/launch.h"
#include "ops/kernels/recurrence.h"

// Linear recurrence in chunks of 64 tokens by mma.sync, common to both passes. Heads of up to 64 channels are padded with zeros to 64, so
// that every operand of a chunk is a tile (64, 64) of 16-bit numbers in shared memory. Accumulators, decays and the state that is carried
// are float32; states at the starts of chunks are stored in 16 bits, as the operands that they are.
//
// Note [Chunked form]: with P_i the decay from a chunk's start to token i, its own included, R_ij that of the tokens j + 1 .. i, and S the
// state at the chunk's start,
//
//     y_i = (q_i P_i) S + sum over j <= i of (q_i R_ij k_j) u_j        u_i = v_i, or for the delta rule the solution of
//     S'  = P_C S + sum over j of (R_Cj k_j)^T u_j                     u_i = beta_i (v_i - (k_i P_i) S - sum over j < i of (k_i R_ij k_j)
//     u_j).
//
// That system has the matrix I + M, M strictly lower triangular (the UT transform of Yang et al., 2024), whose inverse X does not depend on
// S: u = X (beta v) - X (beta k P) S. Only S goes from chunk to chunk. Factors are exponentials of sums of logarithms over tokens that
// follow one another, at most 0: none overflows, and a decay of 0 (-inf) gives no NaN.
//
//   forward                                       backward
//   head_rates     sums of decays, beta           head_rates
//   solve_chunks   X = (I + M)^-1   (beta)        solve_chunks     X, and A^T dy   (beta)
//   walk           states S of all chunks         walk             S, and dS from the last chunk to the first
//   or delta_walk  S, and u         (beta)        or delta_walk, then delta_walk_back: dS, and the gradient z of X^-1 u
//   outputs        y, from S and u                gradients        all of a chunk's, from S, dS, u and z
//
// A walk goes from chunk to chunk, in parallel over heads and blocks of value channels; all other kernels take a chunk a block.
//
// Note [Hats]: with a decay for each key channel, products within a chunk are (q e^r) (k e^-r)^T, where r is the sum of the logarithms
// from the chunk's middle to a token. In these coordinates there is no decay: e^-r and the sums from the middle to the ends go into the
// state and its gradient. In a half chunk of which r is beyond hat_limit, where e^r would leave the range of T, the products are computed
// pair by pair, from r_i - r_j <= 0: slower, and rare.
namespace tern::gpu::recurrence {

inline constexpr int chunk = 64, width = 64, threads = 128, state_size = width * width;
inline constexpr int tile_bytes = SharedTile<width>::bytes(chunk);
/// A block of value channels of a walk.
inline constexpr int value_tile = 32, value_tile_bytes = SharedTile<value_tile>::bytes(chunk);
/// Logarithms are at least this: e to it is 0, while sums and differences of 64 of them keep their accuracy.
inline constexpr float lowest_log = -128;
/// A row of decays in shared memory, of 64 floats: padded, so that fragments are read with few bank conflicts.
inline constexpr int decay_stride = 68, decay_bytes = chunk * decay_stride * 4;
/// Numbers that head_rates stores for a chunk: sums of the logarithms up to each token, and beta, 0 after the last token.
inline constexpr int rates_size = 2 * chunk;
template <class T>
inline constexpr float hat_limit = std::is_same_v<T, bf16> ? 80.f : 8.f;

enum class Kind { head, channel, delta };  ///< decay of a head (or none) or of each key channel; the delta rule, of a head

/// (B, T, H, D) in global memory, D contiguous.
struct Rows {
  void* data = nullptr;
  std::int64_t batch = 0, token = 0, head = 0;

  Rows() = default;
  explicit Rows(const View& x) : data(x.data) {
    if (data) batch = x.strides[0], token = x.strides[1], head = x.strides[2];
  }
};

/// Sizes of a call, and its decay: (B, T, H) floats, or (B, T, H, Dk) floats or T.
struct Sizes {
  int tokens, heads, keys, values, chunks;  ///< keys and values: channels
  Rows decay;
  bool decay_is_f32;
};

/// A chunk of a head.
struct Place {
  int sequence, batch, head, index, first, count;  ///< sequence: the head, counted over the batch; tokens from `first` on

  __device__ __forceinline__ Place(const Sizes& sizes, int sequence_, int index_)
      : sequence(sequence_),
        batch(sequence_ / sizes.heads),
        head(sequence_ % sizes.heads),
        index(index_),
        first(index_ * chunk),
        count(min(sizes.tokens - index_ * chunk, chunk)) {}
  /// The chunk of this block, of a grid of all.
  static __device__ __forceinline__ Place of_block(const Sizes& sizes) {
    return Place(sizes, blockIdx.x / sizes.chunks, blockIdx.x % sizes.chunks);
  }
  /// Its rows, from its first token on.
  template <class U>
  __device__ __forceinline__ U* rows(const Rows& x) const {
    return static_cast<U*>(x.data) + batch * x.batch + first * x.token + head * x.head;
  }
  /// Its tile of memory with `size` elements for each chunk.
  template <class U>
  __device__ __forceinline__ U* tile(U* all, const Sizes& sizes, int size = state_size) const {
    return all + (std::int64_t(sequence) * sizes.chunks + index) * size;
  }
};

__device__ __forceinline__ int warp() { return threadIdx.x / 32; }

/// Starts to copy `rows` rows of `columns` elements, a multiple of 8, to a tile (64, columns_), with zeros elsewhere.
template <int columns_, class T>
__device__ __forceinline__ void load_tile(unsigned to, const T* from, std::int64_t stride, int rows, int columns) {
  using Tile = SharedTile<columns_>;
  constexpr int step = threads / Tile::chunks;
  const int row = threadIdx.x / Tile::chunks, piece = threadIdx.x % Tile::chunks;
#pragma unroll
  for (int i = 0; i < chunk / step; ++i) {
    const int at = row + i * step;
    const bool is_there = at < rows && piece * 8 < columns;
    cp_async<16>(to + Tile::offset(at, piece), is_there ? from + at * stride + piece * 8 : from, is_there);
  }
}
template <class T>
__device__ __forceinline__ void load_tile(unsigned to, const T* from) {
  load_tile<width>(to, from, width, chunk, width);
}
/// The same for a chunk's rates, and for the decays of its key channels, floats or T.
__device__ __forceinline__ void load_rates(unsigned to, const float* from) {
  if (threadIdx.x < rates_size / 4) cp_async<16>(to + threadIdx.x * 16, from + threadIdx.x * 4);
}
template <class T>
__device__ __forceinline__ void load_decays(unsigned to, const Sizes& sizes, const Place& at, int row_bytes = decay_stride * 4) {
  const int pieces = sizes.decay_is_f32 ? 16 : 8, size = sizes.decay_is_f32 ? 4 : 8;  // of 16 bytes in a row, and elements in a piece
  for (int i = threadIdx.x; i < chunk * pieces; i += threads) {
    const int row = i / pieces, piece = i % pieces;
    const bool is_there = row < at.count && piece * size < sizes.keys;
    const std::int64_t from = is_there ? row * sizes.decay.token + piece * size : 0;
    const void* const source = sizes.decay_is_f32 ? static_cast<const void*>(at.rows<const float>(sizes.decay) + from)
                                                  : static_cast<const void*>(at.rows<const T>(sizes.decay) + from);
    cp_async<16>(to + row * row_bytes + piece * 16, source, is_there);
  }
}

__device__ __forceinline__ float bounded_log(float x) { return x < lowest_log ? lowest_log : x; }

/// Address of channels 2 lane and 2 lane + 1 of a row of a tile.
__device__ __forceinline__ unsigned pair_address(unsigned tile, int row) {
  const int lane = threadIdx.x % 32;
  return tile + SharedTile<width>::offset(row, lane / 4) + lane % 4 * 4;
}
template <class T>
__device__ __forceinline__ unsigned scaled_pair(unsigned pair, float first, float second) {
  float x, y;
  unpack_pair<T>(pair, x, y);
  return pack_pair<T>(x * first, y * second);
}
template <class T>
__device__ __forceinline__ void scale_pair(unsigned address, float first, float second) {
  store_shared(address, scaled_pair<T>(load_shared<unsigned>(address), first, second));
}
/// The lane's pairs of the warp's 16 rows of a tile: all are loaded before the first is stored, for the compiler keeps that order.
struct RowPairs {
  unsigned values[16];

  __device__ __forceinline__ void load(unsigned tile) {
#pragma unroll
    for (int i = 0; i < 16; ++i) values[i] = load_shared<unsigned>(pair_address(tile, warp() * 16 + i));
  }
};
/// Multiplies the rows of a tile: two threads a row.
template <class T, int columns_, class F>
__device__ __forceinline__ void scale_tile(unsigned tile, F&& factor) {
  constexpr int pieces = columns_ / 16;
  const int row = threadIdx.x / 2;
  const float by = factor(row);
#pragma unroll
  for (int i = 0; i < pieces; ++i) {
    const unsigned at = tile + SharedTile<columns_>::offset(row, threadIdx.x % 2 * pieces + i);
    float x[8];
    unpack<T>(load_shared<uint4>(at), x);
#pragma unroll
    for (float& e : x) e *= by;
    store_shared(at, pack<T>(x));
  }
}

/// Logarithms of a chunk's decays as a thread takes them: channels 2 lane and 2 lane + 1 of the 16 tokens of its warp, a quarter of the
/// chunk. `totals` (4, 64) gets the sums of the quarters.
struct ChannelLogs {
  float x[16][2];

  template <class T>
  __device__ __forceinline__ void load(unsigned decays, bool is_f32, float* totals, int row_bytes = decay_stride * 4) {
    const int lane = threadIdx.x % 32;
    float sums[2] = {};
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const unsigned row = decays + (warp() * 16 + i) * row_bytes;
      if (is_f32) {
        const float2 both = load_shared<float2>(row + lane * 8);
        x[i][0] = both.x, x[i][1] = both.y;
      } else {
        unpack_pair<T>(load_shared<unsigned>(row + lane * 4), x[i][0], x[i][1]);
      }
#pragma unroll
      for (int e = 0; e < 2; ++e) sums[e] += x[i][e] = bounded_log(x[i][e]);
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) totals[warp() * width + lane * 2 + e] = sums[e];
  }
};
/// Sum of a channel's logarithms over the quarters from `first` to before `last`.
__device__ __forceinline__ float quarters(const float* totals, int channel, int first, int last) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (i >= first && i < last) sum += totals[i * width + channel];
  return sum;
}

/// Multiplies the first `pairs` pairs of column tiles, for which a product of a lower triangular matrix is wanted.
template <class T, int depth, class P>
__device__ __forceinline__ void mma_columns(P product, int pairs) {
#pragma unroll
  for (int k = 0; k < depth / 16; ++k) {
    product.template load_a<T>(k);
#pragma unroll
    for (int n = 0; n < P::column_pairs; ++n)
      if (n < pairs) product.template step<T>(n, k);
  }
}
/// Multiplies over the steps of the depth from `first` to before `last`: all others have zeros.
template <class T, int depth, class P>
__device__ __forceinline__ void mma_depths(P product, int first, int last) {
#pragma unroll
  for (int k = 0; k < depth / 16; ++k)
    if (k >= first && k < last) {
      product.template load_a<T>(k);
#pragma unroll
      for (int n = 0; n < P::column_pairs; ++n) product.template step<T>(n, k);
    }
}

/// Writes a warp's 16 rows, of a tile whose rows are `stride` apart, in 16 bits: those before `rows`, elements before `columns`.
template <class T, int columns_>
__device__ __forceinline__ void write_rows(const FragmentTile<16, columns_>& x, T* to, std::int64_t stride, int rows, int columns) {
#pragma unroll
  for (int r = 0; r < 2; ++r)
    if (const int row = warp() * 16 + x.row_of(r); row < rows) x.template store_row<T>(r, 1.f, to + row * stride, 0, columns);
}
/// Writes it to a tile in shared memory, rounded.
template <class T, int columns_>
__device__ __forceinline__ void store_tile(const FragmentTile<16, columns_>& x, unsigned tile) {
  RegisterOperand<16, columns_> rounded;
  rounded.template assign<T>(x);
  rounded.template store<columns_>(tile, warp() * 16, 0);
}
/// Elements (row, column) and (row, column + 1), of an even column, of a tile of 16-bit numbers.
template <class T, int columns_>
__device__ __forceinline__ float2 read_tile(unsigned tile, int row, int column) {
  float2 result;
  unpack_pair<T>(load_shared<unsigned>(tile + SharedTile<columns_>::offset(row, column / 8) + column % 8 * 2), result.x, result.y);
  return result;
}
/// x times the same elements of a tile, summed over the row: for each of the lane's two rows.
template <class T>
__device__ __forceinline__ void row_products(const FragmentTile<16, width>& x, unsigned tile, float (&sums)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    sums[r] = 0;
#pragma unroll
    for (int c = 0; c < x.lane_columns; c += 2) {
      const float2 y = read_tile<T, width>(tile, warp() * 16 + x.row_of(r), x.column_of(c));
      sums[r] += x.at(r, c) * y.x + x.at(r, c + 1) * y.y;
    }
    sums[r] = x.combine_sum(sums[r]);
  }
}
template <class F>
__device__ __forceinline__ void scale_rows(F& x, const float (&by)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) x.scale_row(r, by[r]);
}

/// Decays of the lane's two rows and of columns of a product (64, 64) of a chunk with a decay of the head.
struct HeadDecay {
  const float* sums;
  /// R_ij for j <= i, else 0.
  __device__ __forceinline__ float ratio(int i, int j) const { return j <= i ? exp_approx(sums[i] - sums[j]) : 0; }
  __device__ __forceinline__ float from_start(int i) const { return exp_approx(sums[i]); }
  __device__ __forceinline__ float to_end(int i) const { return exp_approx(sums[chunk - 1] - sums[i]); }
  __device__ __forceinline__ float whole() const { return exp_approx(sums[chunk - 1]); }
};

/// Prepares a chunk with a decay for each key channel: replaces the decays in shared memory by r, the sums from the chunk's middle, and if
/// they allow it, q and k by their hats, and the rows of the states S and dS by those with the decay from the start to the middle and from
/// the middle to the end. Returns true if they do not: r are then the sums from the chunk's start, and the tiles are as they were.
/// Tile 0: absent. With barriers; the tiles are there before, and the caller needs one more after it.
template <class T>
__device__ __forceinline__ bool put_hats(unsigned decays, bool is_f32, float* totals, unsigned q, unsigned k, unsigned state,
                                         unsigned dstate) {
  const int lane = threadIdx.x % 32, quarter = warp();
  ChannelLogs logs;
  logs.load<T>(decays, is_f32, totals);
  __syncthreads();
  float halves[2][2];
  bool is_strong = false;
#pragma unroll
  for (int e = 0; e < 2; ++e)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      halves[half][e] = quarters(totals, lane * 2 + e, half * 2, half * 2 + 2);
      is_strong = is_strong || !(halves[half][e] >= -hat_limit<T>);
    }
  is_strong = __syncthreads_or(is_strong);
  RowPairs queries, keys;
  queries.load(q);
  keys.load(k);
  float sums[2];
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int channel = lane * 2 + e;
    if (is_strong) sums[e] = quarters(totals, channel, 0, quarter);
    else sums[e] = quarter < 2 ? -quarters(totals, channel, quarter, 2) : quarters(totals, channel, 2, quarter);
  }
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int row = quarter * 16 + i;
#pragma unroll
    for (int e = 0; e < 2; ++e) sums[e] += logs.x[i][e];
    store_shared(decays + (row * decay_stride + lane * 2) * 4, float2{sums[0], sums[1]});
    if (!is_strong) {
      store_shared(pair_address(q, row), scaled_pair<T>(queries.values[i], exp_approx(sums[0]), exp_approx(sums[1])));
      store_shared(pair_address(k, row), scaled_pair<T>(keys.values[i], exp_approx(-sums[0]), exp_approx(-sums[1])));
    }
  }
  if (is_strong) return true;
  // Rows of states are key channels.
  if (state) scale_tile<T, width>(state, [&](int row) { return exp_approx(quarters(totals, row, 0, 2)); });
  if (dstate) scale_tile<T, width>(dstate, [&](int row) { return exp_approx(quarters(totals, row, 2, 4)); });
  return false;
}

/// For a chunk with strong decays, r from its start: writes q_i e^(r_i - r_j) k_j to a tile, which may be that of q or k, 0 for j > i. With
/// a barrier.
template <class T>
__device__ __forceinline__ void multiply_pairs(unsigned to, unsigned q, unsigned k, unsigned decays) {
  const int i = threadIdx.x / 2;
  T sums[chunk / 2];
#pragma unroll 1
  for (int j = threadIdx.x % 2; j < chunk; j += 2) {
    float sum = 0;
    if (j <= i)
      for (int d = 0; d < width; d += 2) {
        const float2 x = read_tile<T, width>(q, i, d), y = read_tile<T, width>(k, j, d);
        const float2 later = load_shared<float2>(decays + (i * decay_stride + d) * 4),
                     earlier = load_shared<float2>(decays + (j * decay_stride + d) * 4);
        sum += x.x * y.x * exp_approx(later.x - earlier.x) + x.y * y.y * exp_approx(later.y - earlier.y);
      }
    sums[j / 2] = convert<T>(sum);
  }
  __syncthreads();
#pragma unroll 1
  for (int j = threadIdx.x % 2; j < chunk; j += 2) store_shared(to + SharedTile<width>::offset(i, j / 8) + j % 8 * 2, sums[j / 2]);
}
/// Multiplies the rows of a tile by e^r, from the chunk's start.
template <class T>
__device__ __forceinline__ void decay_rows(unsigned tile, unsigned decays) {
  for (int i = 0; i < 16; ++i) {
    const int row = warp() * 16 + i;
    const float2 r = load_shared<float2>(decays + (row * decay_stride + threadIdx.x % 32 * 2) * 4);
    scale_pair<T>(pair_address(tile, row), exp_approx(r.x), exp_approx(r.y));
  }
}

// A block of a walk has a head's state for a tile of value channels, a warp 16 key channels of it, in registers.

using State = FragmentTile<16, value_tile>;

__device__ __forceinline__ void load_state(State& s, const float* from, const Sizes& sizes, int sequence, int first) {
  s.for_each(s.column_tiles, [&](float& e, int r, int c) {
    const int row = warp() * 16 + s.row_of(r), column = first + s.column_of(c);
    e = from && row < sizes.keys && column < sizes.values ? from[(std::int64_t(sequence) * sizes.keys + row) * sizes.values + column] : 0;
  });
}
__device__ __forceinline__ void write_state(State& s, float* to, const Sizes& sizes, int sequence, int first) {
  if (!to) return;
  s.for_each(s.column_tiles, [&](float& e, int r, int c) {
    const int row = warp() * 16 + s.row_of(r), column = first + s.column_of(c);
    if (row < sizes.keys && column < sizes.values) to[(std::int64_t(sequence) * sizes.keys + row) * sizes.values + column] = e;
  });
}

/// One way through the chunks, from the first to the last: S = (decay of the chunk) S + left^T right, of rows of left and right that decay
/// from their token to the end. Or from the last to the first, for the gradient of S: rows decay from the start to their token.
struct Walk {
  Rows left, right;
  const float* initial;  ///< (B, H, Dk, Dv), or null
  float* last;           ///< the same, or null
  void* states;          ///< those at the beginning of each step, (B H, chunks, 64, 64)
  bool is_reversed;
};

/// Memory of a call in which a head's chunks have `size` elements each.
template <class U>
Workspace chunk_memory(const Sizes& sizes, std::int64_t sequences, int size, Stream stream) {
  return Workspace(static_cast<std::size_t>(sequences * sizes.chunks * size) * sizeof(U), stream);
}

/// Kernels of both passes (chunked_forward.cu).
struct Call {
  Sizes sizes;
  std::int64_t sequences;
  Stream stream;
  DType dtype;
  Rows q, k, v;

  template <class Kernel>
  explicit Call(const Kernel& a)
      : sizes{static_cast<int>(a.q.shape[1]),
              static_cast<int>(a.q.shape[2]),
              static_cast<int>(a.q.shape[3]),
              static_cast<int>(a.v.shape[3]),
              static_cast<int>(ceil_div(a.q.shape[1], std::int64_t(chunk))),
              Rows(a.log_decay),
              a.log_decay.dtype == DType::f32},
        sequences(a.q.shape[0] * a.q.shape[2]),
        stream(a.q.stream),
        dtype(a.q.dtype),
        q(a.q),
        k(a.k),
        v(a.v) {}
};
/// Rows of u or z (B H, chunks, 64, 64) as of (B, T, H, Dv).
Rows rows_of_chunks(void* data, const Sizes& sizes);
void head_rates(const Call& call, const View& beta, float* rates);
/// X; and with dy, A^T dy, both (B H, chunks, 64, 64).
void solve_chunks(const Call& call, const float* rates, void* inverses, const Rows& dy, void* products);
void walk(const Call& call, const float* rates, const Walk* walks, int count);
void delta_walk(const Call& call, const float* rates, const void* inverses, const float* initial, float* last, void* states, void* u);

}  // namespace tern::gpu::recurrence
