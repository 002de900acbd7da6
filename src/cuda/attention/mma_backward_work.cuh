#pragma once
#include "cuda/attention/mma.cuh"
#include "cuda/device/semaphore.cuh"
#include "cuda/device/vec16.cuh"
#include "cuda/device/wgmma.cuh"

// Flash attention by mma.sync, backward: the producer warpgroup, and the state that it shares with the consumers. mma_backward.cu has the
// picture.
namespace tern::gpu::ampere {

template <int width_, int key_warps_, int column_groups_, int queries_, int sub_queries_, int producers_, int min_blocks_>
struct BackwardConfig {
  static constexpr int width = width_;                  ///< size of a head, padded
  static constexpr int key_warps = key_warps_;          ///< consumer warps with different keys
  static constexpr int column_groups = column_groups_;  ///< consumer warps with the same keys, which share the columns of dK and dV
  static constexpr int queries = queries_;              ///< queries of a tile
  static constexpr int sub_queries = sub_queries_;      ///< queries of a sub-tile: the scores that a warp has at a time
  static constexpr int producers = producers_;          ///< producer threads, or 0
  static constexpr int min_blocks = min_blocks_;        ///< blocks that a multiprocessor has registers for
  static constexpr int warps = key_warps * column_groups, keys = key_warps * 16, consumers = warps * 32, threads = consumers + producers;
  static constexpr bool has_whole_head = producers == 0;  ///< is_alone is always true
  static constexpr bool caches_fragments = width <= 64;   ///< fragments of keys and values stay in registers
  static constexpr int key_bytes = SharedTile<width>::bytes(keys), query_bytes = SharedTile<width>::bytes(queries),
                       score_bytes = SharedTile<queries>::bytes(keys);
  static constexpr int row_bytes = queries * 2 * static_cast<int>(sizeof(float));  ///< log_sums and delta
  static constexpr int stage_bytes = 2 * query_bytes + row_bytes + score_bytes;
  static constexpr int bytes(int stages) { return 2 * key_bytes + stages * stage_bytes; }

  // Registers are allocated in units of eight; consumers get those that producers give up.
  static constexpr int producer_registers = 40, share = 65536 / (threads * min_blocks) / 8 * 8;
  static constexpr int consumer_registers = std::min((share * threads - producer_registers * producers) / consumers / 8 * 8, 240);

  // dQ (queries, width): its division among warps, in pieces that fit in registers.
  static constexpr int row_tiles = queries / 16, column_warps = warps / row_tiles, columns = width / column_warps;
  static constexpr int piece = columns <= 64 ? columns : columns / 2, pieces = columns / piece;
  static_assert(warps % row_tiles == 0 && width % (column_warps * 16) == 0 && piece % 16 == 0 && queries % sub_queries == 0);
};

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

struct BackwardParams : BackwardInputs {
  Heads dq, dk, dv;
  float* dq_sums;     ///< passed from block to block: (heads, places of tiles, pieces, piece / 8, consumers, 4)
  int* semaphores;    ///< number of blocks that have added to a tile, (heads, places of tiles)
  int places;         ///< tiles of queries for each head: Note [Rows of packed sequences]
  bool is_alone;      ///< each block has all keys and queries of its head, in one tile
  bool writes_pairs;  ///< gradients can be written 4 bytes at a time
};

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

/// Named barriers of a block, by number. The last two have one for even and one for odd steps.
enum Barrier { ds_ready = 1, dq_turn = 2, stage_full = 3, stage_empty = 5 };

/// Contribution of lane `lane` of `lanes` to the dot product of two rows of a head.
template <class T>
__device__ __forceinline__ float dot_row(const T* a, const T* b, int size, int lane, int lanes, bool is_aligned) {
  float sum = 0;
  for (int i = lane * 8; i < size; i += lanes * 8) {
    Vector<T, 8> x, y;
    if (is_aligned) {
      x = read_vector<8>(a + i);
      y = read_vector<8>(b + i);
    } else {
#pragma unroll
      for (int k = 0; k < 8; ++k) x.values[k] = a[i + k], y.values[k] = b[i + k];
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) sum += convert<float>(x.values[k]) * convert<float>(y.values[k]);
  }
  return sum;
}

/// Position in a block's loop over the tiles that see its keys: those of each head from the last to the first.
struct Walk {
  int head, tile, step = 0, steps;  ///< head: counted over all sequences

  template <class Block>
  __device__ __forceinline__ explicit Walk(const Block& block)
      : head(block.first_head), tile(block.range.last), steps(block.range.count * block.args.group()) {}
  template <class Block>
  __device__ __forceinline__ void advance(const Block& block) {
    ++step;
    if (--tile > block.range.last - block.range.count) return;
    tile = block.range.last;
    ++head;
  }
};

/// A block's work item and its shared memory, for producers and consumers.
template <class T, class C, Flavour flavour>
struct Block {
  static constexpr int width = C::width;
  using Range = TileRange<C::keys, C::queries>;
  const BackwardParams& p;
  const Args& args;
  // Blocks of keys that most queries see go first.
  int key_block, index, kv_head, first_key, first_head;
  Sequence sequence;
  Range range;
  unsigned char* shared;
  unsigned k_tile, v_tile, stages;

  __device__ __forceinline__ Block(const BackwardParams& p_, void* shared_)
      : p(p_), args(p_.args), shared(static_cast<unsigned char*>(shared_)) {
    const int kv_heads = args.sequences * args.kv_heads, number = blockIdx.x % kv_heads;
    key_block = C::has_whole_head ? 0 : blockIdx.x / kv_heads, index = number / args.kv_heads, kv_head = number % args.kv_heads;
    first_key = key_block * C::keys, first_head = number * args.group();
    sequence = sequence_of<flavour>(args, index);
    range = is_alone() ? Range{0, 1} : Range::of_block(sequence, key_block);
    k_tile = shared_address(shared), v_tile = k_tile + C::key_bytes, stages = v_tile + C::key_bytes;
  }

  /// Index of the sums and of the semaphore of a tile.
  __device__ __forceinline__ std::int64_t place(const Walk& walk) const {
    if constexpr (flavour == Flavour::plain) return std::int64_t(walk.head) * p.places + walk.tile;
    else return first_tile<C::queries>(args, sequence, index, walk.head, p.places) + walk.tile;
  }
  __device__ __forceinline__ bool is_alone() const { return C::has_whole_head || p.is_alone; }
  __device__ __forceinline__ unsigned q_tile(int step) const { return stages + step % 2 * C::stage_bytes; }
  __device__ __forceinline__ unsigned dy_tile(int step) const { return q_tile(step) + C::query_bytes; }
  __device__ __forceinline__ unsigned rows(int step) const { return q_tile(step) + 2 * C::query_bytes; }  ///< log_sums, then delta
  __device__ __forceinline__ unsigned ds_tile(int step) const { return rows(step) + C::row_bytes; }
  __device__ __forceinline__ float* pointer(unsigned address) const { return reinterpret_cast<float*>(shared + (address - k_tile)); }
  template <class U>
  __device__ __forceinline__ U* queries_of(const Heads& heads, int head) const {
    return ampere::queries_of<U>(heads, args, sequence, index, head);
  }
  template <class U>
  __device__ __forceinline__ U* keys_of(const Heads& heads) const {
    return ampere::keys_of<U>(heads, sequence, kv_head);
  }
  /// Number of blocks that add to a tile's dQ before this one, and whether this one is the last.
  __device__ __forceinline__ int turn(int tile) const { return C::has_whole_head ? 0 : key_block - Range::first_block(sequence, tile); }
  __device__ __forceinline__ bool is_last(int tile) const { return C::has_whole_head || key_block >= Range::last_block(sequence, tile); }

  /// Starts to copy the block's K and V, by the consumers.
  __device__ __forceinline__ void load_keys() const { ampere::load_keys<T, C, C::consumers>(k_tile, p, sequence, kv_head, first_key); }
  /// Starts to copy a tile of queries to its stage, as one group of cp.async, by `threads` threads of which this is number `thread`.
  template <int threads>
  __device__ __forceinline__ void load_stage(const Walk& walk, int thread) const {
    load_queries<T, C, threads>(q_tile(walk.step), p, sequence, index, walk.head, walk.tile * C::queries, !is_alone(), thread);
    cp_async_commit();
  }

  /// Computes delta, in a block whose head has one tile, and writes it to that tile's stage.
  __device__ __forceinline__ void compute_delta() const {
    constexpr int lanes = width / 8 <= 4 ? 4 : width / 8 <= 8 ? 8 : 16;
    const T *const y = queries_of<const T>(p.y, first_head), *const dy = queries_of<const T>(p.dy, first_head);
    float* const to = pointer(rows(0)) + C::queries;
    for (int row = threadIdx.x / lanes; row < C::queries; row += C::consumers / lanes) {
      float sum = 0;
      if (row < sequence.queries)
        sum = dot_row(y + row * p.y.row_stride, dy + row * p.dy.row_stride, args.head_dim, threadIdx.x % lanes, lanes, p.is_aligned);
      sum = lanes_all_reduce<PlusOp<float>>(sum, lanes);
      if (threadIdx.x % lanes == 0) to[row] = sum;
    }
  }

  /// Main loop of a thread of the producer warpgroup.
  __device__ __forceinline__ void produce() const {
    const int producer = threadIdx.x - C::consumers;
    const bool is_first_warp = producer < 32;
    Walk walk(*this), next = walk;
#pragma unroll 1
    for (; walk.step < walk.steps; walk = next) {
      next.advance(*this);
      if (next.step < next.steps) {
        load_stage<C::producers>(next, producer);
        cp_async_wait<0>();
        named_barrier_arrive(stage_full + next.step % 2, C::threads);
      }
      const int turns = turn(walk.tile);
      int* const semaphore = p.semaphores + place(walk);
      if (is_first_warp && turns > 0) {
        if (threadIdx.x % 32 == 0) semaphore_wait(semaphore, turns);
        __syncwarp();
        named_barrier_arrive(dq_turn, C::consumers + 32);
      }
      named_barrier_sync(stage_empty + walk.step % 2, C::threads);
      if (producer == 0 && !is_last(walk.tile)) semaphore_release(semaphore, turns + 1);
      __syncwarp();
    }
  }
};

}  // namespace tern::gpu::ampere
