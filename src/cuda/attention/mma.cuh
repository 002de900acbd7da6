#pragma once
#include <algorithm>
#include <initializer_list>

#include "cuda/attention/attention.h"
#include "cuda/attention/attention_args.cuh"
#include "cuda/device/async_copy.cuh"
#include "cuda/device/fragment.cuh"
#include "cuda/runtime/launch.h"
#include "tensor/sizes.h"

// Flash attention by mma.sync and cp.async, common to both passes: the choice of a kernel for a call, the bias, copies of tiles to shared
// memory and of rows from registers.
//
// Note [Flavours of flash kernels]: each feature costs registers and instructions, also in calls without it. So each kernel has three
// flavours: causal masks only; all masks and padding; also dropout and bias. Where calls are rare, the last flavour serves all of them.
namespace tern::gpu::ampere {

using namespace flash;

enum class Flavour { plain, masked, whole };

/// Bias of scores: (B, H, T, S) with any strides.
struct Bias {
  const void* data = nullptr;
  std::int64_t batch_stride = 0, head_stride = 0, query_stride = 0, key_stride = 0;

  Bias() = default;
  explicit Bias(const View& view) : data(view.data) {
    if (data) batch_stride = view.strides[0], head_stride = view.strides[1], query_stride = view.strides[2], key_stride = view.strides[3];
  }
  /// Address of the bias of a query and a key. `head` counts the heads of all sequences.
  template <class T>
  __device__ __forceinline__ const T* place_of(const Args& args, int head, int query, int key) const {
    return static_cast<const T*>(data) + head / args.heads * batch_stride + head % args.heads * head_stride + query * query_stride +
           key * key_stride;
  }
  /// The bias times log2(e), for scores in base 2: of a query and a key, or of those `queries` and `keys` after the ones at `place`.
  template <class T>
  __device__ __forceinline__ float at(const Args& args, int head, int query, int key) const {
    return bias_log2(convert<float>(*place_of<T>(args, head, query, key)));
  }
  template <class T>
  __device__ __forceinline__ float at(const T* place, int queries, int keys) const {
    return bias_log2(convert<float>(place[queries * query_stride + keys * key_stride]));
  }
};

template <Flavour flavour>
__device__ __forceinline__ Sequence sequence_of(const Args& args, int index) {
  if constexpr (flavour == Flavour::plain) return Sequence::plain(args, index);
  else return Sequence(args, index);
}

/// Starts to copy `rows` rows of a head, from row `first` on, to a SharedTile, with zeros after the last row. `from` is the head's first
/// row of `count`, `stride` apart. By `threads` threads, of which this one is number `thread`.
template <class T, int width, int rows, int threads>
__device__ __forceinline__ void load_tile(unsigned to, const T* from, std::int64_t stride, int first, int count, int head_dim,
                                          bool is_aligned, int thread = threadIdx.x) {
  using Tile = SharedTile<width>;
  constexpr int pieces = rows * Tile::chunks;
  // If the threads cover whole rows, eight at a time, a thread's chunk and its position in the row are the same in all steps.
  constexpr bool is_regular = threads % (8 * Tile::chunks) == 0 && pieces % threads == 0;
  const auto copy = [&](unsigned target, const T* source, bool is_there) {
    if (is_aligned) {
      cp_async<16>(target, is_there ? source : from, is_there);
    } else {
      unsigned words[4] = {};
      if (is_there)
#pragma unroll
        for (int k = 0; k < 4; ++k) words[k] = unsigned(source[2 * k].bits) | unsigned(source[2 * k + 1].bits) << 16;
      store_shared(target, uint4{words[0], words[1], words[2], words[3]});
    }
  };
  if constexpr (is_regular) {
    constexpr int step = threads / Tile::chunks;
    const int row = thread / Tile::chunks, chunk = thread % Tile::chunks;
    const T* const source = from + (first + row) * stride + chunk * 8;
    const unsigned target = to + Tile::offset(row, chunk);
    const int rows_left = chunk * 8 < head_dim ? count - first - row : 0;
#pragma unroll
    for (int i = 0; i < pieces / threads; ++i) copy(target + i * step * Tile::row_bytes, source + i * step * stride, i * step < rows_left);
  } else {
#pragma unroll
    for (int i = 0; i < ceil_div(pieces, threads); ++i) {
      const int piece = thread + i * threads;
      if (pieces % threads != 0 && piece >= pieces) break;
      const int row = piece / Tile::chunks, chunk = piece % Tile::chunks;
      copy(to + Tile::offset(row, chunk), from + (first + row) * stride + chunk * 8, first + row < count && chunk * 8 < head_dim);
    }
  }
}

/// Writes factor times row r of a tile, as FragmentTile::store_row does; element by element unless `in_pairs`.
template <class T, class Fragments>
__device__ __forceinline__ void store_row(const Fragments& tile, int r, float factor, T* to, int first, int size, bool in_pairs) {
  if (in_pairs) return tile.template store_row<T>(r, factor, to, first, size);
#pragma unroll
  for (int c = 0; c < Fragments::lane_columns; ++c)
    if (const int column = first + Fragments::column_of(c); column < size) to[column] = convert<T>(tile.at(r, c) * factor);
}

// Host functions.

inline bool rows_are_aligned(std::initializer_list<const View*> heads, int bytes) {
  return std::ranges::all_of(heads, [&](const View* one) { return gpu::rows_are_aligned(*one, bytes); });
}

/// Calls f with the element type and the flavour of kernel for the call; `is_rare`: one flavour serves all calls.
template <bool is_rare, class F>
void dispatch(DType dtype, const Args& args, const kernels::Attention& attention, F&& f) {
  dispatch_halves(dtype, [&]<class T>() {
    if constexpr (!is_rare) {
      if (!args.dropout.drops && !attention.bias.data) {
        const bool is_masked = args.padding || args.prefix || args.key_lengths || args.query_starts || args.window > 0 || !(args.scale > 0);
        return is_masked ? f.template operator()<T, Flavour::masked>() : f.template operator()<T, Flavour::plain>();
      }
    }
    f.template operator()<T, Flavour::whole>();
  });
}

// Flash attention by mma.sync, backward: parts of its two kernels, of dQ, dK and dV (mma_backward.cu, which has the formulas) and of the
// bias (mma_bias_grad.cu). Inputs, copies of tiles, and the scores of a warp with their gradients.

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
