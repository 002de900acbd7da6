#include "cuda/attention/flash.cuh"
#include "cuda/runtime/launch.h"

// Flash attention, forward: Dao, "FlashAttention-2", 2023. A block has some rows of queries of one head and walks over the keys in tiles;
// a warp has 16 or 32 of the rows. Scores stay in registers: the fragments of scores are, once exponents are taken, those of the left
// operand of the product with the values. Of global memory only the projection is read and the result written, and the logarithm of the
// sum of each row's exponentials, from which the backward pass has the probabilities again.
namespace tern::kernels {

using namespace gpu;
using namespace gpu::flash;

namespace {

/// How a kernel cuts its work.
template <int width_, int warps_, int row_tiles_, int keys_, int blocks_>
struct Cut {
  static constexpr int width = width_;          ///< of a head, filled up
  static constexpr int warps = warps_;          ///< of a block
  static constexpr int row_tiles = row_tiles_;  ///< of 16 queries, of each warp
  static constexpr int keys = keys_;            ///< of a tile
  static constexpr int blocks = blocks_;        ///< that a multiprocessor has registers for, at least
  static constexpr int rows = warps * row_tiles * 16, threads = warps * 32;
  static constexpr int query_bytes = Tile<width>::bytes(rows), tile_bytes = Tile<width>::bytes(keys), stage_bytes = 2 * tile_bytes;
};

/// What a warp has of the scores of its rows and a tile of keys.
template <class C>
struct Scores {
  float values[C::row_tiles][C::keys / 8][4];

  /// Hides what the rows do not see, adds the padding, and multiplies by scale2 if there is one.
  __device__ __forceinline__ void mask(const Heads& all, int sequence, int row0, int key0, int opened) {
    const int group = threadIdx.x % 32 / 4, pair = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < C::keys / 8; ++n)
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        const int key = key0 + n * 8 + pair * 2 + side;
        const float padding = padding2_of(all, sequence, key);
        const int first_row = all.causal && key >= opened ? key : 0;  // that sees the key
#pragma unroll
        for (int m = 0; m < C::row_tiles; ++m)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float& score = values[m][n][half * 2 + side];
            if (all.padding) score = score * all.scale2 + padding;
            if (row0 + m * 16 + group + half * 8 < first_row || padding == -INFINITY) score = -INFINITY;
          }
      }
  }

  /// Drops some; `first` is the number of the first row's and key's element among all.
  __device__ __forceinline__ void drop(const Heads& all, std::uint64_t base, std::int64_t first, int keys_left) {
    const int pair = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < C::keys / 16; ++n) {
      if (n * 16 >= keys_left) break;
#pragma unroll
      for (int m = 0; m < C::row_tiles; ++m) {
        const unsigned kept = draw_kept(all, base, first + std::int64_t(m) * 16 * all.length + n * 16) >> 2 * pair;
#pragma unroll
        for (int k = 0; k < 8; ++k)
          if (!(kept >> (k % 2 + k / 4 * 8 + k / 2 % 2 * 16) & 1)) values[m][n * 2 + k / 4][k % 4] = 0;
      }
    }
  }
};

template <class T, bool drops, class C>
__global__ void __launch_bounds__(C::threads, C::blocks) attend(const T* qkv, T* y, float* log_sums, __grid_constant__ const Heads all) {
  extern __shared__ uint4 shared[];
  constexpr int width = C::width, row_tiles = C::row_tiles, depth = width / 16;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, pair = lane % 4;
  // The rows that see most keys go first.
  const int unit = blockIdx.x / all.count(), row_blocks = gridDim.x / all.count(), at = blockIdx.x % all.count();
  const int sequence = at / all.heads, head = at % all.heads;
  const int first = (all.causal ? row_blocks - 1 - unit : unit) * C::rows, row0 = first + warp * row_tiles * 16;
  const int opened = all.opened(sequence);
  const std::int64_t part = all.row_size(), stride = 3 * part;
  const T* const q = qkv + std::int64_t(sequence) * all.length * stride + head * all.head_dim;
  const T *const k = q + part, *const v = k + part;

  const unsigned q_tile = tile_address(shared), stages = q_tile + C::query_bytes;
  const int end = all.causal ? min(all.length, max(first + C::rows, opened)) : all.length, tiles = (end + C::keys - 1) / C::keys;
  load_tile<T, width, C::rows, C::threads>(q_tile, q, stride, first, all);
  const auto load_stage = [&](int tile) {
    const unsigned to = stages + tile % 2 * C::stage_bytes;
    load_tile<T, width, C::keys, C::threads>(to, k, stride, tile * C::keys, all);
    load_tile<T, width, C::keys, C::threads>(to + C::tile_bytes, v, stride, tile * C::keys, all);
  };
  load_stage(0);
  commit_copies();

  const std::uint64_t base = drops ? draws_base(all) : 0;
  const float factor = all.padding ? 1 : all.scale2;
  unsigned queries[row_tiles][depth][4];
  float sums[row_tiles][width / 8][4] = {}, most[row_tiles][2], totals[row_tiles][2] = {};
#pragma unroll
  for (int m = 0; m < row_tiles; ++m) most[m][0] = most[m][1] = -INFINITY;

  for (int tile = 0; tile < tiles; ++tile) {
    wait_copies<0>();
    __syncthreads();
    if (tile == 0) {
      const auto place = Places<width>::left(q_tile);
#pragma unroll
      for (int m = 0; m < row_tiles; ++m)
#pragma unroll
        for (int d = 0; d < depth; ++d) load_matrices(queries[m][d], place((warp * row_tiles + m) * 16, 2 * d));
    }
    if (tile + 1 < tiles) load_stage(tile + 1);
    commit_copies();

    const int key0 = tile * C::keys;
    if (row0 >= all.length || (all.causal && key0 >= opened && key0 >= row0 + row_tiles * 16)) continue;  // nothing to see for this warp
    const unsigned k_tile = stages + tile % 2 * C::stage_bytes;

    Scores<C> scores = {};
    const auto k_place = Places<width>::right(k_tile);
#pragma unroll
    for (int d = 0; d < depth; ++d)
#pragma unroll
      for (int n = 0; n < C::keys / 16; ++n) {
        unsigned b[4];
        load_matrices(b, k_place(n * 16, 2 * d));
#pragma unroll
        for (int m = 0; m < row_tiles; ++m) {
          multiply<T>(scores.values[m][2 * n], queries[m][d], b[0], b[1]);
          multiply<T>(scores.values[m][2 * n + 1], queries[m][d], b[2], b[3]);
        }
      }

    if (all.padding || key0 + C::keys > all.length || (all.causal && key0 + C::keys > row0 + 1))
      scores.mask(all, sequence, row0, key0, opened);
#pragma unroll
    for (int m = 0; m < row_tiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float here = -INFINITY;
#pragma unroll
        for (int n = 0; n < C::keys / 8; ++n) here = fmaxf(here, fmaxf(scores.values[m][n][half * 2], scores.values[m][n][half * 2 + 1]));
        here = fmaxf(here, shuffle_xor(here, 1));
        here = fmaxf(here, shuffle_xor(here, 2));
        const float before = most[m][half];
        most[m][half] = fmaxf(before, here);
        const float shift = most[m][half] == -INFINITY ? 0 : most[m][half] * factor, shrink = exp2_fast(before * factor - shift);
        float total = 0;
#pragma unroll
        for (int n = 0; n < C::keys / 8; ++n)
#pragma unroll
          for (int side = 0; side < 2; ++side) {
            float& score = scores.values[m][n][half * 2 + side];
            score = exp2_fast(score * factor - shift);
            total += score;
          }
        totals[m][half] = totals[m][half] * shrink + total;
        if (__any_sync(whole_warp, shrink != 1))  // after some tiles the largest score is rarely a new one
#pragma unroll
          for (int d = 0; d < width / 8; ++d) {
            sums[m][d][half * 2] *= shrink;
            sums[m][d][half * 2 + 1] *= shrink;
          }
      }
    if constexpr (drops) scores.drop(all, base, (std::int64_t(at) * all.length + row0) * all.length + key0, end - key0);

    const auto v_place = Places<width>::left(k_tile + C::tile_bytes);
#pragma unroll
    for (int n = 0; n < C::keys / 16; ++n) {
      unsigned weights[row_tiles][4];
#pragma unroll
      for (int m = 0; m < row_tiles; ++m) pack_left<T>(weights[m], scores.values[m][2 * n], scores.values[m][2 * n + 1]);
#pragma unroll
      for (int d = 0; d < depth; ++d) {
        unsigned b[4];
        load_matrices_turned(b, v_place(n * 16, 2 * d));
#pragma unroll
        for (int m = 0; m < row_tiles; ++m) {
          multiply<T>(sums[m][2 * d], weights[m], b[0], b[1]);
          multiply<T>(sums[m][2 * d + 1], weights[m], b[2], b[3]);
        }
      }
    }
  }

#pragma unroll
  for (int m = 0; m < row_tiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float total = totals[m][half];
      total += shuffle_xor(total, 1);
      total += shuffle_xor(total, 2);
      const int row = row0 + m * 16 + group + half * 8;
      if (row >= all.length) continue;
      const float weight = total > 0 ? all.inverse_keep / total : 0;
      if (pair == 0) log_sums[std::int64_t(at) * all.length + row] = total > 0 ? most[m][half] * factor + log2f(total) : INFINITY;
      T* const to = y + (std::int64_t(sequence) * all.length + row) * part + head * all.head_dim + 2 * pair;
#pragma unroll
      for (int d = 0; d < width / 8; ++d)
        if (d * 8 < all.head_dim)
          *reinterpret_cast<unsigned*>(to + d * 8) = pack_pair<T>(sums[m][d][half * 2] * weight, sums[m][d][half * 2 + 1] * weight);
    }
}

template <class T, bool drops, class C>
void launch_attend(const View& qkv, const Heads& all, const View& y, const View& log_sums) {
  const std::int64_t row_blocks = (all.length + C::rows - 1) / C::rows;
  const int stages = all.length > C::keys ? 2 : 1;
  launch_tiles(attend<T, drops, C>, row_blocks * all.batch * all.heads, C::threads, C::query_bytes + stages * C::stage_bytes, qkv.stream,
               qkv.as<const T>(), y.as<T>(), log_sums.as<float>(), all);
}

}  // namespace

bool has_flash_attention(Cuda, Device device, DType dtype, std::int64_t head_dim) {
  if ((dtype != DType::f16 && dtype != DType::bf16) || head_dim <= 0 || head_dim > 128 || head_dim % 8 != 0) return false;
  // The backward pass keeps up to 162 KiB of tiles, for which compute capabilities 8.6 and 8.9 have no room.
  return attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device) >= 162 << 10;
}

void flash_attention(Cuda, const View& qkv, const Attention& attention, const View& y, const View& log_sums) {
  if (y.numel() == 0) return;
  const Heads all = heads_of(qkv, attention);
  dispatch(y.dtype, all, [&]<class T, bool drops>() {
    dispatch_width(all.head_dim, [&]<int width>() {
      if constexpr (width <= 32) {
        if (all.length <= 48) return launch_attend<T, drops, Cut<width, 3, 1, 48, 1>>(qkv, all, y, log_sums);
      }
      if constexpr (width <= 64) {
        // A warp with 32 rows loads the keys half as often, but there must be enough blocks of such warps to keep the device busy.
        if ((all.length + 127) / 128 * std::int64_t(all.batch) * all.heads >= 400)
          return launch_attend<T, drops, Cut<width, 4, 2, 64, 2>>(qkv, all, y, log_sums);
      }
      launch_attend<T, drops, Cut<width, 4, 1, 64, 1>>(qkv, all, y, log_sums);
    });
  });
}

}  // namespace tern::kernels
