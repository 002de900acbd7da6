#pragma once
#include "cuda/device/group.cuh"
#include "cuda/device/math.cuh"
#include "cuda/device/philox_dropout.cuh"
#include "cuda/runtime/dispatch.h"
#include "ops/kernels/attention.h"
#include "tensor/ceil_div.h"

// Tensors, sizes, masks and dropout of flash attention, for all of its kernels. Scores are taken to base 2, for which the GPU has an
// instruction: e^x = 2^(x log2(e)).
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

/// Sizes, mask and dropout of a call. `queries` and `keys` are those of a sequence, of the longest one where sequences are packed.
struct Args {
  int sequences, queries, keys, heads, kv_heads, head_dim;
  int packed_queries;       ///< of all packed sequences together; 0 where none are packed
  float scale, scale_log2;  ///< scale_log2 = scale log2(e): exponentials are taken to base 2
  const float* padding;
  const std::int64_t *prefix, *key_lengths, *query_starts, *key_starts;
  int window;
  bool causal;
  DropoutMask dropout;
  float inverse_keep;  ///< 1 / (1 - p)
  int heads_at_once;   ///< heads that are worked on at a time, so that their keys and values stay in the L2 cache

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
                                                                    : 0),  // a wider one hides nothing
        causal(attention.mask.causal),
        dropout(attention.dropout, attention.draws),
        inverse_keep(static_cast<float>(1 / (1 - attention.dropout))),
        heads_at_once(sequences * heads) {}

  __host__ __device__ int all_heads() const { return sequences * heads; }
  __host__ __device__ int group() const { return heads / kv_heads; }  ///< query heads that share a head of keys
  /// Places for a head's tiles of `size` queries: Note [Rows of packed sequences].
  int tile_places(int size) const { return packed_queries > 0 ? packed_queries / size + sequences : ceil_div(queries, size); }
  /// Likewise for those of all heads of all sequences.
  std::int64_t all_tile_places(int size) const { return std::int64_t(tile_places(size)) * (packed_queries > 0 ? heads : all_heads()); }
};

/// Rows of a sequence and which keys they see: each a range of keys, which neither begins nor ends earlier than that of the query before.
struct Sequence {
  int batch, first_query, first_key;  ///< the place of its rows in q and k
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
  /// The sequence of a call that has causal masks at most: the compiler then knows that all else is 0.
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
  /// Query t sees the keys from key_begin(t) on that lie before key_end(t).
  __device__ __forceinline__ int key_begin(int t) const { return window > 0 ? max(t + offset - window + 1, 0) : 0; }
  __device__ __forceinline__ int key_end(int t) const { return causal ? min(max(t + offset + 1, prefix), limit) : limit; }
  /// Key s is seen by the queries from query_begin(s) on that lie before query_end(s).
  __device__ __forceinline__ int query_begin(int s) const { return s >= limit ? queries : causal && s >= prefix ? s - offset : 0; }
  __device__ __forceinline__ int query_end(int s) const { return window > 0 ? s - offset + window : queries; }

 private:
  __device__ int bounded(std::int64_t x) const { return static_cast<int>(min(max(x, std::int64_t(0)), std::int64_t(keys))); }
};

// Note [Rows of packed sequences]: arrays with a value for each query, log_sums, delta and the sums of dQ, are in the order (heads, rows of
// all sequences), so that memory is linear in the rows and not in sequences times the longest. Tiles of `size` queries begin anew with each
// sequence: sequence n has its first at place first_query / size + n. Its last one lies below the next sequence's first, since
// (a + b) / size + 1 >= a / size + (b + size - 1) / size, each quotient rounded down.

/// The place of a head's first query in (heads, rows): `head` is one among those of all sequences, of which `index` is its own.
__device__ __forceinline__ std::int64_t first_row(const Args& args, const Sequence& sequence, int index, int head) {
  if (args.packed_queries == 0) return std::int64_t(head) * args.queries;
  return std::int64_t(head - index * args.heads) * args.packed_queries + sequence.first_query;
}
/// The place of a head's first tile of `size` queries, of `places` for each head.
template <int size>
__device__ __forceinline__ int first_tile(const Args& args, const Sequence& sequence, int index, int head, int places) {
  if (args.packed_queries == 0) return head * places;
  return (head - index * args.heads) * places + sequence.first_query / size + index;
}

/// Tiles of queries and blocks of keys that see each other, by their sizes.
template <int keys, int queries>
struct TileRange {
  int last, count;

  /// The tiles that see a block of keys.
  static __device__ __forceinline__ TileRange of_block(const Sequence& sequence, int block) {
    const int first_key = block * keys;
    if (first_key >= sequence.limit || sequence.queries <= 0) return {0, 0};
    const int first = !sequence.causal || sequence.prefix > first_key ? 0 : max(first_key - sequence.offset, 0) / queries;
    int last = (sequence.queries - 1) / queries;
    if (sequence.window > 0) {
      const int bound = first_key + keys - 2 + sequence.window - sequence.offset;  // the last query that sees the last key
      last = bound < 0 ? -1 : min(last, bound / queries);
    }
    return {last, max(last - first + 1, 0)};
  }
  /// The blocks that a tile of queries sees, of which there is one at least.
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

/// The padding of a key as it is added to scores times scale_log2; -inf: the key is hidden.
__device__ __forceinline__ float padding_log2(const Args& args, const Sequence& sequence, int index, int key) {
  if (key >= sequence.limit) return -INFINITY;
  if (!args.padding) return 0;
  const float x = args.padding[std::int64_t(index) * args.keys + key];
  return x > kernels::hidden_padding ? x * log2_e : -INFINITY;
}

}  // namespace tern::gpu::flash
