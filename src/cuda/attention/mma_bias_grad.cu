#include "cuda/attention/mma.cuh"
#include "cuda/runtime/allocator.h"
#include "ops/kernels/reduce.h"

// Gradient of a bias of scores by mma.sync: dS of all batch rows, heads, queries and keys, as in mma_backward.cu, summed over the
// dimensions along which the bias is broadcast. A block has a unit, a tile of (B, H, T, S) at the first index of the summed dimensions, and
// loops over the unit's terms, the tiles at all other indices. It recomputes S and dP of each and accumulates dS in registers.
//
//     shared memory    stage 0: K, V (keys, d), Q, dY (queries, d), log_sums, delta, place  |  stage 1, if any: those of the next term
//                      at the end: the sums (queries, keys)
//     each warp        16 keys:  S = K Q^T,  dP = V dY^T,  sums += dS  of each query sub-tile
//     at the end       sums over the tile's keys, over its queries, or neither  ->  dbias, written once
// If there are few units, several blocks share the terms of a unit and leave partial sums in memory, which are added in the order of the
// blocks. So the sums are the same in every run (see Note [Ordered sums]).
namespace tern::gpu::ampere {

namespace {

/// Position of a tile of scores: its sequence, its head within the sequence, its first query and key.
struct alignas(16) ScorePlace {
  int index, head, query, key;
};

template <int width_, int key_warps_, int queries_, int sub_queries_, int stages_, int min_blocks_>
struct BiasGradConfig {
  static constexpr int width = width_;              ///< size of a head, padded
  static constexpr int queries = queries_;          ///< queries of a tile
  static constexpr int sub_queries = sub_queries_;  ///< queries of a sub-tile: the scores that a warp has at a time
  static constexpr int stages = stages_;            ///< 2: the next term is prefetched; 1: other blocks hide the latency
  static constexpr int min_blocks = min_blocks_;    ///< blocks that a multiprocessor has registers for
  static constexpr int warps = key_warps_, keys = warps * 16, threads = warps * 32;
  static constexpr int key_bytes = SharedTile<width>::bytes(keys), query_bytes = SharedTile<width>::bytes(queries);
  static constexpr int row_bytes = queries * 2 * static_cast<int>(sizeof(float));  ///< log_sums and delta
  static constexpr int stage_bytes = 2 * (key_bytes + query_bytes) + row_bytes + static_cast<int>(sizeof(ScorePlace));
  static constexpr int pitch = keys + 4;  ///< row pitch of the sums, so that a warp's stores go to different banks
  static constexpr int bytes = std::max(stages * stage_bytes, queries * pitch * static_cast<int>(sizeof(float)));
  static_assert(bytes <= 99 << 10, "compute capabilities 8.6 and 8.9 have no more shared memory");
};

struct BiasGradParams : BackwardInputs {
  void* dbias = nullptr;                 ///< contiguous; null if there are parts
  float* parts = nullptr;                ///< (splits, elements)
  std::int64_t elements = 0;             ///< elements of dbias
  int counts[4] = {};                    ///< numbers of sequences, heads, tiles of queries, tiles of keys
  bool is_summed[4] = {};                ///< the bias is broadcast along them
  int units = 0, terms = 0, splits = 1;  ///< splits: number of blocks that share a unit's terms
};

/// Tile of scores that is a term of a unit.
template <class C>
__device__ __forceinline__ ScorePlace place_of(const BiasGradParams& p, int unit, int term) {
  int at[4];
#pragma unroll
  for (int d = 3; d >= 0; --d) {
    const int number = p.is_summed[d] ? term : unit, rest = number / p.counts[d];
    at[d] = number - rest * p.counts[d];
    (p.is_summed[d] ? term : unit) = rest;
  }
  return {at[0], at[1], at[2] * C::queries, at[3] * C::keys};
}

/// Reduces a block's sums (queries, keys) over the keys, to the first column, or over the queries, to the first row, or over both.
template <class C>
__device__ __forceinline__ void fold_tile(float* tile, bool over_queries, bool over_keys) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (over_keys) {
    for (int row = warp; row < C::queries; row += C::warps) {
      float sum = 0;
#pragma unroll
      for (int column = 0; column < C::keys; column += 32) sum += tile[row * C::pitch + column + lane];
      sum = warp_all_reduce<PlusOp<float>>(sum);
      __syncwarp();
      if (lane == 0) tile[row * C::pitch] = sum;
    }
    __syncthreads();
  }
  if (over_queries) {
    for (int column = threadIdx.x; column < (over_keys ? 1 : C::keys); column += C::threads) {
      float sum = 0;
#pragma unroll 8
      for (int row = 0; row < C::queries; ++row) sum += tile[row * C::pitch + column];
      tile[column] = sum;
    }
    __syncthreads();
  }
}

template <class T, class C>
__global__ void __launch_bounds__(C::threads, C::min_blocks) mma_attention_bias_grad(__grid_constant__ const BiasGradParams p) {
  extern __shared__ uint4 shared[];
  constexpr Flavour flavour = Flavour::whole;
  constexpr int width = C::width, sub_tiles = C::queries / C::sub_queries;
  const Args& args = p.args;
  const int unit = blockIdx.x % p.units, split = blockIdx.x / p.units;
  const int warp_row = threadIdx.x / 32 * 16;  // first of the warp's keys in the tile
  const unsigned stages = shared_address(shared);

  const auto bytes_of = [&](unsigned address) { return reinterpret_cast<unsigned char*>(shared) + (address - stages); };

  // Finds the block's next term, from `term` on, that is not completely masked, and starts to copy its operands.
  const auto load_stage = [&](unsigned to, int term) {
    for (; term < p.terms; term += p.splits) {
      const ScorePlace place = place_of<C>(p, unit, term);
      const Sequence sequence(args, place.index);
      if (!is_any_visible<true>(sequence, place.query, C::queries, place.key, C::keys)) continue;
      const unsigned queries = to + 2 * C::key_bytes;
      load_keys<T, C, C::threads>(to, p, sequence, place.head / args.group(), place.key);
      load_queries<T, C, C::threads>(queries, p, sequence, place.index, place.index * args.heads + place.head, place.query, true);
      cp_async_commit();
      if (threadIdx.x == 0) *reinterpret_cast<ScorePlace*>(bytes_of(queries + 2 * C::query_bytes + C::row_bytes)) = place;
      break;
    }
    return term;
  };

  Sequence sequence;
  ScoreGradients<T, C, flavour> warp(p, sequence);
  typename decltype(warp)::Scores sums[sub_tiles] = {};
  int term = load_stage(stages, split);
#pragma unroll 1
  for (int step = 0; term < p.terms; ++step) {
    cp_async_wait<0>();
    __syncthreads();
    if (C::stages > 1) term = load_stage(stages + (step + 1) % C::stages * C::stage_bytes, term + p.splits);

    const unsigned k_tile = stages + step % C::stages * C::stage_bytes, v_tile = k_tile + C::key_bytes;
    const unsigned q_tile = v_tile + C::key_bytes, dy_tile = q_tile + C::query_bytes, rows = dy_tile + C::query_bytes;
    const ScorePlace place = *reinterpret_cast<const ScorePlace*>(bytes_of(rows + C::row_bytes));
    sequence = Sequence(args, place.index);
    warp.move_to(place.index, place.key + warp_row);
    const OperandA<width> keys(k_tile, warp_row), values(v_tile, warp_row);
#pragma unroll
    for (int i = 0; i < sub_tiles; ++i) {
      const int sub = i * C::sub_queries;
      if (!warp.is_visible(place.query + sub)) continue;
      warp.multiply(keys, values, q_tile, dy_tile, sub);
      warp.differentiate(place.index * args.heads + place.head, place.query + sub, reinterpret_cast<const float*>(bytes_of(rows)) + sub);
      sums[i].add(warp.dp);
    }
    if (C::stages == 1) {
      __syncthreads();
      term = load_stage(stages, term + p.splits);
    }
  }

  __syncthreads();
  float* const tile = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int i = 0; i < sub_tiles; ++i)
#pragma unroll
    for (int r = 0; r < sums[i].lane_rows; ++r)
#pragma unroll
      for (int c = 0; c < sums[i].lane_columns; ++c)
        tile[(i * C::sub_queries + sums[i].column_of(c)) * C::pitch + warp_row + sums[i].row_of(r)] = sums[i].at(r, c);
  __syncthreads();
  fold_tile<C>(tile, p.is_summed[2], p.is_summed[3]);

  const ScorePlace to = place_of<C>(p, unit, 0);
  const int all_rows = p.is_summed[2] ? 1 : args.queries, all_columns = p.is_summed[3] ? 1 : args.keys;
  const int rows = min(all_rows - to.query, C::queries), columns = min(all_columns - to.key, C::keys);
  const std::int64_t first =
      ((std::int64_t(to.index) * (p.is_summed[1] ? 1 : args.heads) + to.head) * all_rows + to.query) * all_columns + to.key;
  for (int row = threadIdx.x / 32; row < rows; row += C::warps)
    for (int column = threadIdx.x % 32; column < columns; column += 32) {
      const float sum = tile[row * C::pitch + column];
      const std::int64_t at = first + std::int64_t(row) * all_columns + column;
      if (p.parts) p.parts[split * p.elements + at] = sum;
      else static_cast<T*>(p.dbias)[at] = convert<T>(sum);
    }
}

/// Number of blocks that share a sum if there are fewer units: about four for each of an H200's 132 multiprocessors. The same on all
/// devices, so that the sums are the same. Partial sums take the memory of at most as many tiles.
constexpr std::int64_t wanted_blocks = 512;

template <class T, class C>
void launch_bias_grad(const BackwardInputs& inputs, const View& dbias) {
  const Args& args = inputs.args;
  const int counts[] = {args.sequences, args.heads, ceil_div(args.queries, C::queries), ceil_div(args.keys, C::keys)};
  BiasGradParams p{inputs};
  p.elements = dbias.numel();
  std::int64_t units = 1, terms = 1;
  for (int d = 0; d < 4; ++d) {
    p.counts[d] = std::max(counts[d], 1);
    p.is_summed[d] = dbias.shape[d] == 1;
    (p.is_summed[d] ? terms : units) *= counts[d];
  }
  constexpr std::int64_t most = 1 << 30;
  if (units > most || terms > most) fail("attention", "expected at most 2^30 tiles of a bias");
  const std::int64_t splits = std::clamp<std::int64_t>(wanted_blocks / units, 1, std::max<std::int64_t>(terms, 1));
  p.units = static_cast<int>(units), p.terms = static_cast<int>(terms), p.splits = static_cast<int>(splits);
  const Workspace parts(splits > 1 ? static_cast<std::size_t>(splits * p.elements) * sizeof(float) : 0, dbias.stream);
  if (splits > 1) p.parts = parts.as<float>();
  else p.dbias = dbias.data;
  launch(mma_attention_bias_grad<T, C>, blocks_for(units * splits, 1), C::threads, C::bytes, dbias.stream, p);
  if (splits == 1) return;
  const auto columns = static_cast<unsigned>(p.elements);
  kernels::PartialSum sum{p.parts, dbias.data, p.elements, 1, static_cast<unsigned>(splits), columns, dbias.dtype, false};
  kernels::AddPartialSums{{&sum, 1}, dbias.stream}.run(Cuda{});
}

}  // namespace

void sum_bias_gradient(const BackwardInputs& inputs, const View& dbias) {
  if (dbias.numel() == 0) return;
  const auto with = [&]<class C>() { dispatch_halves(dbias.dtype, [&]<class T>() { launch_bias_grad<T, C>(inputs, dbias); }); };
  const int head_dim = inputs.args.head_dim;
  if (head_dim <= 32) with.template operator()<BiasGradConfig<32, 8, 64, 32, 2, 2>>();
  else if (head_dim <= 64) with.template operator()<BiasGradConfig<64, 8, 64, 32, 2, 2>>();
  else if (head_dim <= 128) with.template operator()<BiasGradConfig<128, 8, 64, 32, 1, 2>>();
  else with.template operator()<BiasGradConfig<256, 4, 32, 32, 1, 2>>();
}

}  // namespace tern::gpu::ampere
