#pragma once
#include <algorithm>

#include "cuda/device/vec16.cuh"
#include "cuda/runtime/launch.h"
#include "tensor/context.h"

// The products of attention over short heads: a warp multiplies tiles that lie in shared memory and in its registers. In strict float32
// its lanes multiply and add; in TF32 its tensor cores do, by m16n8k8. Both hand the lanes the same pieces of the scores.
//
// A tile in shared memory has rows of D elements, D + 4 apart, or rows of scores, 4 more than a multiple of 8 apart: the vectors that lanes
// read at a time from neighbouring rows then lie in different banks.
namespace tern::gpu::short_heads {

/// Rows of scores that a warp has, and keys of one tile of them.
inline constexpr int stripe_rows = 16, tile_keys = 8;
/// Kernels are made for so many tiles of a row at most: few take so few registers that the blocks of a thousand heads run all at once.
inline constexpr int few_tiles = 5, all_tiles = 8;

/// Steps of a product that are unrolled, where registers allow it.
template <int tiles>
constexpr int steps_at_once = tiles == few_tiles ? 1 : 2;

__device__ __forceinline__ float4 load4(const float* from) { return *reinterpret_cast<const float4*>(from); }
__device__ __forceinline__ void store4(float* to, float4 x) { *reinterpret_cast<float4*>(to) = x; }

/// A lane's place: in one of 8 groups of 4. Of a tile of scores, (16, 8), it has columns 2 member and 2 member + 1 of rows group and
/// group + 8. The tensor cores say which lanes are a group. Without them groups are interleaved, so that of the vectors that several lanes
/// read, those of neighbours or of the next but one are the same: up to 6% faster than in the tensor cores' order.
template <MatmulPrecision precision>
struct Lane {
  static constexpr bool on_tensor_cores = precision == MatmulPrecision::tf32;
  static constexpr unsigned low_step = on_tensor_cores ? 1 : 2,
                            high_step = on_tensor_cores ? 2 : 8;  ///< bits in which a group's lanes differ
  int group, member;

  __device__ Lane() {
    const int lane = threadIdx.x % 32;
    group = on_tensor_cores ? lane / 4 : (lane & 1) | (lane >> 1 & 2) | (lane >> 2 & 4);
    member = on_tensor_cores ? lane % 4 : (lane >> 1 & 1) | (lane >> 2 & 2);
  }
};

/// A lane's part of 16 rows of D elements. On tensor cores values[j] are of columns 8 j, as of a tile of scores; else they are four
/// neighbours of row j % 4 of the lane's, in columns 32 (j / 4).
template <int D>
struct Rows {
  float values[D / 8][4] = {};
};

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

/// x so that tensor cores, which cut off what TF32 has no room for, take it rounded to 11 bits.
__device__ __forceinline__ float to_tf32(float x) {
  constexpr std::uint32_t half = 1u << 12;  // of the last place that stays
  return fabsf(x) < INFINITY ? __uint_as_float(__float_as_uint(x) + half) : x;
}

/// c += a b for a (16, 8), b (8, 8), both in TF32. A lane has a[group][member], a[group + 8][member], then both with member + 4;
/// b[member][group], b[member + 4][group].
__device__ __forceinline__ void multiply_tile(float (&c)[4], const float (&a)[4], float b0, float b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
        "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}

/// Four tiles of (8, 4) elements from shared memory, of which a lane gets element [lane / 4][lane % 4]. Lane l says where row l % 8 of tile
/// l / 8 begins, at a multiple of 16 bytes.
__device__ __forceinline__ void load_tiles(float (&to)[4], const float* row) {
  std::uint32_t bits[4];
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(bits[0]), "=r"(bits[1]), "=r"(bits[2]), "=r"(bits[3])
               : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
#pragma unroll
  for (int k = 0; k < 4; ++k) to[k] = __uint_as_float(bits[k]);
}

/// scores = a b^T for the 16 rows of a from `first` and the first 8 `limit` of b, which have `padded` rows each. What is
/// computed of rows that a does not have means nothing. `limit` is even, or `tiles`.
template <int D, MatmulPrecision precision, int tiles>
__device__ __forceinline__ void multiply_rows(const float* a, const float* b, int first, int padded, int limit, Lane<precision> lane,
                                              float (&scores)[tiles][4]) {
#pragma unroll
  for (int i = 0; i < tiles; ++i)
#pragma unroll
    for (int e = 0; e < 4; ++e) scores[i][e] = 0;
  if constexpr (lane.on_tensor_cores) {
    const int tile = threadIdx.x % 32 / 8, row = threadIdx.x % 8;
    const float* const from = a + min(first + tile % 2 * 8 + row, padded - 1) * (D + 4) + tile / 2 * 4;
    float rows[D / 8][4];
#pragma unroll
    for (int d = 0; d < D / 8; ++d) load_tiles(rows[d], from + 8 * d);
    const float* const keys = b + row * (D + 4) + tile * 4;
#pragma unroll
    for (int i = 0; i < tiles; ++i) {
      if (i >= limit) break;
#pragma unroll
      for (int d = 0; d < D / 8; d += 2) {
        float columns[4];
        load_tiles(columns, keys + i * tile_keys * (D + 4) + 8 * d);
        multiply_tile(scores[i], rows[d], columns[0], columns[1]);
        multiply_tile(scores[i], rows[d + 1], columns[2], columns[3]);
      }
    }
  } else {
    const float* const low = a + min(first + lane.group, padded - 1) * (D + 4);
    const float* const high = a + min(first + lane.group + 8, padded - 1) * (D + 4);
    const float* const keys = b + 2 * lane.member * (D + 4);
    const auto sum_rows = [&]<bool both>() {
#pragma unroll(steps_at_once<tiles>)
      for (int d = 0; d < D; d += 4) {
        const float4 x = load4(low + d), y = both ? load4(high + d) : float4{};
#pragma unroll
        for (int pair = 0; pair < tiles; pair += 2) {
          if (pair >= limit) break;
#pragma unroll
          for (int i = pair; i < std::min(pair + 2, tiles); ++i) {
            const float4 u = load4(keys + i * tile_keys * (D + 4) + d), v = load4(keys + (i * tile_keys + 1) * (D + 4) + d);
            add_product(scores[i][0], x, u);
            add_product(scores[i][1], x, v);
            if (both) add_product(scores[i][2], y, u);
            if (both) add_product(scores[i][3], y, v);
          }
        }
      }
    };
    if (first + 8 < padded) sum_rows.template operator()<true>();
    else sum_rows.template operator()<false>();
  }
}

/// A warp's scores to shared memory, rows `pitch` apart.
template <MatmulPrecision precision, int tiles>
__device__ __forceinline__ void store_scores(const float (&scores)[tiles][4], int first, int padded, int limit, Lane<precision> lane,
                                             float* to, int pitch) {
  float* const place = to + (first + lane.group) * pitch + 2 * lane.member;
#pragma unroll
  for (int i = 0; i < tiles; ++i) {
    if (i >= limit) break;
    *reinterpret_cast<float2*>(place + i * tile_keys) = {scores[i][0], scores[i][1]};
    if (first + 8 < padded) *reinterpret_cast<float2*>(place + 8 * pitch + i * tile_keys) = {scores[i][2], scores[i][3]};
  }
}

/// scores x for 16 rows of scores and the first 8 `limit` rows of x (padded, D). The scores are read from registers on tensor
/// cores, else from `shared`, where they must be.
template <int D, MatmulPrecision precision, int tiles>
__device__ __forceinline__ Rows<D> multiply_scores(const float (&scores)[tiles][4], const float* shared, int pitch, const float* x,
                                                   int first, int padded, int limit, Lane<precision> lane) {
  Rows<D> sums;
  if constexpr (lane.on_tensor_cores) {
    // The order of the keys is free too: the ones that a lane has of the scores are those that it reads of x.
#pragma unroll
    for (int i = 0; i < tiles; ++i) {
      if (i >= limit) break;
      const float* const rows = x + (i * tile_keys + 2 * lane.member) * (D + 4) + lane.group;
      const float weights[4] = {scores[i][0], scores[i][2], scores[i][1], scores[i][3]};
#pragma unroll
      for (int j = 0; j < D / 8; ++j) multiply_tile(sums.values[j], weights, rows[8 * j], rows[D + 4 + 8 * j]);
    }
  } else {
    const float* rows[4];
#pragma unroll
    for (int p = 0; p < 4; ++p) rows[p] = shared + min(first + lane.member + 4 * p, padded - 1) * pitch;
    const auto sum_rows = [&]<int count>() {
#pragma unroll(steps_at_once<tiles>)
      for (int key = 0; key < limit * tile_keys; key += 4) {
        float4 weights[count];
#pragma unroll
        for (int p = 0; p < count; ++p) weights[p] = load4(rows[p] + key);
#pragma unroll
        for (int h = 0; h < D / 32; ++h) {
          const float* const place = x + key * (D + 4) + 32 * h + 4 * lane.group;
          const float4 values[4] = {load4(place), load4(place + D + 4), load4(place + 2 * (D + 4)), load4(place + 3 * (D + 4))};
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

/// sums += scores^T x for 16 columns of scores from `first`, and rows of both from `begin`, a multiple of 8, to `padded`.
/// Several pairs of scores and x go together, so that none waits for another.
template <int D, MatmulPrecision precision, int count>
__device__ __forceinline__ void multiply_transposed(const float* const (&scores)[count], int pitch, const float* const (&x)[count],
                                                    int first, int begin, int padded, Lane<precision> lane, Rows<D> (&sums)[count]) {
  if constexpr (lane.on_tensor_cores) {
    const int low = min(first + lane.group, padded - 1), high = min(first + lane.group + 8, padded - 1);
    for (int row = begin + 2 * lane.member; row < padded; row += 8)
#pragma unroll
      for (int n = 0; n < count; ++n) {
        const float *const line = scores[n] + row * pitch, *const rows = x[n] + row * (D + 4) + lane.group;
        const float a[4] = {line[low], line[high], line[pitch + low], line[pitch + high]};
#pragma unroll
        for (int j = 0; j < D / 8; ++j) multiply_tile(sums[n].values[j], a, rows[8 * j], rows[D + 4 + 8 * j]);
      }
  } else {
    const int column = min(first + 4 * lane.member, padded - 4);
#pragma unroll 2
    for (int row = begin; row < padded; ++row)
#pragma unroll
      for (int n = 0; n < count; ++n) {
        const float4 weights = load4(scores[n] + row * pitch + column);
#pragma unroll
        for (int h = 0; h < D / 32; ++h) {
          const float4 values = load4(x[n] + row * (D + 4) + 32 * h + 4 * lane.group);
          add_scaled(sums[n].values[4 * h + 0], weights.x, values);
          add_scaled(sums[n].values[4 * h + 1], weights.y, values);
          add_scaled(sums[n].values[4 * h + 2], weights.z, values);
          add_scaled(sums[n].values[4 * h + 3], weights.w, values);
        }
      }
  }
}

/// Writes those of 16 rows from `first` that are below `length`, `stride` apart. `transposed` says by which product they came.
template <bool transposed, int D, MatmulPrecision precision, class T>
__device__ __forceinline__ void write_rows(const Rows<D>& rows, int first, int length, Lane<precision> lane, T* to, std::int64_t stride) {
  if constexpr (lane.on_tensor_cores) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = first + lane.group + 8 * r;
      if (row >= length) break;
      T* const place = to + row * stride + 2 * lane.member;
#pragma unroll
      for (int j = 0; j < D / 8; ++j)
        write_vector(place + 8 * j, Vector<T, 2>{convert<T>(rows.values[j][2 * r]), convert<T>(rows.values[j][2 * r + 1])});
    }
  } else {
    constexpr int between = transposed ? 1 : 4;
    int row = first + (transposed ? 4 : 1) * lane.member;
    T* place = to + row * stride + 4 * lane.group;
#pragma unroll
    for (int p = 0; p < 4; ++p, row += between, place += between * stride) {
      if (row >= length) break;
#pragma unroll
      for (int h = 0; h < D / 32; ++h) {
        const float (&x)[4] = rows.values[4 * h + p];
        write_vector(place + 32 * h, Vector<T, 4>{convert<T>(x[0]), convert<T>(x[1]), convert<T>(x[2]), convert<T>(x[3])});
      }
    }
  }
}

}  // namespace tern::gpu::short_heads
