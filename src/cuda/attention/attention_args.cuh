#pragma once
#include "cuda/device/group.cuh"
#include "cuda/device/math.cuh"
#include "cuda/device/philox_dropout.cuh"
#include "cuda/runtime/dispatch.h"
#include "ops/kernels/attention.h"
#include "tensor/sizes.h"

// Tensors, sizes, masks and dropout of flash attention, for all of its kernels. Scores are in base 2, for which the GPU has an instruction:
// e^x = 2^(x log2(e)).
namespace tern::gpu::flash {

/// (B, T, H, D) in global memory, D contiguous.
struct Heads {
  void* data;
  std::int64_t batch_stride, row_stride, head_stride;

  Heads() = default;
  explicit Heads(const View& view)
      : data(view.data), batch_stride(view.strides[0]), row_stride(view.strides[1]), head_stride(view.strides[2]) {}
  template <class T>
  __device__ __forceinline__ T* at(int batch, int row, int head) const {
    return static_cast<T*>(data) + batch * batch_stride + row * row_stride + head * head_stride;
  }
};

/// Sizes, mask and dropout of a call. `queries` and `keys` are those of a sequence, of the longest one if sequences are packed.
struct Args {
  int sequences, queries, keys, heads, kv_heads, head_dim;
  int packed_queries;       ///< queries of all packed sequences together; 0 if not packed
  float scale, scale_log2;  ///< scale_log2 = scale log2(e): exponentials are in base 2
  const float* padding;
  const std::int64_t *prefix, *key_lengths, *query_starts, *key_starts;
  int window;
  bool causal;
  DropoutMask dropout;
  float inverse_keep;  ///< 1 / (1 - p)
  int heads_at_once;   ///< number of heads processed at a time, so that their keys and values stay in the L2 cache

  Args(const View& q, const View& k, const kernels::Attention& attention)
      : sequences(static_cast<int>(attention.query_starts.data ? attention.query_starts.shape[0] - 1 : q.shape[0])),
        queries(static_cast<int>(attention.query_starts.data ? attention.max_queries : q.shape[1])),
        keys(static_cast<int>(attention.query_starts.data ? attention.max_keys : k.shape[1])),
        heads(static_cast<int>(q.shape[2])),
        kv_heads(static_cast<int>(k.shape[2])),
        head_dim(static_cast<int>(q.shape[3])),
        packed_queries(static_cast<int>(attention.query_starts.data ? q.shape[1] : 0)),
        scale(static_cast<float>(attention.scale)),
        scale_log2(scale * log2_e),
        padding(attention.mask.padding.as<const float>()),
        prefix(attention.mask.prefix.as<const std::int64_t>()),
        key_lengths(attention.mask.key_lengths.as<const std::int64_t>()),
        query_starts(attention.query_starts.as<const std::int64_t>()),
        key_starts(attention.key_starts.as<const std::int64_t>()),
        window(attention.mask.window < std::int64_t(queries) + keys ? static_cast<int>(attention.mask.window)
                                                                    : 0),  // a wider window hides nothing
        causal(attention.mask.causal),
        dropout(attention.dropout, attention.draws),
        inverse_keep(static_cast<float>(1 / (1 - attention.dropout))),
        heads_at_once(sequences * heads) {}

  __host__ __device__ int all_heads() const { return sequences * heads; }
  /// Number of rows of log_sums.
  __host__ __device__ std::int64_t all_rows() const {
    return std::int64_t(heads) * (packed_queries > 0 ? std::int64_t(packed_queries) : std::int64_t(sequences) * queries);
  }
  __host__ __device__ int group() const { return heads / kv_heads; }  ///< query heads per key head
  /// Number of tiles of `size` queries for which a head has room: Note [Rows of packed sequences].
  int tile_places(int size) const { return packed_queries > 0 ? packed_queries / size + sequences : ceil_div(queries, size); }
  /// The same for all heads of all sequences.
  std::int64_t all_tile_places(int size) const { return std::int64_t(tile_places(size)) * (packed_queries > 0 ? heads : all_heads()); }
};

/// Rows of a sequence and the keys that they see: a range for each query, whose ends do not decrease from query to query.
struct Sequence {
  int batch, first_query, first_key;  ///< position of its rows in q and k
  int queries, keys, limit, prefix;   ///< limit: keys from there on are hidden
  int offset, window;
  bool causal;

  Sequence() = default;
  __device__ Sequence(const Args& args, int index)
      : batch(index), first_query(0), first_key(0), queries(args.queries), keys(args.keys), window(args.window), causal(args.causal) {
    if (args.query_starts) {
      batch = 0;
      first_query = static_cast<int>(args.query_starts[index]);
      first_key = static_cast<int>(args.key_starts[index]);
      queries = static_cast<int>(args.query_starts[index + 1]) - first_query;
      keys = static_cast<int>(args.key_starts[index + 1]) - first_key;
    }
    offset = keys - queries;
    limit = args.key_lengths ? bounded(args.key_lengths[index]) : keys;
    prefix = args.prefix ? bounded(args.prefix[index]) : 0;
  }
  /// Sequence of a call without masks other than causal ones: the compiler then knows that everything else is 0.
  static __device__ __forceinline__ Sequence plain(const Args& args, int index) {
    Sequence sequence;
    sequence.batch = index;
    sequence.first_query = sequence.first_key = sequence.prefix = sequence.window = 0;
    sequence.queries = args.queries;
    sequence.keys = sequence.limit = args.keys;
    sequence.offset = args.keys - args.queries;
    sequence.causal = args.causal;
    return sequence;
  }
  /// Query t sees the keys key_begin(t) to key_end(t) - 1.
  __device__ __forceinline__ int key_begin(int t) const { return window > 0 ? max(t + offset - window + 1, 0) : 0; }
  __device__ __forceinline__ int key_end(int t) const { return causal ? min(max(t + offset + 1, prefix), limit) : limit; }
  /// Key s is seen by the queries query_begin(s) to query_end(s) - 1.
  __device__ __forceinline__ int query_begin(int s) const { return s >= limit ? queries : causal && s >= prefix ? s - offset : 0; }
  __device__ __forceinline__ int query_end(int s) const { return window > 0 ? s - offset + window : queries; }

 private:
  __device__ int bounded(std::int64_t x) const { return static_cast<int>(min(max(x, std::int64_t(0)), std::int64_t(keys))); }
};

// Note [Rows of packed sequences]: arrays with a value for each query (log_sums, delta and the sums of dQ) are in the order (heads, rows of
// all sequences), so memory grows with the rows and not with the number of sequences times the longest. Tiles of `size` queries start anew
// with each sequence: the first tile of sequence n is at place first_query / size + n. Its last tile is before the next sequence's first,
// since (a + b) / size + 1 >= a / size + (b + size - 1) / size with quotients rounded down.

/// Index of a head's first query in (heads, rows): `head` counts the heads of all sequences; `index` is its sequence.
__device__ __forceinline__ std::int64_t first_row(const Args& args, const Sequence& sequence, int index, int head) {
  if (args.packed_queries == 0) return std::int64_t(head) * args.queries;
  return std::int64_t(head - index * args.heads) * args.packed_queries + sequence.first_query;
}
/// Index of a head's first tile of `size` queries, with `places` tiles for each head.
template <int size>
__device__ __forceinline__ int first_tile(const Args& args, const Sequence& sequence, int index, int head, int places) {
  if (args.packed_queries == 0) return head * places;
  return (head - index * args.heads) * places + sequence.first_query / size + index;
}

/// Ranges of tiles of queries and blocks of keys that see each other, for their sizes.
template <int keys, int queries>
struct TileRange {
  int last, count;

  /// The tiles of queries that see a block of keys.
  static __device__ __forceinline__ TileRange of_block(const Sequence& sequence, int block) {
    const int first_key = block * keys;
    if (first_key >= sequence.limit || sequence.queries <= 0) return {0, 0};
    const int first = !sequence.causal || sequence.prefix > first_key ? 0 : max(first_key - sequence.offset, 0) / queries;
    int last = (sequence.queries - 1) / queries;
    if (sequence.window > 0) {
      const int bound = first_key + keys - 2 + sequence.window - sequence.offset;  // last query that sees the last key
      last = bound < 0 ? -1 : min(last, bound / queries);
    }
    return {last, max(last - first + 1, 0)};
  }
  /// The blocks of keys that a tile of queries sees; there is at least one.
  static __device__ __forceinline__ int first_block(const Sequence& sequence, int tile) {
    return sequence.key_begin(tile * queries) / keys;
  }
  static __device__ __forceinline__ int last_block(const Sequence& sequence, int tile) {
    return (sequence.key_end(min(tile * queries + queries, sequence.queries) - 1) - 1) / keys;
  }
  static __device__ __forceinline__ bool sees_any(const Sequence& sequence, int tile) {
    return sequence.key_end(min(tile * queries + queries, sequence.queries) - 1) > sequence.key_begin(tile * queries);
  }
};

/// log2 of a sum of exponentials as it is kept for backward, where no bias is added. Backward has only the multiply-add above, and would
/// get infinity for a large score.
__device__ __forceinline__ float kept_log_sum(float log_sum) { return fabsf(log_sum) < large_score ? log_sum : INFINITY; }

/// A bias times log2(e), as it is added to scores in base 2. One near the largest finite number would overflow, and -inf hides a key. So
/// beyond 2^126 the factor is 1/2: numbers there are equal or so far apart that only the largest matters.
__device__ __forceinline__ float bias_log2(float x) {
  constexpr float offset = (log2_e - 0.5f) * 0x1p126f;
  return fminf(fmaxf(x * log2_e, 0.5f * x - offset), 0.5f * x + offset);
}

/// A key's padding times log2(e), as it is added to scores in base 2; -inf: the key is hidden.
__device__ __forceinline__ float padding_log2(const Args& args, const Sequence& sequence, int index, int key) {
  if (key >= sequence.limit) return -INFINITY;
  if (!args.padding) return 0;
  const float x = args.padding[std::int64_t(index) * args.keys + key];
  return x > kernels::hidden_padding ? x * log2_e : -INFINITY;
}

}  // namespace tern::gpu::flash
