#include "cuda/attention/mma.cuh"
#include "cuda/device/semaphore.cuh"
#include "cuda/device/vec16.cuh"
#include "cuda/device/wgmma.cuh"
#include "cuda/runtime/allocator.h"

// Flash attention by mma.sync, backward. A block has some keys of one key head and loops over the tiles of queries that see them, from the
// last to the first, for each query head that shares the key head. With S, P and dP transposed, (keys, queries), and delta = sum(y dy) over
// the columns of a query:
//
//     S = K Q^T,  P = 2^(S - log_sums),  dP = V dY^T,  dS = P (dP - delta)        dV += P dY,  dK += dS Q,  dQ += dS^T K
//
//     consumer warps, 16 keys each                                   producer warpgroup
//     ------------------------------------------------------------   -----------------------------------------------------------
//     wait stage_full                                                cp.async Q, dY, log_sums, delta of the next tile, other stage
//     each query sub-tile: S, dP, dS -> shared; dV, dK -> registers  arrive stage_full
//     wait dS_ready (consumers among themselves)                     wait for the semaphore of dQ's tile
//     dQ of this block = dS^T K of all warps                         arrive dq_turn
//     wait dq_turn; add to dQ's sums in global memory
//     arrive stage_empty                                             wait stage_empty; pass the semaphore to the next block
//
//     shared memory    K, V (keys, d)  |  stage 0: Q, dY (queries, d), log_sums, delta, dS (keys, queries)  |  stage 1: the same
//
// The fragments of P and dS are those of left operands of the products that accumulate dV and dK, in registers, over all queries. At d =
// 256 those sums are too many for a warp: then two warps have the same keys, both compute S and dP, and each has half of the columns of dV
// and dK. dQ needs dS from all warps, through shared memory, and sums over all blocks of the head:
//
// Note [dQ semaphore]
// The sums of dQ pass from block to block, in global memory and in the order of the keys, so that they are the same in every run (see Note
// [Ordered sums]): a block adds to a tile of queries after the blocks before it, and the last one that sees the tile writes the result. All
// blocks of a head loop over the queries from the last to the first, so that each follows the one before it; they wait for one another only
// at the start.
//
// Note [Producer warpgroup]
// Four more warps load the next tile of queries, wait for the semaphore and pass it on, so that the consumers wait for neither. Both sides
// meet at named barriers, which alternate from tile to tile where one side could otherwise be one tile ahead. On Hopper the producers give
// most of their registers to the consumers. A block that has all keys and queries of its head needs no producers, and computes delta
// itself.
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

struct BackwardParams : BackwardInputs {
  Heads dq, dk, dv;
  float* dq_sums;     ///< passed from block to block: (heads, places of tiles, pieces, piece / 8, consumers, 4)
  int* semaphores;    ///< number of blocks that have added to a tile, (heads, places of tiles)
  int places;         ///< tiles of queries for each head: Note [Rows of packed sequences]
  bool is_alone;      ///< each block has all keys and queries of its head, in one tile
  bool writes_pairs;  ///< gradients can be written 4 bytes at a time
};

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

namespace tern::gpu {

using namespace ampere;

namespace {

template <class T, class C, Flavour flavour>
__global__ void __launch_bounds__(C::threads, C::min_blocks) mma_attention_backward(__grid_constant__ const BackwardParams p) {
  extern __shared__ uint4 shared[];
  constexpr int width = C::width;
  const Block<T, C, flavour> block(p, shared);
  if (block.first_key >= block.sequence.keys && !block.is_alone()) return;
  if constexpr (C::producers > 0) {
    if (threadIdx.x >= C::consumers) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
      warpgroup_reg_dealloc<C::producer_registers>();
#endif
      return block.produce();
    }
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    warpgroup_reg_alloc<C::consumer_registers>();
#endif
  }

  Walk walk(block);
  Consumer<T, C, flavour> warp(block);
  if (walk.steps > 0) {
    block.load_keys();
    block.template load_stage<C::consumers>(walk, threadIdx.x);
    if (block.is_alone()) block.compute_delta();
    cp_async_wait<0>();
  }
  named_barrier_sync(ds_ready, C::consumers);
  const auto keys = warp.operand(OperandA<width>(block.k_tile, warp.row));
  const auto values = warp.operand(OperandA<width>(block.v_tile, warp.row));

#pragma unroll 1
  for (; walk.step < walk.steps; walk.advance(block)) {
    if (walk.step > 0) named_barrier_sync(stage_full + walk.step % 2, C::threads);
    const int first_query = walk.tile * C::queries;
    const unsigned q_tile = block.q_tile(walk.step), dy_tile = block.dy_tile(walk.step);
    // Issue the next sub-tile's scores before the sums of dK and dV, which do not depend on them.
    if (warp.is_visible(first_query)) warp.multiply(keys, values, q_tile, dy_tile, 0);
#pragma unroll 1
    for (int sub = 0; sub < C::queries; sub += C::sub_queries) {
      const bool is_visible = warp.is_visible(first_query + sub);
      if (is_visible) warp.differentiate(walk.head, first_query + sub, block.pointer(block.rows(walk.step)) + sub);
      else warp.ds_operand = {};
      if (C::column_groups == 1 || warp.column_group == 0)
        warp.ds_operand.template store<C::queries>(block.ds_tile(walk.step), warp.row, sub / 8);
      if (const int next = sub + C::sub_queries; next < C::queries && warp.is_visible(first_query + next))
        warp.multiply(keys, values, q_tile, dy_tile, next);
      if (is_visible)
        mma<T, C::sub_queries>(Product(warp.dv_sums, warp.p_operand, OperandB<width>(dy_tile, sub, warp.column() / 8)),
                               Product(warp.dk_sums, warp.ds_operand, OperandB<width>(q_tile, sub, warp.column() / 8)));
    }

    named_barrier_sync(ds_ready, C::consumers);
    warp.add_dq(walk);
    if constexpr (C::producers > 0) named_barrier_arrive(stage_empty + walk.step % 2, C::threads);
  }
  warp.write_dk_dv();
}

/// delta (B, H, T) = sum(y dy) over each head's columns, by `lanes` lanes per query; semaphores are set to zero, and so is dQ of queries
/// that see no key.
template <class T>
__global__ void __launch_bounds__(256) mma_attention_delta(Heads y, Heads dy, Heads dq, float* delta, int* semaphores, std::int64_t tiles,
                                                           int lanes, bool is_aligned, __grid_constant__ const Args args) {
  const std::int64_t thread = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x, row = thread / lanes;
  if (thread < tiles) semaphores[thread] = 0;
  const std::int64_t token = row / args.heads;  // rows in memory order
  const int head = static_cast<int>(row % args.heads), query = static_cast<int>(token % args.queries),
            lane = static_cast<int>(thread % lanes);
  const std::int64_t index = token / args.queries;
  const bool is_inside = index < args.sequences;
  const Sequence sequence(args, is_inside ? static_cast<int>(index) : 0);
  const bool is_there = is_inside && query < sequence.queries;
  const int at = sequence.first_query + query;
  float sum = 0;
  if (is_there) {
    sum =
        dot_row(y.at<const T>(sequence.batch, at, head), dy.at<const T>(sequence.batch, at, head), args.head_dim, lane, lanes, is_aligned);
    if (sequence.key_end(query) <= sequence.key_begin(query)) {
      T* const to = dq.at<T>(sequence.batch, at, head);
      for (int i = lane; i < args.head_dim; i += lanes) to[i] = T{};
    }
  }
  sum = lanes_all_reduce<PlusOp<float>>(sum, lanes);
  if (is_there && lane == 0)
    delta[first_row(args, sequence, static_cast<int>(index), static_cast<int>(index) * args.heads + head) + query] = sum;
}

template <class T, class C, Flavour flavour>
void launch_backward(const AttentionGradCall& call, const Args& args) {
  const Stream stream = call.q.stream;
  const std::int64_t heads = args.all_heads(), kv_heads = std::int64_t(args.sequences) * args.kv_heads;
  const std::int64_t tiles = ceil_div(args.queries, C::queries), blocks = ceil_div(args.keys, C::keys);
  const auto bytes_if = [](bool is_needed, std::int64_t count) { return is_needed ? static_cast<std::size_t>(count) * 4 : 0; };
  const bool is_alone = C::has_whole_head || (tiles <= 1 && blocks <= 1 && args.group() == 1);
  const kernels::AttentionGradients& to = call.gradients;
  const bool needs_delta = !is_alone || to.bias.data;
  const std::int64_t all_tiles = blocks > 1 ? args.all_tile_places(C::queries) : 0;
  const Workspace delta(bytes_if(needs_delta, args.all_rows()), stream);
  const Workspace semaphores(bytes_if(blocks > 1, all_tiles), stream);
  const Workspace sums(bytes_if(blocks > 1, all_tiles * C::queries * C::width), stream);
  const bool is_aligned = ampere::rows_are_aligned({&call.q, &call.k, &call.v, &call.y, &call.g}, 16);
  if (needs_delta && args.queries > 0) {
    const int lanes = static_cast<int>(std::bit_ceil(static_cast<unsigned>(ceil_div(args.head_dim, 8))));
    launch(mma_attention_delta<T>, blocks_for(std::max(heads * args.queries * lanes, all_tiles)), block_size, 0, stream, Heads(call.y),
           Heads(call.g), Heads(to.q), delta.as<float>(), semaphores.as<int>(), all_tiles, lanes, is_aligned, args);
  }
  const BackwardInputs inputs{args,
                              Heads(call.q),
                              Heads(call.k),
                              Heads(call.v),
                              Heads(call.y),
                              Heads(call.g),
                              Bias(call.attention.bias),
                              call.log_sums.as<const float>(),
                              delta.as<const float>(),
                              is_aligned};
  const BackwardParams params{inputs,
                              Heads(to.q),
                              Heads(to.k),
                              Heads(to.v),
                              sums.as<float>(),
                              semaphores.as<int>(),
                              args.tile_places(C::queries),
                              is_alone,
                              ampere::rows_are_aligned({&to.q, &to.k, &to.v}, 4)};
  launch(mma_attention_backward<T, C, flavour>, blocks_for(std::max<std::int64_t>(blocks, 1) * kv_heads, 1), C::threads,
         C::bytes(tiles * args.group() > 1 ? 2 : 1), stream, params);
  if (to.bias.data) sum_bias_gradient(inputs, to.bias);
}

}  // namespace

void mma_attention_grad(const AttentionGradCall& call) {
  const View& q = call.q;
  if (q.shape[0] == 0 || q.shape[2] == 0) return;
  const Args args(q, call.k, call.attention);
  if (args.sequences == 0) return;
  const auto with = [&]<class C, bool is_rare>() {
    dispatch<is_rare>(q.dtype, args, call.attention, [&]<class T, Flavour flavour>() { launch_backward<T, C, flavour>(call, args); });
  };
  using Wide = BackwardConfig<64, 8, 1, 128, 32, 128, 1>;
  if (args.head_dim <= 32 && args.queries <= 64 && args.keys <= 64 && args.group() == 1) {
    with.template operator()<BackwardConfig<32, 4, 1, 64, 16, 0, 4>, false>();
  } else if (attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, q.stream.device) >= Wide::bytes(2)) {
    if (args.head_dim <= 32) with.template operator()<BackwardConfig<32, 8, 1, 128, 32, 128, 1>, false>();
    else if (args.head_dim <= 64) with.template operator()<Wide, false>();
    else if (args.head_dim <= 96) with.template operator()<BackwardConfig<96, 8, 1, 64, 32, 128, 1>, true>();
    else if (args.head_dim <= 128) with.template operator()<BackwardConfig<128, 8, 1, 64, 32, 128, 1>, false>();
    else with.template operator()<BackwardConfig<256, 4, 2, 32, 16, 128, 1>, true>();
  } else {
    using Small64 = BackwardConfig<64, 8, 1, 64, 32, 128, 1>;
    using Small128 = BackwardConfig<128, 4, 1, 32, 32, 128, 1>;
    using Small256 = BackwardConfig<256, 2, 2, 16, 16, 128, 1>;
    constexpr int room = 99 << 10;  // shared memory of compute capabilities 8.6 and 8.9
    static_assert(Small64::bytes(2) <= room && Small128::bytes(2) <= room && Small256::bytes(2) <= room);
    if (args.head_dim <= 64) with.template operator()<Small64, true>();
    else if (args.head_dim <= 128) with.template operator()<Small128, true>();
    else with.template operator()<Small256, true>();
  }
}

}  // namespace tern::gpu
