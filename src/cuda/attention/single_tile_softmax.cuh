#pragma once
#include <cmath>

#include "cuda/attention/single_tile.cuh"
#include "cuda/device/group.cuh"
#include "ops/kernels/attention.h"

// What stands between the products of attention over short heads: masks, softmax, dropout and their gradient, of scores that a warp has in
// registers.
namespace tern::gpu::short_heads {

/// What is the same for all heads.
struct Heads {
  int length, heads, padded;  ///< padded: length up to what the tiles fill
  int score_pitch;            ///< between rows of scores in shared memory
  float scale;                ///< of the scores, positive
  const float* padding;
  const std::int64_t* prefix;
  bool causal;
  bool drops;
  std::uint32_t last_dropped;  ///< an element falls away where its word is no more
  float keep, inverse_keep;    ///< the probability to stay, and what is multiplied then
  PhiloxState draws;
  bool aligned;  ///< what is read begins at a multiple of four elements
};

inline constexpr float log2_e = 1.4426950408889634f;

/// 2^x; 0 where that is no normal number.
__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// A warp's scores: 16 rows from `first`, of which it computes the `limit` tiles of keys that some row may see.
template <MatmulPrecision precision, int tiles>
struct Scores {
  Lane<precision> lane;
  int first, limit;
  std::int64_t opened;  ///< keys that every row sees
  unsigned kept = ~0u;  ///< four bits for each tile
  float values[tiles][4];

  __device__ Scores(const Heads& all, int batch, int stripe) : first(stripe * stripe_rows), limit(all.padded / tile_keys) {
    opened = !all.causal ? all.length : all.prefix ? all.prefix[batch] : 0;
    const int seen = max(stripe + 1, static_cast<int>((min(opened, std::int64_t(all.length)) + stripe_rows - 1) / stripe_rows));
    limit = min(limit, seen * (stripe_rows / tile_keys));
  }

  /// Draws what is kept of head `index`; needs no scores. Of the pairs of columns that two neighbours have in the same two rows,
  /// each draws those of one row, four in a block of draws. They may begin within one.
  __device__ void draw(const Heads& all, std::int64_t index) {
    if (!all.drops) return;
    const bool is_odd = lane.member % 2;
    const std::int64_t begin = (index * all.length + first + lane.group + 8 * is_odd) * all.length + lane.member / 2 * 4;
    const std::uint64_t block = all.draws.offset + (all.draws.base ? *all.draws.base : 0) + static_cast<std::uint64_t>(begin >> 2);
    const int skip = static_cast<int>(begin & 3);
    const auto kept_of = [&](std::uint64_t at) {
      const PhiloxBlock drawn = philox(all.draws.seed, at);
      unsigned bits = 0;
#pragma unroll
      for (int k = 0; k < 4; ++k) bits |= unsigned(drawn.words[k] > all.last_dropped) << k;
      return bits;
    };
    unsigned own = 0;
#pragma unroll 1
    for (int i = 0; i < limit; ++i) {
      unsigned bits = kept_of(block + i * (tile_keys / 4));
      if (skip != 0) bits = (bits | kept_of(block + i * (tile_keys / 4) + 1) << 4) >> skip & 15;
      own |= bits << 4 * i;
    }
    const unsigned other = shuffle_xor(own, lane.low_step);
    const unsigned low = is_odd ? other >> 2 : own, high = is_odd ? own >> 2 : other;
    kept = (low & 0x33333333u) | (high & 0x33333333u) << 2;
  }

  __device__ float dropped(float x, int i, int e) const { return kept >> (4 * i + e) & 1 ? x : 0; }

  /// Combines both rows' values among the lanes that have parts of them.
  template <class F>
  __device__ void combine(float (&rows)[2], F&& with) const {
#pragma unroll
    for (const unsigned step : {lane.low_step, lane.high_step})
#pragma unroll
      for (float& row : rows) row = with(row, shuffle_xor(row, step));
  }

  /// The softmax of the rows, over the probability that an element is kept, in their place. `bias` is in shared memory, what is
  /// added to each key's scores before they are scaled, or null.
  __device__ void take_softmax(const Heads& all, const float* bias) {
    int ends[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = first + lane.group + 8 * r;
      ends[r] = row < all.length ? static_cast<int>(min(std::int64_t(all.length), max(std::int64_t(row + 1), opened))) : 0;
    }
    float most[2] = {-INFINITY, -INFINITY}, totals[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < tiles; ++i) {
      if (i >= limit) break;
      const int key = i * tile_keys + 2 * lane.member;
      if (bias) {
        const float2 added = *reinterpret_cast<const float2*>(bias + key);
#pragma unroll
        for (int e = 0; e < 4; ++e) values[i][e] += e % 2 ? added.y : added.x;
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (key + e % 2 >= ends[e / 2]) values[i][e] = -INFINITY;
        most[e / 2] = fmaxf(most[e / 2], values[i][e]);
      }
    }
    combine(most, [](float a, float b) { return fmaxf(a, b); });
    // In powers of two: exp(x) = 2^(x log2(e)).
    const float scale = all.scale * log2_e;
#pragma unroll
    for (float& x : most) x = x == -INFINITY ? 0 : x * scale;  // -INFINITY: the row sees nothing
#pragma unroll
    for (int i = 0; i < tiles; ++i) {
      if (i >= limit) break;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        values[i][e] = power_of_two(values[i][e] * scale - most[e / 2]);
        totals[e / 2] += values[i][e];
      }
    }
    combine(totals, [](float a, float b) { return a + b; });
    const float factors[2] = {totals[0] > 0 ? all.inverse_keep / totals[0] : 0, totals[1] > 0 ? all.inverse_keep / totals[1] : 0};
#pragma unroll
    for (int i = 0; i < tiles; ++i) {
      if (i >= limit) break;
#pragma unroll
      for (int e = 0; e < 4; ++e) values[i][e] *= factors[e / 2];
    }
  }

  /// Zeros in the place of what is not kept.
  __device__ void drop() {
#pragma unroll
    for (int i = 0; i < tiles; ++i) {
      if (i >= limit) break;
#pragma unroll
      for (int e = 0; e < 4; ++e) values[i][e] = rounded(dropped(values[i][e], i, e));
    }
  }

  /// From the gradients of the kept probabilities those of the scores before they are scaled, in their place; and drop().
  /// With kept, m in {0, 1}, and keep, and p the softmax: p (m g / keep - sum(p m g / keep)) = v (m g - keep sum(v m g)) for v = p / keep.
  __device__ void differentiate(const Heads& all, float (&gradients)[tiles][4]) {
    float weighted[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < tiles; ++i) {
      if (i >= limit) break;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        gradients[i][e] = dropped(gradients[i][e], i, e);
        weighted[e / 2] += gradients[i][e] * values[i][e];
      }
    }
    combine(weighted, [](float a, float b) { return a + b; });
    for (float& x : weighted) x *= all.keep * all.scale;
#pragma unroll
    for (int i = 0; i < tiles; ++i) {
      if (i >= limit) break;
#pragma unroll
      for (int e = 0; e < 4; ++e) gradients[i][e] = rounded(values[i][e] * (gradients[i][e] * all.scale - weighted[e / 2]));
    }
    drop();
  }

 private:
  /// As products on tensor cores take it.
  static __device__ float rounded(float x) { return Lane<precision>::on_tensor_cores ? to_tf32(x) : x; }
};

}  // namespace tern::gpu::short_heads
