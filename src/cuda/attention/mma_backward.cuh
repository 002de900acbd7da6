#pragma once
#include "cuda/attention/mma.cuh"

// Flash attention by mma.sync, backward: parts of its two kernels, of dQ, dK and dV (mma_backward.cu, which has the formulas) and of the
// bias (mma_bias_grad.cu). Inputs, copies of tiles, and the scores of a warp with their gradients.
namespace tern::gpu::ampere {

/// Inputs of all kernels of the pass.
struct BackwardInputs {
  Args args;
  Heads q, k, v, y, dy;
  Bias bias;
  const float *log_sums, *delta;  ///< (B, H, T), log_sums twice with a bias; packed: (H, rows), Note [Rows of packed sequences]
  bool is_aligned;                ///< heads can be read 16 bytes at a time
};

/// dbias, as kernels::AttentionGradients has it (mma_bias_grad.cu).
void sum_bias_gradient(const BackwardInputs& inputs, const View& dbias);

/// First row of a query head, counted over all sequences; of a key head.
template <class U>
__device__ __forceinline__ U* queries_of(const Heads& heads, const Args& args, const Sequence& sequence, int index, int head) {
  return heads.template at<U>(sequence.batch, sequence.first_query, head - index * args.heads);
}
template <class U>
__device__ __forceinline__ U* keys_of(const Heads& heads, const Sequence& sequence, int kv_head) {
  return heads.template at<U>(sequence.batch, sequence.first_key, kv_head);
}

/// Starts to copy a tile of keys, K followed by V, by `threads` threads.
template <class T, class C, int threads>
__device__ __forceinline__ void load_keys(unsigned to, const BackwardInputs& in, const Sequence& sequence, int kv_head, int first) {
  const T *const k = keys_of<const T>(in.k, sequence, kv_head), *const v = keys_of<const T>(in.v, sequence, kv_head);
  const int count = sequence.keys, head_dim = in.args.head_dim;
  load_tile<T, C::width, C::keys, threads>(to, k, in.k.row_stride, first, count, head_dim, in.is_aligned);
  load_tile<T, C::width, C::keys, threads>(to + C::key_bytes, v, in.v.row_stride, first, count, head_dim, in.is_aligned);
}
/// The same for a tile of queries of sequence `index`: Q, dY, log_sums and, if wanted, delta. By threads numbered from `thread` on.
template <class T, class C, int threads>
__device__ __forceinline__ void load_queries(unsigned to, const BackwardInputs& in, const Sequence& sequence, int index, int head,
                                             int first, bool with_delta, int thread = threadIdx.x) {
  const Args& args = in.args;
  const int count = sequence.queries;
  const T* const q = queries_of<const T>(in.q, args, sequence, index, head);
  const T* const dy = queries_of<const T>(in.dy, args, sequence, index, head);
  load_tile<T, C::width, C::queries, threads>(to, q, in.q.row_stride, first, count, args.head_dim, in.is_aligned, thread);
  load_tile<T, C::width, C::queries, threads>(to + C::query_bytes, dy, in.dy.row_stride, first, count, args.head_dim, in.is_aligned,
                                              thread);
  // Zeros after the last query: q and dy are zero there, too, and so are their products.
  const std::int64_t from = first_row(args, sequence, index, head);
  for (int i = thread; i < 2 * C::queries; i += threads) {
    const int row = first + i % C::queries;
    const bool is_delta = i >= C::queries;
    if (is_delta && !with_delta) break;
    const float* const source = (is_delta ? in.delta : in.log_sums) + from;
    cp_async<4>(to + 2 * C::query_bytes + i * 4, row < count ? source + row : source, row < count);
  }
}

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

}  // namespace tern::gpu::ampere
