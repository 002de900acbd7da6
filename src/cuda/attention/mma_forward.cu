#include "cuda/attention/mma.cuh"
#include "cuda/device/online_softmax.cuh"

// Flash attention by mma.sync, forward: Dao, "FlashAttention-2", 2023. A block has some rows of queries of one head and loops over the
// tiles of keys that they see, with the maximum and the sum of an online softmax; a warp has 16 or 32 of the rows. Only q, k and v are read
// from global memory, and only the result and log_sums are written; from log_sums, log2 of the sum of each row's exponentials, the backward
// pass recomputes the probabilities.
//
//     shared memory    Q (rows, d)  |  stage 0: K, V (keys, d)  |  stage 1: K, V of the next tile
//     all warps        cp.async of tile i + 1 to one stage, while they multiply tile i in the other; one __syncthreads a tile
//     registers        Q as left operand (to d = 128), S = Q K^T (rows, keys), y (rows, d), a maximum and a sum a row
//
//     S = Q K^T  ->  padding, bias, mask  ->  S = 2^(S - max)  ->  dropout  ->  y = y 2^(old max - max) + S V
//
// The rounded fragments of S are those of the left operand of the product with V, so scores never leave the registers.
namespace tern::gpu {

using namespace ampere;

namespace {

template <int width_, int warps_, int warp_rows_, int keys_, int min_blocks_>
struct ForwardConfig {
  static constexpr int width = width_;                  ///< size of a head, padded
  static constexpr int warps = warps_;                  ///< warps of a block
  static constexpr int warp_rows = warp_rows_;          ///< queries of each warp
  static constexpr int keys = keys_;                    ///< keys of a tile
  static constexpr int min_blocks = min_blocks_;        ///< blocks that a multiprocessor has registers for
  static constexpr bool caches_queries = width <= 128;  ///< queries stay in registers
  static constexpr int rows = warps * warp_rows, threads = warps * 32;
  static constexpr int query_bytes = SharedTile<width>::bytes(rows), tile_bytes = SharedTile<width>::bytes(keys),
                       stage_bytes = 2 * tile_bytes;
  static constexpr int bytes(int stages) { return query_bytes + stages * stage_bytes; }
  using Scores = FragmentTile<warp_rows, keys>;
  using Queries = std::conditional_t<caches_queries, RegisterOperand<warp_rows, width>, OperandA<width>>;
};

struct ForwardParams {
  Args args;
  Heads q, k, v, y;
  Bias bias;
  float* log_sums;    ///< (B, H, T), twice with a bias
  bool adds_bias;     ///< scores are scaled, and padding and bias added, before the mask; also set for a scale <= 0
  bool is_aligned;    ///< q, k and v can be read 16 bytes at a time
  bool writes_pairs;  ///< y can be written 4 bytes at a time
};

/// Scales scores, and adds padding and bias; row0 and key0 are the indices of the first query and key.
template <class T, Flavour flavour, class Scores>
__device__ __forceinline__ void add_to_scores(Scores& scores, const ForwardParams& p, const Sequence& sequence, int index, int row0,
                                              int key0) {
  const Args& args = p.args;
#pragma unroll
  for (int c = 0; c < Scores::lane_columns; ++c) {
    const int key = key0 + Scores::column_of(c);
    const float padding = padding_log2(args, sequence, index / args.heads, key);
#pragma unroll
    for (int r = 0; r < Scores::lane_rows; ++r) {
      const int query = row0 + Scores::row_of(r);
      float added = padding;
      if constexpr (flavour == Flavour::whole)
        if (p.bias.data && key < sequence.limit && query < sequence.queries) added += p.bias.template at<T>(args, index, query, key);
      scores.at(r, c) = scores.at(r, c) * args.scale_log2 + added;
    }
  }
}

/// Mask: scores of keys outside of a query's range become -inf.
template <Flavour flavour, class Scores>
__device__ __forceinline__ void mask(Scores& scores, const Sequence& sequence, int row0, int key0) {
  const int first = key0 + Scores::column_of(0);
#pragma unroll
  for (int r = 0; r < Scores::lane_rows; ++r) {
    const int query = row0 + Scores::row_of(r), end = sequence.key_end(query) - first, begin = sequence.key_begin(query) - first;
#pragma unroll
    for (int c = 0; c < Scores::lane_columns; ++c)
      if (c / 2 * 8 + c % 2 >= end || (flavour != Flavour::plain && c / 2 * 8 + c % 2 < begin)) scores.at(r, c) = -INFINITY;
  }
}

/// Dropout: sets dropped probabilities to 0. `first` is the index of the tile's first element among all probabilities.
template <class Scores>
__device__ __forceinline__ void drop(Scores& scores, const Args& args, std::uint64_t position, std::int64_t first, int keys_left) {
#pragma unroll
  for (int n = 0; n < Scores::columns / 16; ++n) {
    if (n * 16 >= keys_left) break;
#pragma unroll
    for (int m = 0; m < Scores::row_tiles; ++m) {
      const unsigned kept = args.dropout.kept_16x16<MmaLanes>(args.keys, position, first + std::int64_t(m) * 16 * args.keys + n * 16) >>
                            2 * MmaLanes::member();
#pragma unroll
      for (int k = 0; k < 8; ++k)
        if (!(kept >> (k % 2 + k / 4 * 8 + k / 2 % 2 * 16) & 1)) scores.values[m][n * 2 + k / 4][k % 4] = 0;
    }
  }
}

template <class T, class C, Flavour flavour>
__global__ void __launch_bounds__(C::threads, C::min_blocks) mma_attention_forward(__grid_constant__ const ForwardParams p) {
  extern __shared__ uint4 shared[];
  using Scores = typename C::Scores;
  constexpr int width = C::width, lane_rows = Scores::lane_rows;
  constexpr bool is_general = flavour != Flavour::plain, drops = flavour == Flavour::whole;
  const Args& args = p.args;
  const int warp = threadIdx.x / 32;
  // Rows that see most keys go first.
  const int unit = blockIdx.x / args.all_heads(), row_blocks = gridDim.x / args.all_heads();
  const int index = blockIdx.x % args.all_heads(), head = index % args.heads;  // index: head, counted over all sequences
  const Sequence sequence = sequence_of<flavour>(args, index / args.heads);
  const int first = (args.causal ? row_blocks - 1 - unit : unit) * C::rows, row0 = first + warp * C::warp_rows;
  if (is_general && first >= sequence.queries) return;
  const T* const q = p.q.template at<const T>(sequence.batch, sequence.first_query, head);
  const T* const k = p.k.template at<const T>(sequence.batch, sequence.first_key, head / args.group());
  const T* const v = p.v.template at<const T>(sequence.batch, sequence.first_key, head / args.group());

  const unsigned q_tile = shared_address(shared), stages = q_tile + C::query_bytes;
  const int begin = sequence.key_begin(first) / C::keys,
            end = ceil_div(sequence.key_end(min(first + C::rows, sequence.queries) - 1), C::keys);
  load_tile<T, width, C::rows, C::threads>(q_tile, q, p.q.row_stride, first, sequence.queries, args.head_dim, p.is_aligned);
  const auto load_stage = [&](int tile) {
    const unsigned to = stages + (tile - begin) % 2 * C::stage_bytes;
    load_tile<T, width, C::keys, C::threads>(to, k, p.k.row_stride, tile * C::keys, sequence.keys, args.head_dim, p.is_aligned);
    load_tile<T, width, C::keys, C::threads>(to + C::tile_bytes, v, p.v.row_stride, tile * C::keys, sequence.keys, args.head_dim,
                                             p.is_aligned);
  };
  load_stage(begin);
  cp_async_commit();

  const std::uint64_t position = drops ? args.dropout.position() : 0;
  const float factor = is_general && p.adds_bias ? 1 : args.scale_log2;
  // The keys seen_begin to seen_end - 1 are seen by some row of the warp, and those from whole_begin to whole_end - 1 by all.
  const int last = min(row0 + C::warp_rows, sequence.queries) - 1;
  const int seen_begin = sequence.key_begin(row0), seen_end = row0 < sequence.queries ? sequence.key_end(last) : 0;
  const int whole_begin = sequence.key_begin(last), whole_end = sequence.key_end(row0);
  typename C::Queries queries = [&] {
    if constexpr (C::caches_queries) return typename C::Queries{};
    else return typename C::Queries(q_tile, warp * C::warp_rows);
  }();
  FragmentTile<C::warp_rows, width> sums = {};        // sums of y, before the division
  float row_max[lane_rows], row_sum[lane_rows] = {};  // row_max: scaled
#pragma unroll
  for (int r = 0; r < lane_rows; ++r) row_max[r] = -INFINITY;

  for (int tile = begin; tile < end; ++tile) {
    cp_async_wait<0>();
    __syncthreads();
    if constexpr (C::caches_queries)
      if (tile == begin) queries.template assign<T>(OperandA<width>(q_tile, warp * C::warp_rows));
    if (tile + 1 < end) load_stage(tile + 1);
    cp_async_commit();

    const int key0 = tile * C::keys;
    if (key0 >= seen_end || (is_general && key0 + C::keys <= seen_begin)) continue;
    const unsigned k_tile = stages + (tile - begin) % 2 * C::stage_bytes, v_tile = k_tile + C::tile_bytes;

    Scores scores = {};
    mma<T, width>(Product(scores, queries, OperandBt<width>(k_tile)));
    if constexpr (is_general) {
      if (p.adds_bias) add_to_scores<T, flavour>(scores, p, sequence, index, row0, key0);
    }
    if (key0 + C::keys > whole_end || (is_general && key0 < whole_begin)) mask<flavour>(scores, sequence, row0, key0);
#pragma unroll
    for (int r = 0; r < lane_rows; ++r) {
      const auto [shift, rescale] = RaisedMax(row_max[r], scores.row_max(r) * factor);
      float own_factor = factor;
      if (__any_sync(whole_warp, fabsf(shift) >= large_score)) {
        scores.scale_row(r, factor);
        own_factor = 1;
      }
      scores.exp2_row(r, own_factor, shift);
      row_sum[r] = row_sum[r] * rescale + scores.partial_row_sum(r);
      if (__any_sync(whole_warp, rescale != 1)) sums.scale_row(r, rescale);  // after the first tiles the maximum rarely changes
    }
    if constexpr (drops) {
      if (args.dropout.drops) drop(scores, args, position, (std::int64_t(index) * args.queries + row0) * args.keys + key0, seen_end - key0);
    }
    mma<T, C::keys>(Product(sums, scores, OperandB<width>(v_tile)));
  }
  cp_async_wait<0>();

#pragma unroll
  for (int r = 0; r < lane_rows; ++r) {
    const float total = Scores::combine_sum(row_sum[r]);
    const int row = row0 + Scores::row_of(r);
    if (row >= sequence.queries) continue;
    const float weight = total > 0 ? args.inverse_keep / total : 0;
    if (MmaLanes::member() == 0) {
      const float log_total = log2f(total), log_sum = total > 0 ? row_max[r] + log_total : INFINITY;
      float* const kept = p.log_sums + first_row(args, sequence, index / args.heads, index) + row;
      if (drops && p.bias.data) {
        *kept = log_sum;
        kept[args.all_rows()] = total > 0 ? row_max[r] - log_sum + log_total : 0;
      } else {
        *kept = kept_log_sum(log_sum);
      }
    }
    store_row(sums, r, weight, p.y.template at<T>(sequence.batch, sequence.first_query + row, head), 0, args.head_dim, p.writes_pairs);
  }
}

template <class T, class C, Flavour flavour>
void launch_forward(const ForwardParams& params, Stream stream) {
  const Args& args = params.args;
  static_assert(C::bytes(2) <= 99 << 10, "compute capabilities 8.6 and 8.9 have no more shared memory");
  const std::int64_t row_blocks = ceil_div(args.queries, C::rows);
  launch(mma_attention_forward<T, C, flavour>, blocks_for(row_blocks * args.all_heads(), 1), C::threads,
         C::bytes(args.keys > C::keys ? 2 : 1), stream, params);
}

/// Number of blocks of 128 queries from which on a warp takes 32 rows: it then loads keys half as often, but there must be enough blocks to
/// keep the device busy, about three for each of an H200's 132 multiprocessors. Other devices use the same number.
constexpr std::int64_t wide_warp_blocks = 400;

}  // namespace

bool has_mma_attention(const View& q) {
  const std::int64_t head_dim = q.shape[3];
  return (q.dtype == DType::f16 || q.dtype == DType::bf16) && head_dim > 0 && head_dim <= 256 && head_dim % 8 == 0 &&
         attribute(cudaDevAttrComputeCapabilityMajor, q.stream.device) >= 8;
}

void mma_attention(const AttentionCall& call) {
  const auto& [q, k, v, attention, y, log_sums] = call;
  if (log_sums.numel() == 0) return;
  const Args args(q, k, attention);
  const ForwardParams params{args,
                             Heads(q),
                             Heads(k),
                             Heads(v),
                             Heads(y),
                             Bias(attention.bias),
                             log_sums.as<float>(),
                             args.padding || attention.bias.data || args.scale <= 0,
                             ampere::rows_are_aligned({&q, &k, &v}, 16),
                             ampere::rows_are_aligned({&y}, 4)};
  const bool has_wide_warps = ceil_div(args.queries, 128) * std::int64_t(args.all_heads()) >= wide_warp_blocks;
  const auto with = [&]<class C, bool is_rare>() {
    dispatch<is_rare>(q.dtype, args, attention, [&]<class T, Flavour flavour>() { launch_forward<T, C, flavour>(params, q.stream); });
  };
  if (args.head_dim <= 32) {
    if (args.queries <= 48) with.template operator()<ForwardConfig<32, 3, 16, 48, 1>, false>();
    else if (has_wide_warps) with.template operator()<ForwardConfig<32, 4, 32, 64, 2>, false>();
    else with.template operator()<ForwardConfig<32, 4, 16, 64, 1>, false>();
  } else if (args.head_dim <= 64) {
    if (has_wide_warps) with.template operator()<ForwardConfig<64, 4, 32, 64, 2>, false>();
    else with.template operator()<ForwardConfig<64, 4, 16, 64, 1>, false>();
  } else if (args.head_dim <= 96) {
    with.template operator()<ForwardConfig<96, 4, 16, 64, 1>, true>();
  } else if (args.head_dim <= 128) {
    with.template operator()<ForwardConfig<128, 4, 16, 64, 1>, false>();
  } else {
    with.template operator()<ForwardConfig<256, 4, 16, 32, 2>, true>();
  }
}

}  // namespace tern::gpu
