#pragma once
#include "cuda/attention/single_tile_matmul.cuh"
#include "cuda/device/math.cuh"
#include "cuda/device/philox_dropout.cuh"
#include "cuda/runtime/dispatch.h"
#include "ops/kernels/attention.h"
#include "tensor/ceil_div.h"

// Softmax of single-tile attention: mask, softmax, dropout and their gradient, for scores that a warp has in registers.
namespace tern::gpu::single_tile {

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
