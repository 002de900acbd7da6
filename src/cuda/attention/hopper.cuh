#pragma once
#include <cuda.h>

#include "cuda/device/group.cuh"
#include "cuda/device/math.cuh"
#include "cuda/device/mma.cuh"
#include "cuda/device/philox_dropout.cuh"
#include "cuda/device/vec16.cuh"
#include "cuda/device/wgmma_k16.cuh"
#include "ops/kernels/attention.h"

// Flash attention on Hopper's tensor cores, shared by both passes: sizes and masks, the order of the work, tiles in shared memory.
//
// A tile of q, k, v or dy has rows of up to 128 elements in shared memory, in blocks of 64 columns: rows of 128 bytes in the swizzle of 128
// bytes, as TMA writes and wgmma reads them. Heads of other sizes are filled up with zeros by TMA, which knows how long they are.
// Numbers of float32 come in two parts of 16 bits: Note [Two parts] in hopper_f32.cuh.
namespace tern::gpu::hopper {

inline constexpr int row_bytes = 128;  ///< of a block of 64 columns
inline constexpr int warpgroup = 128;  ///< threads
inline constexpr int max_width = 128;  ///< elements of a head
inline constexpr int block_columns = 64;

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
  float scale, scale_log2;  ///< scale_log2 = scale log2(e): exponentials are taken to base 2
  const float* padding;
  const std::int64_t *prefix, *key_lengths, *query_starts, *key_starts;
  int window;
  bool causal;
  DropoutMask dropout;
  float inverse_keep;  ///< 1 / (1 - p)
  int heads_at_once;   ///< whose keys and values should lie in the L2 cache at a time

  Args(const View& q, const View& k, const kernels::Attention& attention)
      : sequences(static_cast<int>(attention.query_starts.data ? attention.query_starts.shape[0] - 1 : q.shape[0])),
        queries(static_cast<int>(attention.query_starts.data ? attention.max_queries : q.shape[1])),
        keys(static_cast<int>(attention.query_starts.data ? attention.max_keys : k.shape[1])),
        heads(static_cast<int>(q.shape[2])),
        kv_heads(static_cast<int>(k.shape[2])),
        head_dim(static_cast<int>(q.shape[3])),
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
  /// Query t sees the keys from key_begin(t) on that lie before key_end(t).
  __device__ __forceinline__ int key_begin(int t) const { return window > 0 ? max(t + offset - window + 1, 0) : 0; }
  __device__ __forceinline__ int key_end(int t) const { return causal ? min(max(t + offset + 1, prefix), limit) : limit; }
  /// Key s is seen by the queries from query_begin(s) on that lie before query_end(s).
  __device__ __forceinline__ int query_begin(int s) const { return s >= limit ? queries : causal && s >= prefix ? s - offset : 0; }
  __device__ __forceinline__ int query_end(int s) const { return window > 0 ? s - offset + window : queries; }

 private:
  __device__ int bounded(std::int64_t x) const { return static_cast<int>(min(max(x, std::int64_t(0)), std::int64_t(keys))); }
};

/// A piece of the work: a tile of some head. Within heads_at_once heads all first tiles come before all second ones.
struct WorkItem {
  int tile, head;  ///< head among those of all sequences

  __device__ WorkItem(int item, int tiles, int all_heads, int heads_at_once) {
    const int first = item / (heads_at_once * tiles) * heads_at_once, count = min(heads_at_once, all_heads - first);
    const int within = item - first * tiles;
    tile = within / count;
    head = first + within % count;
  }
};

/// Hands the items of the work to the blocks of a persistent grid, in their order: a block takes its number first, and from then on what
/// the counter says, which is zero between kernels.
struct WorkQueue {
  unsigned* counter;
  int items;

  /// Of one thread a block; -1: none is left. Each block calls it until then.
  __device__ __forceinline__ int next() const {
    const unsigned taken = atomicAdd(counter, 1);
    if (taken == static_cast<unsigned>(items) - 1) *counter = 0;  // items - blocks calls had something, and one of each block had not
    const int item = static_cast<int>(taken + gridDim.x);
    return item < items ? item : -1;
  }
};

/// Tiles of `rows` rows of `width` elements, in so many parts. In global memory the parts are (B, parts, T, H, D).
template <int width, int rows, int parts = 1>
struct Tile {
  static constexpr int blocks = (width + block_columns - 1) / block_columns, block_bytes = rows * row_bytes,
                       part_bytes = blocks * block_bytes, bytes = parts * part_bytes;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  /// Begins to load rows of a head; of the tensor's rows, so zeros come after the last one only.
  static __device__ __forceinline__ void load(unsigned to, const CUtensorMap& map, int head, int row, int batch, MBarrier& full) {
#pragma unroll
    for (int part = 0; part < parts; ++part)
#pragma unroll
      for (int i = 0; i < blocks; ++i)
        tma_load_4d(to + part * part_bytes + i * block_bytes, map, i * block_columns, head, row, batch * parts + part, full);
  }
#endif
  /// How far on, in units of a descriptor, step k of 16 of the columns lies, where those are the depth of a product; and of the rows.
  static constexpr int column_step(int k) { return (k / 4 * block_bytes + k % 4 * 32) >> 4; }
  static constexpr int row_step(int k) { return k * 16 * row_bytes >> 4; }
  static constexpr int part_step(int part) { return part * part_bytes >> 4; }
};

/// The products of parts that make up a product, the small ones first.
template <int parts>
struct Products {
  static constexpr int count = parts == 1 ? 1 : 3;
  static constexpr int left(int product) { return parts == 2 && product == 0; }
  static constexpr int right(int product) { return parts == 2 && product == 1; }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// The padding of a key as it is added to scores times scale_log2; -inf: the key is hidden.
__device__ __forceinline__ float padding_log2(const Args& args, const Sequence& sequence, int index, int key) {
  if (key >= sequence.limit) return -INFINITY;
  if (!args.padding) return 0;
  const float x = args.padding[std::int64_t(index) * args.keys + key];
  return x > kernels::hidden_padding ? x * log2_e : -INFINITY;
}

/// Which of 16 x 16 probabilities dropout keeps, those from element `first` of all on in rows `pitch` apart; `position` is the dropout's.
/// A thread gets its rows whole: bit k of the lower half is column k of row `lane / 4`, the upper half is 8 rows below. Each lane draws one
/// block of four words for either row; where rows do not begin with a block, a fifth block follows.
static __device__ unsigned kept_16x16(const DropoutMask& dropout, int pitch, std::uint64_t position, std::int64_t first) {
  const unsigned lane = threadIdx.x % 32, group = lane / 4, member = lane % 4;
  const std::uint64_t upper = static_cast<std::uint64_t>(first + std::int64_t(group) * pitch), lower = upper + 8 * std::uint64_t(pitch);
  unsigned kept = dropout.kept_of_block(position + (upper >> 2) + member) << 4 * member |
                  dropout.kept_of_block(position + (lower >> 2) + member) << (16 + 4 * member);
  kept |= shuffle_xor(kept, 1);
  kept |= shuffle_xor(kept, 2);
  if (pitch % 4 != 0) {
    const unsigned fifth = dropout.kept_of_block(position + ((member % 2 == 0 ? upper : lower) >> 2) + 4);
    const unsigned after_upper = __shfl_sync(whole_warp, fifth, lane & ~3u), after_lower = __shfl_sync(whole_warp, fifth, lane & ~3u | 1u);
    kept = ((kept & 0xffff | after_upper << 16) >> (upper & 3) & 0xffff) | (kept >> 16 | after_lower << 16) >> (lower & 3) << 16;
  }
  return kept;
}

/// A step of a barrier's count by one lane for its warp, after all of its lanes are there.
__device__ __forceinline__ void arrive_warp(MBarrier& barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier.arrive();
}

/// Writes factor times a thread's two rows of accumulators (64, 2 pairs): elements `first_column` on of the heads at `rows`, of which those
/// that are null do not exist.
template <class T, int size>
__device__ __forceinline__ void store_rows(const float (&values)[size], const float (&factors)[2], T* const (&rows)[2], int first_column,
                                           int head_dim) {
  const int member = threadIdx.x % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r)
    if (rows[r])
#pragma unroll
      for (int n = 0; n < size / 4; ++n)
        if (first_column + n * 8 < head_dim) {
          T* const to = rows[r] + first_column + n * 8 + member * 2;
          const float x = values[n * 4 + r * 2] * factors[r], y = values[n * 4 + r * 2 + 1] * factors[r];
          if constexpr (std::is_same_v<T, float>) *reinterpret_cast<float2*>(to) = {x, y};
          else *reinterpret_cast<unsigned*>(to) = pack_pair<T>(x, y);
        }
}
/// Likewise zeros.
template <class T>
__device__ __forceinline__ void store_zeros(T* const (&rows)[2], int head_dim) {
#pragma unroll 1
  for (int column = threadIdx.x % 4 * 2; column < head_dim; column += 8)
#pragma unroll
    for (int r = 0; r < 2; ++r)
      if (rows[r]) write_vector(rows[r] + column, Vector<T, 2>{});
}

#endif

}  // namespace tern::gpu::hopper
