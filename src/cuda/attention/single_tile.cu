#include <algorithm>

#include "cuda/attention/attention.h"
#include "cuda/device/async_copy.cuh"
#include "cuda/device/fragment.cuh"
#include "cuda/device/math.cuh"
#include "cuda/device/philox_dropout.cuh"
#include "cuda/device/vec16.cuh"
#include "cuda/runtime/dispatch.h"
#include "cuda/runtime/launch.h"
#include "tensor/context.h"
#include "tensor/sizes.h"

// Single-tile attention: float32 self attention of up to 64 tokens. A block takes one head of one sequence: its queries, keys and values,
// (T, D) with T and D up to 64, fit in shared memory, and each warp has the scores of 16 queries in registers. Only the projection is read
// from global memory, and only the result is written; with separate products and a softmax, the scores alone are written and read eight
// times in a training step. Keys that no query of a warp may see are skipped.
//
//     forward                                                    shared memory (T: padded to whole tiles)
//       cp.async Q, K; V                                           Q, K, V (T, D + 4)
//       S = Q K^T  ->  P = dropout(softmax(S)), in registers       bias (T), of padded keys
//       wait for V; y = P V                                        P (T, T + 4), for strict float32
//     backward
//       cp.async Q, K; V, dY                                       Q, dY (T, D + 4)
//       P as in forward; dP = dY V^T                               K (T, D + 4), in the end P (T, T + 4)
//       dS = P (dP - sum(P dP)); dQ = dS K                         V (T, D + 4), in the end dS (T, T + 4)
//       a warp has 16 keys now: dK = dS^T Q, dV = P^T dY           bias (T)
//
// Products are as accurate as the context's matmul precision, where tf32x3 counts as fp32: in TF32 on tensor cores, else by SIMT.
// Both distribute the scores over lanes as a FragmentTile of 16 queries: m16n8k8 as MmaLanes, SIMT as SimtLanes.
//
// A tile in shared memory has rows of D elements with pitch D + 4, or rows of scores with a pitch of 4 more than a multiple of 8: the
// vectors that lanes read at a time from adjacent rows are then in different banks.
namespace tern::gpu::single_tile {

/// Queries of a warp, and keys of one tile of accumulators.
inline constexpr int warp_rows = 16, tile_keys = 8;
/// Largest numbers of tiles of a row that kernels are compiled for: with few, there are enough registers for the blocks of a thousand heads
/// at once.
inline constexpr int few_tiles = 5, max_tiles = 8;

/// Layout of scores over lanes where no tensor core determines the groups: interleaved, so that adjacent lanes, or every second one, read
/// the same vectors.
struct SimtLanes {
  static constexpr unsigned low_step = 2, high_step = 8;
  static __device__ __forceinline__ int group() { return (threadIdx.x & 1) | (threadIdx.x >> 1 & 2) | (threadIdx.x >> 2 & 4); }
  static __device__ __forceinline__ int member() { return (threadIdx.x >> 1 & 1) | (threadIdx.x >> 2 & 2); }
};
template <class Lanes>
inline constexpr bool on_tensor_cores = std::is_same_v<Lanes, MmaLanes>;

template <class Lanes, int tiles>
using Scores = FragmentTile<warp_rows, tiles * tile_keys, Lanes>;

/// A lane's part of 16 rows of D elements by SIMT: values[j] are four adjacent elements of row j % 4 of the lane's, in columns 32 (j / 4).
template <int D>
struct SimtRows {
  float values[D / 8][4];
};
template <int D, class Lanes>
using Rows = std::conditional_t<on_tensor_cores<Lanes>, FragmentTile<warp_rows, D>, SimtRows<D>>;

/// Unrolled steps of a product, if registers allow it.
template <int tiles>
constexpr int unrolled_steps = tiles == few_tiles ? 1 : 2;

__device__ __forceinline__ float4 read4(const float* from) { return *reinterpret_cast<const float4*>(from); }
__device__ __forceinline__ void add_product(float& sum, float4 a, float4 b) {
  sum += a.x * b.x;
  sum += a.y * b.y;
  sum += a.z * b.z;
  sum += a.w * b.w;
}
__device__ __forceinline__ void add_scaled(float (&sum)[4], float factor, float4 x) {
  sum[0] += factor * x.x;
  sum[1] += factor * x.y;
  sum[2] += factor * x.z;
  sum[3] += factor * x.w;
}

/// Loads four tiles of (8, 4) floats from shared memory; a lane gets element [lane / 4][lane % 4] of each. Lane l supplies the address of
/// row l % 8 of tile l / 8, a multiple of 16 bytes: for ldmatrix, a float is two elements of 16 bits.
__device__ __forceinline__ void ldmatrix_floats(float (&to)[4], const float* row) {
  unsigned bits[4];
  ldmatrix(bits, shared_address(row));
#pragma unroll
  for (int k = 0; k < 4; ++k) to[k] = __uint_as_float(bits[k]);
}

/// scores = a b^T for the 16 rows of a from `first` and the first 8 `limit` rows of b; both have `padded` rows. Scores of rows beyond a's
/// length are undefined. `limit` is even, or `tiles`.
template <int D, class Scores>
__device__ __forceinline__ void matmul_ABt(const float* a, const float* b, int first, int padded, int limit, Scores& scores) {
  using Lanes = typename Scores::Lanes;
  constexpr int tiles = Scores::column_tiles;
  auto& sums = scores.values[0];
  scores = {};
  if constexpr (on_tensor_cores<Lanes>) {
    const int tile = threadIdx.x % 32 / 8, row = threadIdx.x % 8;
    const float* const from = a + min(first + tile % 2 * 8 + row, padded - 1) * (D + 4) + tile / 2 * 4;
    float rows[D / 8][4];
#pragma unroll
    for (int d = 0; d < D / 8; ++d) ldmatrix_floats(rows[d], from + 8 * d);
    const float* const keys = b + row * (D + 4) + tile * 4;
#pragma unroll
    for (int i = 0; i < tiles; ++i) {
      if (i >= limit) break;
#pragma unroll
      for (int d = 0; d < D / 8; d += 2) {
        float columns[4];
        ldmatrix_floats(columns, keys + i * tile_keys * (D + 4) + 8 * d);
        mma_m16n8k8_tf32(sums[i], rows[d], columns[0], columns[1]);
        mma_m16n8k8_tf32(sums[i], rows[d + 1], columns[2], columns[3]);
      }
    }
  } else {
    const float* const low = a + min(first + Lanes::group(), padded - 1) * (D + 4);
    const float* const high = a + min(first + Lanes::group() + 8, padded - 1) * (D + 4);
    const float* const keys = b + 2 * Lanes::member() * (D + 4);
    const auto sum_rows = [&]<bool both>() {
#pragma unroll(unrolled_steps<tiles>)
      for (int d = 0; d < D; d += 4) {
        const float4 x = read4(low + d), y = both ? read4(high + d) : float4{};
#pragma unroll
        for (int pair = 0; pair < tiles; pair += 2) {
          if (pair >= limit) break;
#pragma unroll
          for (int i = pair; i < std::min(pair + 2, tiles); ++i) {
            const float4 u = read4(keys + i * tile_keys * (D + 4) + d), v = read4(keys + (i * tile_keys + 1) * (D + 4) + d);
            add_product(sums[i][0], x, u);
            add_product(sums[i][1], x, v);
            if (both) add_product(sums[i][2], y, u);
            if (both) add_product(sums[i][3], y, v);
          }
        }
      }
    };
    if (first + 8 < padded) sum_rows.template operator()<true>();
    else sum_rows.template operator()<false>();
  }
}

/// Writes a warp's scores to shared memory, with rows `pitch` apart.
template <class Scores>
__device__ __forceinline__ void store_scores(const Scores& scores, int first, int padded, int limit, float* to, int pitch) {
  float* const target = to + (first + Scores::row_of(0)) * pitch + Scores::column_of(0);
#pragma unroll
  for (int i = 0; i < Scores::column_tiles; ++i) {
    if (i >= limit) break;
    const float (&x)[4] = scores.values[0][i];
    *reinterpret_cast<float2*>(target + i * tile_keys) = {x[0], x[1]};
    if (first + 8 < padded) *reinterpret_cast<float2*>(target + 8 * pitch + i * tile_keys) = {x[2], x[3]};
  }
}

/// scores x for 16 rows of scores and the first 8 `limit` rows of x (padded, D). On tensor cores the scores are read from registers, else
/// from `shared`, where they must have been written.
template <int D, class Scores>
__device__ __forceinline__ auto matmul_AB(const Scores& scores, const float* shared, int pitch, const float* x, int first, int padded,
                                          int limit) {
  using Lanes = typename Scores::Lanes;
  constexpr int tiles = Scores::column_tiles;
  Rows<D, Lanes> sums = {};
  if constexpr (on_tensor_cores<Lanes>) {
    // The order of the keys is arbitrary: a lane reads those rows of x whose scores it holds.
#pragma unroll
    for (int i = 0; i < tiles; ++i) {
      if (i >= limit) break;
      const float* const rows = x + (i * tile_keys + 2 * Lanes::member()) * (D + 4) + Lanes::group();
      const float (&s)[4] = scores.values[0][i];
      const float a[4] = {s[0], s[2], s[1], s[3]};
#pragma unroll
      for (int j = 0; j < D / 8; ++j) mma_m16n8k8_tf32(sums.values[0][j], a, rows[8 * j], rows[D + 4 + 8 * j]);
    }
  } else {
    const float* rows[4];
#pragma unroll
    for (int p = 0; p < 4; ++p) rows[p] = shared + min(first + Lanes::member() + 4 * p, padded - 1) * pitch;
    const auto sum_rows = [&]<int count>() {
#pragma unroll(unrolled_steps<tiles>)
      for (int key = 0; key < limit * tile_keys; key += 4) {
        float4 weights[count];
#pragma unroll
        for (int p = 0; p < count; ++p) weights[p] = read4(rows[p] + key);
#pragma unroll
        for (int h = 0; h < D / 32; ++h) {
          const float* const from = x + key * (D + 4) + 32 * h + 4 * Lanes::group();
          const float4 values[4] = {read4(from), read4(from + D + 4), read4(from + 2 * (D + 4)), read4(from + 3 * (D + 4))};
#pragma unroll
          for (int p = 0; p < count; ++p) {
            add_scaled(sums.values[4 * h + p], weights[p].x, values[0]);
            add_scaled(sums.values[4 * h + p], weights[p].y, values[1]);
            add_scaled(sums.values[4 * h + p], weights[p].z, values[2]);
            add_scaled(sums.values[4 * h + p], weights[p].w, values[3]);
          }
        }
      }
    };
    if (first + 8 < padded) sum_rows.template operator()<4>();
    else sum_rows.template operator()<2>();
  }
  return sums;
}

/// sums += scores^T x for 16 columns of scores from `first`, and rows of both from `begin`, a multiple of 8, to `padded` - 1. Several pairs
/// of scores and x go together, so that none waits for another.
template <int D, class Lanes, int count>
__device__ __forceinline__ void matmul_AtB(const float* const (&scores)[count], int pitch, const float* const (&x)[count], int first,
                                           int begin, int padded, Rows<D, Lanes> (&sums)[count]) {
  if constexpr (on_tensor_cores<Lanes>) {
    const int low = min(first + Lanes::group(), padded - 1), high = min(first + Lanes::group() + 8, padded - 1);
    for (int row = begin + 2 * Lanes::member(); row < padded; row += 8)
#pragma unroll
      for (int n = 0; n < count; ++n) {
        const float *const line = scores[n] + row * pitch, *const rows = x[n] + row * (D + 4) + Lanes::group();
        const float a[4] = {line[low], line[high], line[pitch + low], line[pitch + high]};
#pragma unroll
        for (int j = 0; j < D / 8; ++j) mma_m16n8k8_tf32(sums[n].values[0][j], a, rows[8 * j], rows[D + 4 + 8 * j]);
      }
  } else {
    const int column = min(first + 4 * Lanes::member(), padded - 4);
#pragma unroll 2
    for (int row = begin; row < padded; ++row)
#pragma unroll
      for (int n = 0; n < count; ++n) {
        const float4 weights = read4(scores[n] + row * pitch + column);
#pragma unroll
        for (int h = 0; h < D / 32; ++h) {
          const float4 values = read4(x[n] + row * (D + 4) + 32 * h + 4 * Lanes::group());
          add_scaled(sums[n].values[4 * h + 0], weights.x, values);
          add_scaled(sums[n].values[4 * h + 1], weights.y, values);
          add_scaled(sums[n].values[4 * h + 2], weights.z, values);
          add_scaled(sums[n].values[4 * h + 3], weights.w, values);
        }
      }
  }
}

/// Writes those of 16 rows from `first` that are below `length`, `stride` apart: results of matmul_AB, or of matmul_AtB.
template <bool transposed, int D>
__device__ __forceinline__ void write_rows(const FragmentTile<warp_rows, D>& rows, int first, int length, float* to, std::int64_t stride) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = first + rows.row_of(r);
    if (row >= length) break;
    rows.store_row(r, 1, to + row * stride, 0, D);
  }
}
template <bool transposed, int D>
__device__ __forceinline__ void write_rows(const SimtRows<D>& rows, int first, int length, float* to, std::int64_t stride) {
  constexpr int between = transposed ? 1 : 4;
  int row = first + (transposed ? 4 : 1) * SimtLanes::member();
  float* target = to + row * stride + 4 * SimtLanes::group();
#pragma unroll
  for (int p = 0; p < 4; ++p, row += between, target += between * stride) {
    if (row >= length) break;
#pragma unroll
    for (int h = 0; h < D / 32; ++h) {
      const float (&x)[4] = rows.values[4 * h + p];
      *reinterpret_cast<float4*>(target + 32 * h) = {x[0], x[1], x[2], x[3]};
    }
  }
}

/// Sizes, mask and dropout for qkv (B, T, 3, H, D).
struct SingleTileArgs {
  int length, heads;
  float scale, scale_log2;  ///< scale of the scores; scale_log2 = scale log2(e)
  const float* padding;
  const std::int64_t* prefix;
  bool causal, aligned;  ///< aligned: all inputs begin at a multiple of 16 bytes
  DropoutMask dropout;
  float keep, inverse_keep;  ///< keep: probability of keeping an element; inverse_keep = 1 / keep
  int padded;                ///< length padded to whole tiles
  int score_pitch;           ///< pitch of rows of scores in shared memory

  SingleTileArgs(const View& qkv, const kernels::Attention& attention)
      : length(static_cast<int>(qkv.shape[1])),
        heads(static_cast<int>(qkv.shape[3])),
        scale(static_cast<float>(attention.scale)),
        scale_log2(scale * log2_e),
        padding(attention.mask.padding.as<const float>()),
        prefix(attention.mask.prefix.as<const std::int64_t>()),
        causal(attention.mask.causal),
        aligned(is_aligned(qkv.data, 16)),
        dropout(attention.dropout, attention.draws),
        keep(static_cast<float>(1 - attention.dropout)),
        inverse_keep(static_cast<float>(1 / (1 - attention.dropout))) {}

  /// Number of keys at the start of a sequence that all of its queries see.
  __device__ int prefix_len(int sequence) const {
    return prefix ? static_cast<int>(min(max(prefix[sequence], std::int64_t(0)), std::int64_t(length))) : 0;
  }
};

/// A warp's scores: 16 rows from `first`, for which it computes the `limit` tiles of keys that some row may see.
template <class Lanes, int tiles>
struct SoftmaxTile {
  using Tile = Scores<Lanes, tiles>;
  int first, limit, prefix_len;  ///< prefix_len: keys that every row sees
  unsigned kept = ~0u;           ///< four bits for each tile, for the lane's elements
  Tile scores;

  __device__ SoftmaxTile(const SingleTileArgs& args, int batch, int warp) : first(warp * warp_rows), limit(args.padded / tile_keys) {
    prefix_len = args.causal ? args.prefix_len(batch) : args.length;
    const int visible = max(warp + 1, ceil_div(prefix_len, warp_rows));
    limit = min(limit, visible * (warp_rows / tile_keys));
  }

  /// Draws dropout's mask of head `index`, for two tiles of keys at a time; needs no scores.
  __device__ void draw(const SingleTileArgs& args, std::int64_t index) {
    if (!args.dropout.drops) return;
    const std::int64_t begin = (index * args.length + first) * args.length;
    const std::uint64_t position = args.dropout.position();
    kept = 0;
#pragma unroll 1
    for (int i = 0; i < limit; i += 2) {
      const unsigned rows = args.dropout.template kept_16x16<Lanes>(args.length, position, begin + i * tile_keys) >> 2 * Lanes::member(),
                     tiles_of_row = rows & 0x03030303u;  // one byte for each of two tiles, of the upper and of the lower row
      const unsigned both = tiles_of_row | tiles_of_row >> 14;
      kept |= ((both & 15) | (both >> 4 & 0xf0)) << 4 * i;
    }
  }

  /// Softmax of the rows in place, divided by the probability of keeping an element. `bias`, in shared memory or null, is added to each
  /// key's scores before scaling.
  __device__ void softmax(const SingleTileArgs& args, const float* bias) {
    int ends[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = first + Tile::row_of(r);
      ends[r] = row < args.length ? max(row + 1, prefix_len) : 0;
    }
    float row_max[2] = {-INFINITY, -INFINITY}, row_sum[2] = {0, 0}, factors[2];
    scores.for_each_tile(limit, [&](float (&x)[4], int, int n) {
      const int key = Tile::column_of(2 * n);
      if (bias) {
        const float2 added = *reinterpret_cast<const float2*>(bias + key);
#pragma unroll
        for (int e = 0; e < 4; ++e) x[e] += e % 2 ? added.y : added.x;
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (key + e % 2 >= ends[e / 2]) x[e] = -INFINITY;
        row_max[e / 2] = fmaxf(row_max[e / 2], x[e]);
      }
    });
#pragma unroll
    for (float& x : row_max) {
      x = Tile::combine_max(x);
      x = x == -INFINITY ? 0 : x * args.scale_log2;  // -INFINITY: the row sees no key
    }
    float factor = args.scale_log2;
    if (__any_sync(whole_warp, fmaxf(fabsf(row_max[0]), fabsf(row_max[1])) >= large_score)) {
      scores.for_each(limit, [&](float& x, int, int) { x *= factor; });
      factor = 1;
    }
    scores.for_each(limit, [&](float& x, int r, int) {
      x = exp2_approx(x * factor - row_max[r]);
      row_sum[r] += x;
    });
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      row_sum[r] = Tile::combine_sum(row_sum[r]);
      factors[r] = row_sum[r] > 0 ? args.inverse_keep / row_sum[r] : 0;
    }
    scores.for_each(limit, [&](float& x, int r, int) { x *= factors[r]; });
  }

  /// Applies dropout: dropped elements become 0.
  __device__ void drop() {
    scores.for_each(limit, [&](float& x, int r, int c) { x = rounded(dropped(x, r, c)); });
  }

  /// Replaces the gradients of the kept probabilities by those of the scores before scaling; also applies drop(). With kept, m in {0, 1},
  /// and keep, and p the softmax: p (m g / keep - sum(p m g / keep)) = v (m g - keep sum(v m g)) for v = p / keep.
  __device__ void differentiate(const SingleTileArgs& args, Tile& gradients) {
    float weighted[2] = {0, 0};
    gradients.for_each(limit, [&](float& g, int r, int c) {
      g = dropped(g, r, c);
      weighted[r] += g * scores.at(r, c);
    });
#pragma unroll
    for (float& x : weighted) x = Tile::combine_sum(x) * (args.keep * args.scale);
    gradients.for_each(limit, [&](float& g, int r, int c) { g = rounded(scores.at(r, c) * (g * args.scale - weighted[r])); });
    drop();
  }

 private:
  __device__ __forceinline__ float dropped(float x, int r, int c) const { return kept >> (c / 2 * 4 + r * 2 + c % 2) & 1 ? x : 0; }
  /// Rounds to TF32 if tensor cores multiply.
  static __device__ __forceinline__ float rounded(float x) { return on_tensor_cores<Lanes> ? add_half_tf32_ulp(x) : x; }
};

}  // namespace tern::gpu::single_tile

namespace tern::kernels {

using namespace gpu;
using namespace gpu::single_tile;

namespace {

/// The vectors of four elements of rows of D that a thread copies to shared memory, and their positions there.
template <int D>
struct CopyLayout {
  int row = threadIdx.x / (D / 4), step = blockDim.x / (D / 4), column = threadIdx.x % (D / 4) * 4, offset = row * (D + 4) + column;

  __device__ void advance() {
    row += step;
    offset += step * (D + 4);
  }
};

/// Rows of D elements in global memory, and their tile in shared memory.
struct RowSource {
  const float* data;
  std::int64_t stride;
  float* to;
};

/// Starts to copy the rows of several sources, and sets the rows after them to zero.
template <int D, int count>
__device__ __forceinline__ void load_rows(const RowSource (&sources)[count], const SingleTileArgs& args) {
  CopyLayout<D> at;
  const float* from[count];
#pragma unroll
  for (int n = 0; n < count; ++n) from[n] = sources[n].data + at.row * sources[n].stride + at.column;
  const auto take = [&](auto&& copy) {
#pragma unroll 1
    for (; at.row < args.length; at.advance())
#pragma unroll
      for (int n = 0; n < count; ++n) {
        copy(sources[n].to + at.offset, from[n]);
        from[n] += at.step * sources[n].stride;
      }
  };
  if (args.aligned) {
    take([](float* to, const float* vector) { cp_async<16>(shared_address(to), vector); });
  } else {
    take([](float* to, const float* elements) {
      for (int k = 0; k < 4; ++k) to[k] = elements[k];
    });
  }
#pragma unroll 1
  for (; at.row < args.padded; at.advance())
#pragma unroll
    for (int n = 0; n < count; ++n) *reinterpret_cast<float4*>(sources[n].to + at.offset) = {0, 0, 0, 0};
}

/// Rounds the elements that this thread has loaded to TF32.
template <int D, class Lanes, int count>
__device__ __forceinline__ void round_rows(const RowSource (&sources)[count], const SingleTileArgs& args) {
  if constexpr (on_tensor_cores<Lanes>)
#pragma unroll 1
    for (CopyLayout<D> at; at.row < args.length; at.advance())
#pragma unroll
      for (int n = 0; n < count; ++n) {
        float* const to = sources[n].to + at.offset;
        const float4 x = read4(to);
        *reinterpret_cast<float4*>(to) = {add_half_tf32_ulp(x.x), add_half_tf32_ulp(x.y), add_half_tf32_ulp(x.z), add_half_tf32_ulp(x.w)};
      }
}

/// Loads each key's bias, which is added to its scores before scaling, to shared memory; null if there is none.
__device__ __forceinline__ const float* load_bias(const SingleTileArgs& args, int batch, float* to) {
  if (!args.padding) return nullptr;
  for (int key = threadIdx.x; key < args.padded; key += blockDim.x) {
    const float x = key < args.length ? args.padding[std::int64_t(batch) * args.length + key] : 0;
    to[key] = x > hidden_padding ? x / args.scale : -INFINITY;
  }
  return to;
}

template <int tiles>
constexpr int max_threads = ceil_div(tiles, 2) * 32;
template <int D, int tiles>
constexpr int min_blocks = D == 32 && tiles == few_tiles ? 8 : 1;

template <class Lanes, int D, int tiles>
__global__ void __launch_bounds__(max_threads<tiles>, min_blocks<D, tiles>)
    single_tile_attention(const float* qkv, float* y, __grid_constant__ const SingleTileArgs args) {
  extern __shared__ float4 shared[];
  const int size = args.padded * (D + 4), batch = blockIdx.x / args.heads, head = blockIdx.x % args.heads;
  float *const q = reinterpret_cast<float*>(shared), *const k = q + size, *const v = k + size, *const weights = v + size + args.padded;
  const std::int64_t part = std::int64_t(args.heads) * D, from = std::int64_t(batch) * args.length * 3 * part + head * D;
  const RowSource early[] = {{qkv + from, 3 * part, q}, {qkv + from + part, 3 * part, k}}, late[] = {{qkv + from + 2 * part, 3 * part, v}};
  load_rows<D>(early, args);
  cp_async_commit();
  load_rows<D>(late, args);
  cp_async_commit();
  const float* const bias = load_bias(args, batch, v + size);
  SoftmaxTile<Lanes, tiles> tile(args, batch, threadIdx.x / 32);
  tile.draw(args, blockIdx.x);
  cp_async_wait<1>();
  round_rows<D, Lanes>(early, args);
  __syncthreads();
  matmul_ABt<D>(q, k, tile.first, args.padded, tile.limit, tile.scores);
  tile.softmax(args, bias);
  tile.drop();
  cp_async_wait<0>();
  round_rows<D, Lanes>(late, args);
  if constexpr (!on_tensor_cores<Lanes>) store_scores(tile.scores, tile.first, args.padded, tile.limit, weights, args.score_pitch);
  __syncthreads();
  const auto result = matmul_AB<D>(tile.scores, weights, args.score_pitch, v, tile.first, args.padded, tile.limit);
  write_rows<false>(result, tile.first, args.length, y + std::int64_t(batch) * args.length * part + head * D, part);
}

template <class Lanes, int D, int tiles>
__global__ void __launch_bounds__(max_threads<tiles>, min_blocks<D, tiles>)
    single_tile_attention_grad(const float* qkv, const float* dy, float* dqkv, __grid_constant__ const SingleTileArgs args) {
  extern __shared__ float4 shared[];
  // The scores' gradients reuse the memory of the values, and the probabilities, after dQ, that of the keys.
  const int size = args.padded * (D + 4), room = args.padded * max(D + 4, args.score_pitch), batch = blockIdx.x / args.heads,
            head = blockIdx.x % args.heads;
  float *const q = reinterpret_cast<float*>(shared), *const g = q + size, *const k = g + size, *const v = k + room;
  float *const weights = k, *const gradients = v;
  const std::int64_t part = std::int64_t(args.heads) * D, from = std::int64_t(batch) * args.length * 3 * part + head * D;
  const RowSource early[] = {{qkv + from, 3 * part, q}, {qkv + from + part, 3 * part, k}};
  const RowSource late[] = {{qkv + from + 2 * part, 3 * part, v}, {dy + std::int64_t(batch) * args.length * part + head * D, part, g}};
  load_rows<D>(early, args);
  cp_async_commit();
  load_rows<D>(late, args);
  cp_async_commit();
  const float* const bias = load_bias(args, batch, v + room);
  SoftmaxTile<Lanes, tiles> tile(args, batch, threadIdx.x / 32);
  const int first = tile.first, limit = tile.limit;
  tile.draw(args, blockIdx.x);
  cp_async_wait<1>();
  round_rows<D, Lanes>(early, args);
  __syncthreads();
  matmul_ABt<D>(q, k, first, args.padded, limit, tile.scores);
  tile.softmax(args, bias);
  cp_async_wait<0>();
  round_rows<D, Lanes>(late, args);
  __syncthreads();
  Scores<Lanes, tiles> ds;
  matmul_ABt<D>(g, v, first, args.padded, limit, ds);
  tile.differentiate(args, ds);
  __syncthreads();
  store_scores(ds, first, args.padded, limit, gradients, args.score_pitch);
  __syncwarp();
  float* const to = dqkv + from;
  write_rows<false>(matmul_AB<D>(ds, gradients, args.score_pitch, k, first, args.padded, limit), first, args.length, to, 3 * part);
  __syncthreads();
  store_scores(tile.scores, first, args.padded, limit, weights, args.score_pitch);
  __syncthreads();
  // From here on the warp has 16 keys, which only the queries from `begin` on may see.
  const int begin = first < tile.prefix_len ? 0 : first;
  Rows<D, Lanes> results[2] = {};
  matmul_AtB<D, Lanes, 2>({gradients, weights}, args.score_pitch, {q, g}, first, begin, args.padded, results);
  write_rows<true>(results[0], first, args.length, to + part, 3 * part);
  write_rows<true>(results[1], first, args.length, to + 2 * part, 3 * part);
}

int tiles_for(std::int64_t length) { return length <= few_tiles * tile_keys ? few_tiles : max_tiles; }

SingleTileArgs args_of(const View& qkv, const Attention& attention) {
  SingleTileArgs args(qkv, attention);
  args.padded = std::min(round_up(args.length, warp_rows), tiles_for(args.length) * tile_keys);
  args.score_pitch = args.padded + 4;
  return args;
}

struct Forward {
  template <class Lanes, int D, int tiles>
  static constexpr auto kernel = single_tile_attention<Lanes, D, tiles>;
  /// Elements of shared memory for each row, without its bias.
  static int elements(const SingleTileArgs& args, int head_dim) { return 3 * (head_dim + 4) + args.score_pitch; }
};
struct Backward {
  template <class Lanes, int D, int tiles>
  static constexpr auto kernel = single_tile_attention_grad<Lanes, D, tiles>;
  static int elements(const SingleTileArgs& args, int head_dim) {
    return 2 * (head_dim + 4) + 2 * std::max(head_dim + 4, args.score_pitch);
  }
};

template <class Pass, class Lanes, class... Arguments>
void launch_heads(const View& qkv, const SingleTileArgs& args, Arguments... arguments) {
  const std::int64_t blocks = qkv.shape[0] * args.heads;
  if (blocks == 0) return;
  const int head_dim = static_cast<int>(qkv.shape[4]), threads = static_cast<int>(blocks_for(args.padded, warp_rows)) * 32;
  const std::size_t bytes = sizeof(float) * args.padded * (Pass::elements(args, head_dim) + 1);
  const auto run = [&](auto kernel) { launch(kernel, blocks_for(blocks, 1), threads, bytes, qkv.stream, arguments..., args); };
  if (tiles_for(args.length) == few_tiles)
    head_dim == 32 ? run(Pass::template kernel<Lanes, 32, few_tiles>) : run(Pass::template kernel<Lanes, 64, few_tiles>);
  else head_dim == 32 ? run(Pass::template kernel<Lanes, 32, max_tiles>) : run(Pass::template kernel<Lanes, 64, max_tiles>);
}
template <class Pass, class... Arguments>
void launch_in_precision(const View& qkv, const SingleTileArgs& args, Arguments... arguments) {
  if (context().kernels.matmul_precision == MatmulPrecision::tf32) launch_heads<Pass, MmaLanes>(qkv, args, arguments...);
  else launch_heads<Pass, SimtLanes>(qkv, args, arguments...);
}

}  // namespace

void SelfAttention::run(Cuda) const { launch_in_precision<Forward>(qkv, args_of(qkv, attention), qkv.as<const float>(), y.as<float>()); }

void SelfAttentionGrad::run(Cuda) const {
  SingleTileArgs args = args_of(qkv, attention);
  args.aligned = args.aligned && is_aligned(g.data, 16);
  launch_in_precision<Backward>(qkv, args, qkv.as<const float>(), g.as<const float>(), dqkv.as<float>());
}

}  // namespace tern::kernels

namespace tern::gpu {

bool has_single_tile_attention(const View& q) {
  return q.dtype == DType::f32 && q.shape[1] <= single_tile::max_tiles * single_tile::tile_keys && (q.shape[3] == 32 || q.shape[3] == 64);
}

}  // namespace tern::gpu
