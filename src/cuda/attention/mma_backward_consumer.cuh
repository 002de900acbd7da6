#pragma once
#include "cuda/attention/mma_backward_work.cuh"
#include "tensor/ceil_div.h"

// Flash attention by mma.sync, backward: the consumer warps. mma_backward.cu has the picture.
namespace tern::gpu::ampere {

/// True if any of the queries sees any of the keys.
template <bool is_general>
__device__ __forceinline__ bool is_any_visible(const Sequence& sequence, int query0, int queries, int key0, int keys) {
  return query0 < sequence.queries && key0 < sequence.key_end(query0 + queries - 1) &&
         (!is_general || key0 + keys > sequence.key_begin(query0));
}

/// A warp's scores of 16 keys and a sub-tile of queries at a time, and their gradients.
template <class T, class C, Flavour flavour>
struct ScoreGradients {
  static constexpr int width = C::width, sub_queries = C::sub_queries;
  static constexpr bool is_general = flavour != Flavour::plain, drops = flavour == Flavour::whole;
  using Scores = FragmentTile<16, sub_queries>;  // (keys, queries)

  const BackwardInputs& in;
  const Args& args;
  const Sequence& sequence;
  int key0 = 0, index = 0;  ///< index: of the sequence
  std::uint64_t dropout_position;
  float padding[is_general ? Scores::lane_rows : 1];
  Scores s, dp;
  RegisterOperand<16, sub_queries> p_operand, ds_operand;

  __device__ __forceinline__ ScoreGradients(const BackwardInputs& in_, const Sequence& sequence_)
      : in(in_), args(in_.args), sequence(sequence_), dropout_position(drops ? args.dropout.position() : 0) {}

  /// Moves to the keys from `key` on of sequence `index`; the caller has set `sequence` to it.
  __device__ __forceinline__ void move_to(int index_, int key) {
    key0 = key;
    index = index_;
    if constexpr (is_general)
#pragma unroll
      for (int r = 0; r < Scores::lane_rows; ++r) padding[r] = padding_log2(args, sequence, index, key0 + Scores::row_of(r));
  }

  /// True if any of a sub-tile's queries sees any of the warp's keys.
  __device__ __forceinline__ bool is_visible(int query0) const {
    return is_any_visible<is_general>(sequence, query0, sub_queries, key0, 16);
  }
  /// True if the mask hides some of the warp's keys from some of the sub-tile's queries.
  __device__ __forceinline__ bool is_cut(int query0) const {
    return key0 + 16 > sequence.key_end(query0) ||
           (is_general && (key0 < sequence.key_begin(query0 + sub_queries - 1) || query0 + sub_queries > sequence.queries));
  }

  /// S = K Q^T and dP = V dY^T of the warp's rows and those of a tile from row `sub` on.
  template <class Keys>
  __device__ __forceinline__ void multiply(const Keys& keys, const Keys& values, unsigned q_tile, unsigned dy_tile, int sub) {
    s = {}, dp = {};
    mma<T, width>(Product(s, keys, OperandBt<width>(q_tile, sub)), Product(dp, values, OperandBt<width>(dy_tile, sub)));
  }

  /// Replaces S and dP of a head's queries from query0 on by P with dropout and dS, also as operands. `rows` points to the queries'
  /// log_sums, followed by those of delta for a tile.
  __device__ __forceinline__ void differentiate(int head, int query0, const float* rows) {
    const bool has_cut = is_cut(query0);
    const int group = MmaLanes::group(), member = MmaLanes::member(), lane_query = query0 + member * 2;
    int begin[2], end[2];  // ranges of queries that see the lane's keys, relative to its first query
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      begin[r] = sequence.query_begin(key0 + group + r * 8) - lane_query;
      end[r] = min(sequence.query_end(key0 + group + r * 8), sequence.queries) - lane_query;
    }
    const T* biases = nullptr;
    const float* rests = nullptr;  // of the lane's log_sums
    if constexpr (drops)
      if (in.bias.data) {
        biases = in.bias.template place_of<T>(args, head, lane_query, key0 + group);
        rests = in.log_sums + args.all_rows() + first_row(args, sequence, index, head) + lane_query;
      }
#pragma unroll
    for (int n = 0; n < sub_queries / 16; ++n) {
      unsigned kept[2] = {~0u, ~0u};  // of queries 2 member and 2 member + 1; bits are keys, the upper half is 8 queries further
      if constexpr (drops) {
        if (args.dropout.drops) {
          const std::int64_t first = (std::int64_t(head) * args.queries + query0 + n * 16) * args.keys + key0;
          const unsigned drawn = args.dropout.template kept_16x16<MmaLanes>(args.keys, dropout_position, first);
          kept[0] = __shfl_sync(whole_warp, drawn, member * 8) >> group;
          kept[1] = __shfl_sync(whole_warp, drawn, member * 8 + 4) >> group;
        }
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int column = n * 2 + j, first_query = column * 8 + member * 2;
        const float2 log_sum = *reinterpret_cast<const float2*>(rows + first_query),
                     delta = *reinterpret_cast<const float2*>(rows + C::queries + first_query);
        float p[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          p[e] = s.values[0][column][e] * args.scale_log2 - (e % 2 ? log_sum.y : log_sum.x);
          if constexpr (is_general) p[e] += padding[e / 2];
        }
        if constexpr (drops) {
          // The same sum as in forward, before anything is subtracted: a bias may be of any size.
          if (biases)
#pragma unroll
            for (int e = 0; e < 4; ++e)
              if (const int at = column * 8 + e % 2; at >= begin[e / 2] && at < end[e / 2]) {
                const float added = padding[e / 2] + in.bias.at(biases, at, e / 2 * 8);
                p[e] = s.values[0][column][e] * args.scale_log2 + added;
                p[e] = p[e] - (e % 2 ? log_sum.y : log_sum.x) - rests[at];
              }
        }
        if (has_cut)
#pragma unroll
          for (int e = 0; e < 4; ++e)
            if (const int at = column * 8 + e % 2; at < begin[e / 2] || (is_general && at >= end[e / 2])) p[e] = -INFINITY;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          p[e] = exp2_approx(p[e]);
          float weight = p[e], gradient = dp.values[0][column][e];
          if constexpr (drops) {
            const bool is_kept = kept[e % 2] >> (e / 2 * 8 + j * 16) & 1;
            weight = is_kept ? p[e] : 0;
            gradient = is_kept ? gradient * args.inverse_keep : 0;
          }
          s.values[0][column][e] = weight;
          dp.values[0][column][e] = p[e] * (gradient - (e % 2 ? delta.y : delta.x));
        }
      }
      s.template load<T>(p_operand.values[0][n], 0, n);
      dp.template load<T>(ds_operand.values[0][n], 0, n);
    }
  }
};

/// Consumer warp: 16 keys, whose gradients it accumulates in registers, with one sub-tile of queries at a time.
template <class T, class C, Flavour flavour>
struct Consumer : ScoreGradients<T, C, flavour> {
  using Base = ScoreGradients<T, C, flavour>;
  using Base::args, Base::key0;
  using typename Base::Scores;
  static constexpr int width = C::width, columns = width / C::column_groups;
  using Keys = std::conditional_t<C::caches_fragments, RegisterOperand<16, width>, OperandA<width>>;

  const Block<T, C, flavour>& block;
  int row, column_group;  ///< row: first of the warp's keys in the block
  FragmentTile<16, columns> dk_sums = {}, dv_sums = {};

  __device__ __forceinline__ explicit Consumer(const Block<T, C, flavour>& block_) : Base(block_.p, block_.sequence), block(block_) {
    const int warp = threadIdx.x / 32;
    row = warp % C::key_warps * 16, column_group = warp / C::key_warps;
    this->move_to(block.index, block.first_key + row);
  }

  /// First column of dK and dV that the warp accumulates.
  __device__ __forceinline__ int column() const { return C::column_groups == 1 ? 0 : column_group * columns; }

  /// The warp's rows of K or V: in registers if they fit.
  static __device__ __forceinline__ Keys operand(const OperandA<width>& rows) {
    if constexpr (C::caches_fragments) {
      Keys cached;
      cached.template assign<T>(rows);
      return cached;
    } else {
      return rows;
    }
  }

  /// dQ of a tile: this block's product, added to the sum of the previous blocks.
  __device__ __forceinline__ void add_dq(const Walk& walk) const {
    const BackwardParams& p = block.p;
    const Sequence& sequence = block.sequence;
    const int warp = threadIdx.x / 32, turn = block.turn(walk.tile);
    const bool is_last = block.is_last(walk.tile);
    const int first_query = walk.tile * C::queries, first_row = warp % C::row_tiles * 16, column = warp / C::row_tiles * C::columns;
    // Number of keys that this warp's queries see.
    const int seen = sequence.key_end(first_query + first_row + 15);
    const int depth_tiles = max(min(C::key_warps, ceil_div(seen - block.first_key, 16)), 0);
    float4* const sums = reinterpret_cast<float4*>(p.dq_sums) + block.place(walk) * (C::queries * width / 4) + threadIdx.x;
#pragma unroll
    for (int i = 0; i < C::pieces; ++i) {
      const int first_column = column + i * C::piece;
      FragmentTile<16, C::piece> dq = {};
      mma_steps<T, 2>(depth_tiles, Product(dq, OperandAt<C::queries>(block.ds_tile(walk.step), 0, first_row / 8),
                                           OperandB<width>(block.k_tile, 0, first_column / 8)));
      if (i == 0 && turn > 0) named_barrier_sync(dq_turn, C::consumers + 32);
      if (!is_last) {
#pragma unroll
        for (int d = 0; d < C::piece / 8; ++d) {
          float4* const to = sums + (i * (C::piece / 8) + d) * C::consumers;
          const float (&x)[4] = dq.values[0][d];
          if (turn > 0) red_add(to, x);
          else __stcg(to, make_float4(x[0], x[1], x[2], x[3]));
        }
      } else {
        if (turn > 0)
#pragma unroll
          for (int d = 0; d < C::piece / 8; ++d) {
            const float4 before = __ldcg(sums + (i * (C::piece / 8) + d) * C::consumers);
            float (&x)[4] = dq.values[0][d];
            x[0] += before.x, x[1] += before.y, x[2] += before.z, x[3] += before.w;
          }
#pragma unroll
        for (int r = 0; r < 2; ++r)
          if (const int query = first_query + first_row + dq.row_of(r); query < sequence.queries)
            store_row(dq, r, args.scale, block.template queries_of<T>(p.dq, walk.head) + query * p.dq.row_stride, first_column,
                      args.head_dim, p.writes_pairs);
      }
    }
  }

  __device__ __forceinline__ void write_dk_dv() const {
    const BackwardParams& p = block.p;
#pragma unroll
    for (int r = 0; r < 2; ++r)
      if (const int key = key0 + Scores::row_of(r); key < block.sequence.keys) {
        store_row(dk_sums, r, args.scale, block.template keys_of<T>(p.dk) + key * p.dk.row_stride, column(), args.head_dim, p.writes_pairs);
        store_row(dv_sums, r, args.inverse_keep, block.template keys_of<T>(p.dv) + key * p.dv.row_stride, column(), args.head_dim,
                  p.writes_pairs);
      }
  }
};

}  // namespace tern::gpu::ampere
