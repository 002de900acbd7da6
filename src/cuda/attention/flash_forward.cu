#include "cuda/attention/flash.cuh"
#include "cuda/runtime/launch.h"

// Flash attention, forward: Dao, "FlashAttention-2", 2023. A block has some rows of queries of one head and walks over the keys in tiles,
// with the softmax's maximum and sum of what it has seen so far (online softmax); a warp has 16 or 32 of the rows. Of global memory only
// the projection is read and the result written, and the logarithm of the sum of each row's exponentials, from which the backward pass has
// the probabilities again.
//
//     shared memory    Q (rows, d)  |  stage 0: K, V (keys, d)  |  stage 1: K, V of the next tile
//     all warps        cp.async of tile i + 1 to one stage, while they multiply tile i in the other; one __syncthreads a tile
//     registers        Q as left operand, S = Q K^T (rows, keys), y (rows, d), a maximum and a sum a row
//
//     S = Q K^T  ->  mask  ->  S = 2^(S - max)  ->  dropout  ->  y = y 2^(old max - max) + S V
//
// The fragments of S are, rounded, those of the left operand of the product with V, so scores never leave the registers.
namespace tern::kernels {

using namespace gpu;
using namespace gpu::flash;

namespace {

template <int width_, int warps_, int warp_rows_, int keys_, int min_blocks_>
struct ForwardConfig {
  static constexpr int width = width_;            ///< of a head, filled up
  static constexpr int warps = warps_;            ///< of a block
  static constexpr int warp_rows = warp_rows_;    ///< queries of each warp
  static constexpr int keys = keys_;              ///< of a tile
  static constexpr int min_blocks = min_blocks_;  ///< that a multiprocessor has registers for
  static constexpr int rows = warps * warp_rows, threads = warps * 32;
  static constexpr int query_bytes = SharedTile<width>::bytes(rows), tile_bytes = SharedTile<width>::bytes(keys),
                       stage_bytes = 2 * tile_bytes;
  using Scores = FragmentTile<warp_rows, keys>;
};

/// Hides what the rows do not see, adds the padding, and multiplies by scale_log2 if there is one.
template <class Scores>
__device__ __forceinline__ void mask(Scores& scores, const AttentionArgs& args, int sequence, int row0, int key0, int prefix_len) {
#pragma unroll
  for (int c = 0; c < Scores::lane_columns; ++c) {
    const int key = key0 + Scores::column_of(c);
    const float padding = padding_log2(args, sequence, key);
    const int first_row = args.causal && key >= prefix_len ? key : 0;  // that sees the key
#pragma unroll
    for (int r = 0; r < Scores::lane_rows; ++r) {
      float& score = scores.at(r, c);
      if (args.padding) score = score * args.scale_log2 + padding;
      if (row0 + Scores::row_of(r) < first_row || padding == -INFINITY) score = -INFINITY;
    }
  }
}

/// Drops some scores; `first` is the number of the first row's and key's element among all.
template <class Scores>
__device__ __forceinline__ void drop(Scores& scores, const AttentionArgs& args, std::uint64_t position, std::int64_t first, int keys_left) {
#pragma unroll
  for (int n = 0; n < Scores::columns / 16; ++n) {
    if (n * 16 >= keys_left) break;
#pragma unroll
    for (int m = 0; m < Scores::row_tiles; ++m) {
      const unsigned kept = kept_16x16(args, position, first + std::int64_t(m) * 16 * args.length + n * 16) >> 2 * MmaLanes::member();
#pragma unroll
      for (int k = 0; k < 8; ++k)
        if (!(kept >> (k % 2 + k / 4 * 8 + k / 2 % 2 * 16) & 1)) scores.values[m][n * 2 + k / 4][k % 4] = 0;
    }
  }
}

template <class T, bool drops, class C>
__global__ void __launch_bounds__(C::threads, C::min_blocks)
    flash_attention_forward(const T* qkv, T* y, float* log_sums, __grid_constant__ const AttentionArgs args) {
  extern __shared__ uint4 shared[];
  using Scores = typename C::Scores;
  constexpr int width = C::width, lane_rows = Scores::lane_rows;
  const int warp = threadIdx.x / 32;
  // The rows that see most keys go first.
  const int unit = blockIdx.x / args.batch_heads(), row_blocks = gridDim.x / args.batch_heads();
  const int batch_head = blockIdx.x % args.batch_heads(), sequence = batch_head / args.heads, head = batch_head % args.heads;
  const int first = (args.causal ? row_blocks - 1 - unit : unit) * C::rows, row0 = first + warp * C::warp_rows;
  const int prefix_len = args.prefix_len(sequence);
  const std::int64_t part = args.row_size(), stride = 3 * part;
  const T* const q = qkv + std::int64_t(sequence) * args.length * stride + head * args.head_dim;
  const T *const k = q + part, *const v = k + part;

  const unsigned q_tile = shared_address(shared), stages = q_tile + C::query_bytes;
  const int end = args.causal ? min(args.length, max(first + C::rows, prefix_len)) : args.length;
  const int tiles = (end + C::keys - 1) / C::keys;
  load_tile<T, width, C::rows, C::threads>(q_tile, q, stride, first, args);
  const auto load_stage = [&](int tile) {
    const unsigned to = stages + tile % 2 * C::stage_bytes;
    load_tile<T, width, C::keys, C::threads>(to, k, stride, tile * C::keys, args);
    load_tile<T, width, C::keys, C::threads>(to + C::tile_bytes, v, stride, tile * C::keys, args);
  };
  load_stage(0);
  cp_async_commit();

  const std::uint64_t position = drops ? args.dropout.position() : 0;
  const float factor = args.padding ? 1 : args.scale_log2;  // mask() scales where there is padding
  RegisterOperand<C::warp_rows, width> queries;
  FragmentTile<C::warp_rows, width> sums = {};  // of y, before the division
  float row_max[lane_rows], row_sum[lane_rows] = {};
#pragma unroll
  for (int r = 0; r < lane_rows; ++r) row_max[r] = -INFINITY;

  for (int tile = 0; tile < tiles; ++tile) {
    cp_async_wait<0>();
    __syncthreads();
    if (tile == 0) queries.template assign<T>(OperandA<width>(q_tile, warp * C::warp_rows));
    if (tile + 1 < tiles) load_stage(tile + 1);
    cp_async_commit();

    const int key0 = tile * C::keys;
    if (row0 >= args.length || (args.causal && key0 >= prefix_len && key0 >= row0 + C::warp_rows)) continue;  // this warp sees no key
    const unsigned k_tile = stages + tile % 2 * C::stage_bytes, v_tile = k_tile + C::tile_bytes;

    Scores scores = {};
    mma<T, width>(Product(scores, queries, OperandBt<width>(k_tile)));
    if (args.padding || key0 + C::keys > args.length || (args.causal && key0 + C::keys > row0 + 1))
      mask(scores, args, sequence, row0, key0, prefix_len);
#pragma unroll
    for (int r = 0; r < lane_rows; ++r) {
      const float before = row_max[r];
      row_max[r] = fmaxf(before, scores.row_max(r));
      const float shift = row_max[r] == -INFINITY ? 0 : row_max[r] * factor, rescale = exp2_approx(before * factor - shift);
      scores.exp2_row(r, factor, shift);
      row_sum[r] = row_sum[r] * rescale + scores.partial_row_sum(r);
      if (__any_sync(whole_warp, rescale != 1)) sums.scale_row(r, rescale);  // after some tiles the maximum is rarely a new one
    }
    if constexpr (drops) drop(scores, args, position, (std::int64_t(batch_head) * args.length + row0) * args.length + key0, end - key0);
    mma<T, C::keys>(Product(sums, scores, OperandB<width>(v_tile)));
  }

#pragma unroll
  for (int r = 0; r < lane_rows; ++r) {
    const float total = Scores::combine_sum(row_sum[r]);
    const int row = row0 + Scores::row_of(r);
    if (row >= args.length) continue;
    const float weight = total > 0 ? args.inverse_keep / total : 0;
    if (MmaLanes::member() == 0)
      log_sums[std::int64_t(batch_head) * args.length + row] = total > 0 ? row_max[r] * factor + log2f(total) : INFINITY;
    T* const to = y + (std::int64_t(sequence) * args.length + row) * part + head * args.head_dim;
    sums.template store_row<T>(r, weight, to, 0, args.head_dim);
  }
}

template <class T, bool drops, class C>
void launch_forward(const View& qkv, const AttentionArgs& args, const View& y, const View& log_sums) {
  const std::int64_t row_blocks = (args.length + C::rows - 1) / C::rows;
  const int stages = args.length > C::keys ? 2 : 1;
  launch(flash_attention_forward<T, drops, C>, blocks_for(row_blocks * args.batch * args.heads, 1), C::threads,
         C::query_bytes + stages * C::stage_bytes, qkv.stream, qkv.as<const T>(), y.as<T>(), log_sums.as<float>(), args);
}

/// Blocks of 128 queries from which on a warp takes 32 rows: it then loads keys half as often, but there must be enough blocks to keep the
/// device busy. Fitted on one H200, about three for each of its 132 multiprocessors. Of the rows of bench/ops.md, "Attention on one H200",
/// (4, 12, 1024, 64) has 384 and stays below, (1, 16, 4096, 64) has 512. Other devices take the same number.
constexpr std::int64_t wide_warp_blocks = 400;

}  // namespace

bool has_projection_attention(Cuda, Device device, DType dtype, std::int64_t head_dim) {
  if ((dtype != DType::f16 && dtype != DType::bf16) || head_dim <= 0 || head_dim > 128 || head_dim % 8 != 0) return false;
  // The backward pass keeps up to 162 KiB of tiles, for which compute capabilities 8.6 and 8.9 have no room.
  return attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device) >= 162 << 10;
}

void projection_attention(Cuda, const View& qkv, const Attention& attention, const View& y, const View& log_sums) {
  if (y.numel() == 0) return;
  const AttentionArgs args(qkv, attention);
  dispatch(y.dtype, args, [&]<class T, bool drops>() {
    dispatch_width(args.head_dim, [&]<int width>() {
      if constexpr (width <= 32) {
        if (args.length <= 48) return launch_forward<T, drops, ForwardConfig<width, 3, 16, 48, 1>>(qkv, args, y, log_sums);
      }
      if constexpr (width <= 64) {
        if ((args.length + 127) / 128 * std::int64_t(args.batch) * args.heads >= wide_warp_blocks)
          return launch_forward<T, drops, ForwardConfig<width, 4, 32, 64, 2>>(qkv, args, y, log_sums);
      }
      launch_forward<T, drops, ForwardConfig<width, 4, 16, 64, 1>>(qkv, args, y, log_sums);
    });
  });
}

}  // namespace tern::kernels
