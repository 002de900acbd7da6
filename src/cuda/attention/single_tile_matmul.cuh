#pragma once
#include <algorithm>

#include "cuda/device/async_copy.cuh"
#include "cuda/device/fragment.cuh"
#include "cuda/device/vec16.cuh"

// Matrix products of single-tile attention: a warp multiplies float32 tiles in shared memory and in its registers: in TF32 on tensor cores,
// by m16n8k8 (MmaLanes), in strict float32 by SIMT multiply-adds (SimtLanes). Both distribute the scores over lanes as a FragmentTile of 16
// queries.
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

}  // namespace tern::gpu::single_tile
