#pragma once
#include "cuda/attention/hopper.cuh"
#include "cuda/device/semaphore.cuh"
#include "cuda/device/vec16.cuh"

// Flash attention on Hopper, backward. A block has 128 keys of one head of keys, and walks over the tiles of 64 queries that see them, for
// each head of queries that shares them, from the last tile to the first. With S, P and dP transposed, (keys, queries), and delta = the sum
// of y dy over a query's head:
//
//     S = K Q^T,  P = 2^(S - log_sums),  dP = V dY^T,  dS = P (dP - delta)        dV += P dY,  dK += dS Q,  dQ += dS^T K
//
//     helper warps     32 registers    warp 0, producer   kv_empty -> TMA: K, V -> kv_full; empty[i] -> TMA: Q, dY, rows -> full[i]
//                                      warp 1             semaphore of dQ's tile is at this block's turn -> turn[i]
//                                      warp 2             added[i] -> the semaphore to the next block
//     dQ warpgroup     64 registers    ds_full[i] -> dQ = dS^T K of the whole block, 64 columns at a time -> ds_empty[i];
//                                      turn[i] -> add to dQ's sums in global memory -> added[i]
//     two consumer     208 registers   64 keys each: full[i] -> S, dP; P and dS in registers, and dS to shared memory -> ds_full[i];
//     warpgroups                       dV, dK -> empty[i]
//
//     shared memory   | K, V (128, d) | ring of Q, dY (64, d), log_sums and delta (64) | two of dS (128 keys, 64 queries) |
//     d 64                32 KiB         4 x 17 KiB                                        32 KiB                            132 KiB
//     d 128               64 KiB         3 x 33 KiB                                        32 KiB                            195 KiB
//
// A consumer's registers at d = 128: dK and dV 128, S or dP 32, P or dS, rounded, 16: 176, and what addresses take. Both S and dP at a
// time, or P unrounded, would be 208. At d = 64 the fragments of K and V take 32: they are left operands from registers then, which saves
// half of what the products S and dP read of shared memory. Up to d = 96 consumers make do with 200, and 40 and 72 are left for the others.
//
// P and dS, rounded, are the left operands of dV and dK as they stand. While the tensor cores do one product, consumers have the
// exponentials or the differences of another (Order), and a consumer its own while the other one multiplies.
//
// The cycles of a tile at d = 128, by 2048 multiplications a cycle and 128 bytes of shared memory: products 2560; reads of operands 2048,
// stores of dS 128, TMA 256, additions of dQ 256. So shared memory is as busy as the tensor cores.
//
// Note [dQ semaphore], of flash_backward.cu, holds here, too: the sums of dQ pass from block to block in the order of the keys, and the
// last one that sees a tile writes the result. Blocks take the keys in this order, so one waits only for such as have begun before.
namespace tern::gpu::hopper {

/// When a consumer begins its products; t is the tile before i.
enum class Order {
  together,  ///< S, dP of tile i, dV, dK of t: exponentials and dS of i meanwhile
  halves     ///< S of i, dK of t: exponentials meanwhile; then dP, dV of i: dS meanwhile
};

template <int width_, int stages_, bool caches_fragments_, Order order_, int consumer_registers_ = 208, int helper_registers_ = 24>
struct BackwardConfig {
  static constexpr int width = width_;                         ///< of a head, filled up
  static constexpr int stages = stages_;                       ///< of the ring of queries
  static constexpr bool caches_fragments = caches_fragments_;  ///< of K and V, in registers
  static constexpr Order order = order_;
  static constexpr bool packs_p = width > 96 && order == Order::halves;  ///< dS comes from the rounded P: registers are for dK and dV
  static constexpr int keys = 128, queries = 64;                         ///< of tiles
  static constexpr int groups = 2, threads = (2 + groups) * warpgroup;
  using KTile = Tile<width, keys>;
  using QTile = Tile<width, queries>;
  using DsTile = Tile<queries, keys>;
  static constexpr int row_values = 2 * queries;  ///< log_sums and delta of a tile
  static constexpr int stage_bytes = 2 * QTile::bytes + swizzle_span, loaded_bytes = 2 * QTile::bytes + row_values * 4;
  static constexpr std::size_t shared_bytes = 2 * KTile::bytes + stages * stage_bytes + 2 * DsTile::bytes + swizzle_span;
  static constexpr int pieces = QTile::blocks;  ///< of dQ, 64 columns each
  static constexpr int consumer_registers = consumer_registers_, helper_registers = helper_registers_,
                       dq_registers = 512 - 2 * consumer_registers - helper_registers;
};

struct BackwardParams {
  CUtensorMap q, k, v, dy;
  Args args;
  Heads dq, dk, dv;
  const float* rows;  ///< (heads, tiles, 2, 64): log_sums and delta
  float4* dq_sums;    ///< passed from block to block: (heads, tiles, pieces, 8, 128)
  int* semaphores;    ///< how many blocks have added to a tile of queries: (heads, tiles)
  WorkQueue queue;
  int tiles, blocks;  ///< of queries and of keys, of the longest sequences
};

/// Tiles of queries and blocks of keys that see each other.
struct TileRange {
  int last, count;

  /// The tiles that see a block of keys.
  static __device__ __forceinline__ TileRange of_block(const Sequence& sequence, int block) {
    const int first_key = block * 128;
    if (first_key >= sequence.limit || sequence.queries <= 0) return {0, 0};
    const int first = !sequence.causal || sequence.prefix > first_key ? 0 : max(first_key - sequence.offset, 0) / 64;
    int last = (sequence.queries - 1) / 64;
    if (sequence.window > 0) {
      const int bound = first_key + 126 + sequence.window - sequence.offset;  // 64 times the last tile whose first query sees the last key
      last = bound < 0 ? -1 : min(last, bound / 64);
    }
    return {last, max(last - first + 1, 0)};
  }
  /// The blocks that a tile of queries sees, of which there is one at least.
  static __device__ __forceinline__ int first_block(const Sequence& sequence, int tile) { return sequence.key_begin(tile * 64) / 128; }
  static __device__ __forceinline__ int last_block(const Sequence& sequence, int tile) {
    return (sequence.key_end(min(tile * 64 + 64, sequence.queries) - 1) - 1) / 128;
  }
  static __device__ __forceinline__ bool sees_any(const Sequence& sequence, int tile) {
    return sequence.key_end(min(tile * 64 + 64, sequence.queries) - 1) > sequence.key_begin(tile * 64);
  }
};

/// What all threads of a block know of an item: a block of keys.
struct KeyBlock {
  int block, index, kv_head;
  Sequence sequence;
  TileRange tiles;

  KeyBlock() = default;
  __device__ __forceinline__ KeyBlock(const BackwardParams& p, int number)
      : KeyBlock(p, WorkItem(number, p.blocks, p.args.sequences * p.args.kv_heads, p.args.heads_at_once)) {}
  __device__ __forceinline__ int first_key() const { return block * 128; }
  __device__ __forceinline__ bool is_there() const { return first_key() < sequence.keys; }

  __device__ __forceinline__ int first_head(const Args& args) const { return index * args.heads + kv_head * args.group(); }
  /// f(head, tile) in the order of the walk; a head is one among those of all sequences.
  template <class F>
  __device__ __forceinline__ void for_each_tile(const Args& args, F&& f) const {
#pragma unroll 1
    for (int head = first_head(args); head < first_head(args) + args.group(); ++head)
#pragma unroll 1
      for (int i = 0; i < tiles.count; ++i) f(head, tiles.last - i);
  }

 private:
  __device__ __forceinline__ KeyBlock(const BackwardParams& p, const WorkItem& item)
      : block(item.tile),
        index(item.head / p.args.kv_heads),
        kv_head(item.head % p.args.kv_heads),
        sequence(p.args, index),
        tiles(TileRange::of_block(sequence, block)) {}
};

/// rows, from y, dy and log_sums; semaphores are set to zero, and so is dQ of tiles that see no key. By 8 or 16 lanes a query.
template <class T>
__global__ void __launch_bounds__(256) hopper_attention_rows(Heads y, Heads dy, Heads dq, const float* log_sums, float* rows,
                                                             int* semaphores, int tiles, int lanes, __grid_constant__ const Args args) {
  const std::int64_t thread = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x, row = thread / lanes;
  const auto head_tile = static_cast<int>(row / 64);
  const int lane = static_cast<int>(thread % lanes), head = head_tile / tiles, tile = head_tile % tiles;
  const bool is_inside = head < args.all_heads();
  float sum = 0;
  if (is_inside) {
    const Sequence sequence(args, head / args.heads);
    const int query = tile * 64 + static_cast<int>(row % 64);
    if (query < sequence.queries) {
      const int at = sequence.first_query + query, part = lane * 8;
      if (part < args.head_dim) {
        const auto a = read_vector<8>(y.at<const T>(sequence.batch, at, head % args.heads) + part),
                   b = read_vector<8>(dy.at<const T>(sequence.batch, at, head % args.heads) + part);
#pragma unroll
        for (int k = 0; k < 8; ++k) sum += convert<float>(a.values[k]) * convert<float>(b.values[k]);
        if (!TileRange::sees_any(sequence, tile)) write_vector(dq.at<T>(sequence.batch, at, head % args.heads) + part, Vector<T, 8>{});
      }
    }
    if (lane == 0) {
      float* const to = rows + std::int64_t(head_tile) * 128 + row % 64;
      to[0] = query < sequence.queries ? log_sums[std::int64_t(head) * args.queries + query] : INFINITY;
      if (row % 64 == 0) semaphores[head_tile] = 0;
    }
  }
  sum = lanes_all_reduce<PlusOp<float>>(sum, lanes);
  if (is_inside && lane == 0) rows[std::int64_t(head_tile) * 128 + 64 + row % 64] = sum;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int stages>
struct BackwardBarriers {
  MBarrier kv_full, kv_empty, full[stages], empty[stages], ds_full[2], ds_empty[2], turn[2], added[2];
  int item;
  // Registers are scarce: what comes once an item or a tile lies here.
  KeyBlock block;
  struct {
    int head, first_query;
    unsigned cuts;  ///< bit g: the mask hides a part of the tile from group g
  } tiles[stages];
  struct {
    int head, tile;
    bool is_first, is_last;  ///< of the blocks that add to the tile
  } dq_tiles[2];
};

/// Shared memory of a block, by addresses.
template <class C>
struct BackwardMemory {
  unsigned base;
  __device__ __forceinline__ unsigned k() const { return base; }
  __device__ __forceinline__ unsigned v() const { return base + C::KTile::bytes; }
  __device__ __forceinline__ unsigned q(int stage) const { return base + 2 * C::KTile::bytes + stage * C::stage_bytes; }
  __device__ __forceinline__ unsigned dy(int stage) const { return q(stage) + C::QTile::bytes; }
  __device__ __forceinline__ unsigned rows(int stage) const { return q(stage) + 2 * C::QTile::bytes; }
  __device__ __forceinline__ unsigned ds(int i) const { return q(C::stages) + i * C::DsTile::bytes; }
};

/// The producer: one thread.
template <class C>
__device__ __forceinline__ void produce(const BackwardParams& p, const BackwardMemory<C>& memory, BackwardBarriers<C::stages>& barriers) {
  PipelineState<C::stages> write;
  unsigned phase = 1;
  for (int number = static_cast<int>(blockIdx.x); number >= 0;) {
    const int next = p.queue.next();
    const KeyBlock block(p, number);
    const Sequence& sequence = block.sequence;
    if (block.is_there()) {
      barriers.kv_empty.wait(phase);
      phase ^= 1;
      barriers.item = number;
      barriers.block = block;
      barriers.kv_full.arrive_and_expect_tx(2 * C::KTile::bytes);
      const int key = sequence.first_key + block.first_key();
      C::KTile::load(memory.k(), p.k, block.kv_head, key, sequence.batch, barriers.kv_full);
      C::KTile::load(memory.v(), p.v, block.kv_head, key, sequence.batch, barriers.kv_full);
      block.for_each_tile(p.args, [&](int head, int tile) {
        const int stage = write.index, query = sequence.first_query + tile * 64, q_head = head % p.args.heads;
        MBarrier& full = barriers.full[stage];
        barriers.empty[stage].wait(write.phase ^ 1);
        unsigned cuts = 0;
        const int last_query = min(tile * 64 + 64, sequence.queries) - 1;
#pragma unroll
        for (int g = 0; g < C::groups; ++g) {
          const int first_key = block.first_key() + g * 64;
          if (sequence.key_begin(last_query) > first_key || sequence.key_end(tile * 64) < first_key + 64) cuts |= 1u << g;
        }
        barriers.tiles[stage] = {head, tile * 64, cuts};
        full.arrive_and_expect_tx(C::loaded_bytes);
        C::QTile::load(memory.q(stage), p.q, q_head, query, sequence.batch, full);
        C::QTile::load(memory.dy(stage), p.dy, q_head, query, sequence.batch, full);
        bulk_load(memory.rows(stage), p.rows + (std::int64_t(head) * p.tiles + tile) * C::row_values, C::row_values * 4, full);
        write.advance();
      });
    }
    number = next;
  }
  barriers.kv_empty.wait(phase);
  barriers.item = -1;
  barriers.kv_full.arrive();
}

/// Calls f(block) for each item that the producer takes, until there is none. f has to arrive at kv_empty.
template <class C, class F>
__device__ __forceinline__ void for_each_item(const BackwardParams& p, BackwardBarriers<C::stages>& barriers, F&& f) {
  for (unsigned phase = 0;; phase ^= 1) {
    barriers.kv_full.wait(phase);
    const int number = barriers.item;
    if (number < 0) break;
    f(number);
  }
}

/// Two slots that are used in turn.
struct Slots {
  unsigned used = 0;
  __device__ __forceinline__ unsigned index() const { return used % 2; }
  __device__ __forceinline__ unsigned phase() const { return used / 2 % 2; }
};

/// One thread: waits for this block's turns at dQ.
template <class C>
__device__ __forceinline__ void wait_for_turns(const BackwardParams& p, BackwardBarriers<C::stages>& barriers) {
  Slots slots;
  for_each_item<C>(p, barriers, [&](int number) {
    const KeyBlock block(p, number);
    barriers.kv_empty.arrive();
    block.for_each_tile(p.args, [&](int head, int tile) {
      const int turn = block.block - TileRange::first_block(block.sequence, tile);
      barriers.added[slots.index()].wait(slots.phase() ^ 1);
      if (turn > 0) semaphore_wait(p.semaphores + std::int64_t(head) * p.tiles + tile, turn);
      barriers.dq_tiles[slots.index()] = {head, tile, turn == 0, block.block == TileRange::last_block(block.sequence, tile)};
      barriers.turn[slots.index()].arrive();
      ++slots.used;
    });
  });
}
/// One thread: gives the turns to the next blocks.
template <class C>
__device__ __forceinline__ void pass_turns(const BackwardParams& p, BackwardBarriers<C::stages>& barriers) {
  Slots slots;
  for_each_item<C>(p, barriers, [&](int number) {
    const KeyBlock block(p, number);
    barriers.kv_empty.arrive();
    block.for_each_tile(p.args, [&](int head, int tile) {
      const int turn = block.block - TileRange::first_block(block.sequence, tile);
      barriers.added[slots.index()].wait(slots.phase());
      if (block.block < TileRange::last_block(block.sequence, tile))
        semaphore_release(p.semaphores + std::int64_t(head) * p.tiles + tile, turn + 1);
      ++slots.used;
    });
  });
}

/// The dQ warpgroup.
template <class T, class C>
__device__ __forceinline__ void sum_dq(const BackwardParams& p, const BackwardMemory<C>& memory, BackwardBarriers<C::stages>& barriers) {
  using KTile = typename C::KTile;
  using DsTile = typename C::DsTile;
  const int lane = threadIdx.x % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const std::uint64_t k = wgmma_descriptor(memory.k(), KTile::block_bytes), ds = wgmma_descriptor(memory.ds(0), DsTile::block_bytes);
  Slots slots;
  for_each_item<C>(p, barriers, [&](int) {
    const int count = barriers.block.tiles.count * p.args.group();
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      const auto& job = barriers.dq_tiles[slots.index()];
      const std::uint64_t from = ds + slots.index() * (DsTile::bytes >> 4);
      barriers.ds_full[slots.index()].wait(slots.phase());
#pragma unroll 1
      for (int piece = 0; piece < C::pieces; ++piece) {
        float dq[32];
        const std::uint64_t columns = k + piece * (KTile::block_bytes >> 4);
        warpgroup_arrive();
        wgmma_k16_first<T, true, true>(dq, from, columns);
#pragma unroll
        for (int i = 1; i < C::keys / 16; ++i) wgmma_k16<T, true, true>(dq, from + DsTile::row_step(i), columns + KTile::row_step(i), true);
        warpgroup_commit_batch();
        warpgroup_wait<0>();
        warpgroup_fence_operand(dq);
        if (piece == C::pieces - 1) arrive_warp(barriers.ds_empty[slots.index()]);
        if (piece == 0) barriers.turn[slots.index()].wait(slots.phase());
        float4* const to =
            p.dq_sums + ((std::int64_t(job.head) * p.tiles + job.tile) * C::pieces + piece) * (8 * warpgroup) + threadIdx.x % warpgroup;
        if (!job.is_last) {
#pragma unroll
          for (int n = 0; n < 8; ++n) {
            const float x[4] = {dq[n * 4], dq[n * 4 + 1], dq[n * 4 + 2], dq[n * 4 + 3]};
            if (job.is_first) __stcg(to + n * warpgroup, make_float4(x[0], x[1], x[2], x[3]));
            else red_add(to + n * warpgroup, x);
          }
        } else {
          if (!job.is_first)
#pragma unroll
            for (int n = 0; n < 8; ++n) {
              const float4 before = __ldcg(to + n * warpgroup);
              dq[n * 4] += before.x, dq[n * 4 + 1] += before.y, dq[n * 4 + 2] += before.z, dq[n * 4 + 3] += before.w;
            }
          const Sequence& sequence = barriers.block.sequence;
          T* rows[2];
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const int query = job.tile * 64 + warp * 16 + lane / 4 + r * 8;
            rows[r] = query < sequence.queries ? p.dq.template at<T>(sequence.batch, sequence.first_query + query, job.head % p.args.heads)
                                               : nullptr;
          }
          store_rows<T>(dq, {p.args.scale, p.args.scale}, rows, piece * 64, p.args.head_dim);
        }
      }
      arrive_warp(barriers.added[slots.index()]);
      ++slots.used;
    }
    arrive_warp(barriers.kv_empty);
  });
}

/// A consumer warpgroup: 64 keys, whose gradients it sums up in registers.
template <class T, class C, bool general, bool drops>
struct BackwardConsumer {
  using KTile = typename C::KTile;
  using QTile = typename C::QTile;
  static constexpr int steps = C::width / 16;
  using Pipeline = PipelineState<C::stages>;

  const BackwardParams& p;
  BackwardMemory<C> memory;
  BackwardBarriers<C::stages>& barriers;
  int group;
  std::uint64_t dropout_position;
  Slots slots;    ///< of dS
  Pipeline read;  ///< of the tile whose scores are computed

  float s[32], dp[32], dk[C::width / 2], dv[C::width / 2];
  // Rounded P and dS; in the order `halves` one comes when the other has been multiplied, and they share registers.
  static constexpr int p_place = 0, ds_place = C::order == Order::halves ? 0 : 1;
  unsigned operands[2][4][4], rounded[4][4], kept;
  unsigned k_fragments[C::caches_fragments ? steps : 1][4], v_fragments[C::caches_fragments ? steps : 1][4];
  float padding[2];

  __device__ __forceinline__ BackwardConsumer(const BackwardParams& p_, const BackwardMemory<C>& memory_,
                                              BackwardBarriers<C::stages>& barriers_)
      : p(p_), memory(memory_), barriers(barriers_), group(static_cast<int>(threadIdx.x) / warpgroup - 2) {
    dropout_position = drops ? p.args.dropout.position() : 0;
  }

  /// The warp's first key within the block.
  static __device__ __forceinline__ int warp_row() { return static_cast<int>(threadIdx.x) / 32 % 8 * 16; }
  /// The sequence's key in the thread's row r.
  __device__ __forceinline__ int key_of(int r) const {
    return barriers.block.first_key() + warp_row() + static_cast<int>(threadIdx.x) % 32 / 4 + r * 8;
  }
  /// The lane's row address for ldmatrix and stmatrix of 16 rows of 16 columns, step i of the latter.
  static __device__ __forceinline__ unsigned fragment_row(unsigned tile, int block_bytes, int i) {
    const int lane = threadIdx.x % 32, row = warp_row() + lane % 16;
    return tile + i / 4 * block_bytes + row * row_bytes + ((i % 4 * 2 + lane / 16) ^ row % 8) * 16;
  }

  __device__ __forceinline__ void load_fragments() {
    if constexpr (C::caches_fragments) {
#pragma unroll
      for (int i = 0; i < steps; ++i) {
        ldmatrix(k_fragments[i], fragment_row(memory.k(), KTile::block_bytes, i));
        ldmatrix(v_fragments[i], fragment_row(memory.v(), KTile::block_bytes, i));
      }
    }
  }
  /// result (keys, queries) = keys_tile queries_tile^T
  __device__ __forceinline__ void issue(float (&result)[32], const unsigned (&fragments)[C::caches_fragments ? steps : 1][4],
                                        unsigned keys_tile, unsigned queries_tile) {
    const std::uint64_t a = wgmma_descriptor(keys_tile + group * 64 * row_bytes, 0), b = wgmma_descriptor(queries_tile, 0);
    warpgroup_arrive();
    if constexpr (C::caches_fragments) wgmma_k16_first<T, false>(result, fragments[0], b);
    else wgmma_k16_first<T, false, false>(result, a, b);
#pragma unroll
    for (int i = 1; i < steps; ++i) {
      if constexpr (C::caches_fragments) wgmma_k16<T, false>(result, fragments[i], b + QTile::column_step(i), true);
      else wgmma_k16<T, false, false>(result, a + KTile::column_step(i), b + QTile::column_step(i), true);
    }
    warpgroup_commit_batch();
  }
  __device__ __forceinline__ void issue_s(int stage) { issue(s, k_fragments, memory.k(), memory.q(stage)); }
  __device__ __forceinline__ void issue_dp(int stage) { issue(dp, v_fragments, memory.v(), memory.dy(stage)); }
  /// dV += P dY.
  __device__ __forceinline__ void add_dv(int stage) {
    const std::uint64_t dy = wgmma_descriptor(memory.dy(stage), QTile::block_bytes);
    warpgroup_fence_operand(dv);
    warpgroup_fence_operand(operands[p_place]);
    warpgroup_arrive();
#pragma unroll
    for (int i = 0; i < 4; ++i) wgmma_k16<T, true>(dv, operands[p_place][i], dy + QTile::row_step(i), true);
  }
  /// dK += dS Q.
  __device__ __forceinline__ void add_dk(int stage) {
    const std::uint64_t q = wgmma_descriptor(memory.q(stage), QTile::block_bytes);
    warpgroup_fence_operand(dk);
    warpgroup_fence_operand(operands[ds_place]);
    warpgroup_arrive();
#pragma unroll
    for (int i = 0; i < 4; ++i) wgmma_k16<T, true>(dk, operands[ds_place][i], q + QTile::row_step(i), true);
  }

  /// P of a tile, from S.
  __device__ __forceinline__ void exponentiate(int stage) {
    const unsigned log_sums = memory.rows(stage) + threadIdx.x % 4 * 8;
    const float scale = p.args.scale_log2;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 log_sum = load_shared<float2>(log_sums + n * 32);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[n * 4 + e] = s[n * 4 + e] * scale - (e % 2 ? log_sum.y : log_sum.x);
        if constexpr (general) s[n * 4 + e] += padding[e / 2];
      }
    }
    if (barriers.tiles[stage].cuts >> group & 1) {
      const Sequence& sequence = barriers.block.sequence;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int key = key_of(r), first = barriers.tiles[stage].first_query + threadIdx.x % 4 * 2,
                  begin = sequence.query_begin(key) - first, end = sequence.query_end(key) - first;
#pragma unroll
        for (int n = 0; n < 8; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            if (n * 8 + e < begin || n * 8 + e >= end) s[n * 4 + r * 2 + e] = -INFINITY;
      }
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) s[i] = exp2_approx(s[i]);
    if constexpr (drops) draw(stage);
  }
  /// Which of the thread's elements of P dropout keeps: bit i is that of s[i].
  __device__ __forceinline__ void draw(int stage) {
    const auto& tile = barriers.tiles[stage];
    const int lane = threadIdx.x % 32;
    kept = 0;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const std::int64_t first =
          (std::int64_t(tile.head) * p.args.queries + tile.first_query + n * 16) * p.args.keys + barriers.block.first_key() + warp_row();
      const unsigned drawn = kept_16x16(p.args.dropout, p.args.keys, dropout_position, first);
      // Of the thread's two queries: the lower half's bits are keys, and those of the upper half 8 queries on.
      const unsigned even = __shfl_sync(whole_warp, drawn, lane % 4 * 8) >> lane / 4,
                     odd = __shfl_sync(whole_warp, drawn, lane % 4 * 8 + 4) >> lane / 4;
#pragma unroll
      for (int i = 0; i < 8; ++i) kept |= ((i % 2 ? odd : even) >> (i / 2 % 2 * 8 + i / 4 * 16) & 1) << (n * 8 + i);
    }
  }
  __device__ __forceinline__ bool is_kept(int i) const { return !drops || (kept >> i & 1); }
  /// P, rounded, without what is dropped.
  __device__ __forceinline__ void round_p() {
    warpgroup_fence_operand(s);
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int at = i * 8 + k * 2;
        if constexpr (C::packs_p && drops) rounded[i][k] = pack_pair<T>(s[at], s[at + 1]);
        operands[p_place][i][k] = pack_pair<T>(is_kept(at) ? s[at] : 0, is_kept(at + 1) ? s[at + 1] : 0);
      }
  }
  /// dS, from P and dP.
  __device__ __forceinline__ void differentiate(int stage) {
    const unsigned deltas = memory.rows(stage) + C::queries * 4 + threadIdx.x % 4 * 8;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 delta = load_shared<float2>(deltas + n * 32);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int at = n * 4 + r * 2;
        float first = s[at], second = s[at + 1];
        if constexpr (C::packs_p)
          unpack_pair<T>(drops ? rounded[n / 2][n % 2 * 2 + r] : operands[p_place][n / 2][n % 2 * 2 + r], first, second);
        float dp_first = dp[at], dp_second = dp[at + 1];
        if constexpr (drops) {
          dp_first = is_kept(at) ? dp_first * p.args.inverse_keep : 0;
          dp_second = is_kept(at + 1) ? dp_second * p.args.inverse_keep : 0;
        }
        dp[at] = first * (dp_first - delta.x);
        dp[at + 1] = second * (dp_second - delta.y);
      }
    }
  }
  /// Rounds dS, and writes it for the dQ warpgroup.
  __device__ __forceinline__ void round_ds() {
    warpgroup_fence_operand(dp);
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int k = 0; k < 4; ++k) operands[ds_place][i][k] = pack_pair<T>(dp[i * 8 + k * 2], dp[i * 8 + k * 2 + 1]);
    barriers.ds_empty[slots.index()].wait(slots.phase() ^ 1);
    const unsigned tile = memory.ds(slots.index());
#pragma unroll
    for (int i = 0; i < 4; ++i) stmatrix(fragment_row(tile, 0, i), operands[ds_place][i]);
    fence_proxy_async();
    arrive_warp(barriers.ds_full[slots.index()]);
    ++slots.used;
  }
  /// Waits until at most so many of the begun batches are under way, and lets results be read.
  template <int batches, int size>
  static __device__ __forceinline__ void wait_for(float (&result)[size]) {
    warpgroup_wait<batches>();
    warpgroup_fence_operand(result);
  }
  /// The loop over the tiles of queries in the order `together`.
  __device__ __forceinline__ void walk_together(int count) {
    barriers.full[read.index].wait(read.phase);
    issue_s(read.index);
    issue_dp(read.index);
    wait_for<1>(s);
    exponentiate(read.index);
    wait_for<0>(dp);
    differentiate(read.index);
    round_p();
    round_ds();
#pragma unroll 1
    while (--count > 0) {
      const int previous = read.index;
      read.advance();
      const int stage = read.index;
      barriers.full[stage].wait(read.phase);
      issue_s(stage);
      issue_dp(stage);
      add_dv(previous);
      add_dk(previous);
      warpgroup_commit_batch();
      wait_for<2>(s);
      exponentiate(stage);
      wait_for<1>(dp);
      differentiate(stage);
      wait_for<0>(dk);
      warpgroup_fence_operand(dv);
      arrive_warp(barriers.empty[previous]);
      round_p();
      round_ds();
    }
    add_dv(read.index);
    add_dk(read.index);
    warpgroup_commit_batch();
    wait_for<0>(dk);
    warpgroup_fence_operand(dv);
  }
  /// And in the order `halves`. After the last tile, whose dK is left, S is computed once more for nothing: with products behind the loop
  /// the compiler needs registers for copies of dK and dV.
  __device__ __forceinline__ void walk_halves(int count) {
    const auto begin_dp = [&](int stage) {
      issue_dp(stage);
      add_dv(stage);
      warpgroup_commit_batch();
      wait_for<1>(dp);
      differentiate(stage);
    };
    barriers.full[read.index].wait(read.phase);
    issue_s(read.index);
    wait_for<0>(s);
    exponentiate(read.index);
    round_p();
    begin_dp(read.index);
    wait_for<0>(dv);
    round_ds();
#pragma unroll 1
    while (true) {
      const int previous = read.index;
      --count;
      if (count > 0) {
        read.advance();
        barriers.full[read.index].wait(read.phase);
      }
      const int stage = read.index;
      issue_s(stage);
      add_dk(previous);
      warpgroup_commit_batch();
      wait_for<1>(s);
      if (count == 0) break;
      exponentiate(stage);
      wait_for<0>(dk);
      arrive_warp(barriers.empty[previous]);
      round_p();
      begin_dp(stage);
      wait_for<0>(dv);
      round_ds();
    }
    wait_for<0>(dk);
    warpgroup_fence_operand(dv);
  }

  /// The heads of the thread's two keys in a gradient; null where there is none.
  __device__ __forceinline__ void rows_of(const Heads& gradient, T* (&rows)[2]) const {
    const KeyBlock& block = barriers.block;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int key = key_of(r);
      rows[r] = key < block.sequence.keys ? gradient.template at<T>(block.sequence.batch, block.sequence.first_key + key, block.kv_head)
                                          : nullptr;
    }
  }
  __device__ __forceinline__ void attend() {
    const KeyBlock& block = barriers.block;
    const int count = block.tiles.count * p.args.group();
    T *dk_rows[2], *dv_rows[2];
    if (count > 0) {
      load_fragments();
#pragma unroll
      for (int i = 0; i < C::width / 2; ++i) dk[i] = dv[i] = 0;
      if constexpr (general) {
#pragma unroll
        for (int r = 0; r < 2; ++r) padding[r] = padding_log2(p.args, block.sequence, block.index, key_of(r));
      }
      if constexpr (C::order == Order::together) walk_together(count);
      else walk_halves(count);
      arrive_warp(barriers.empty[read.index]);
      read.advance();
      rows_of(p.dk, dk_rows);
      rows_of(p.dv, dv_rows);
      arrive_warp(barriers.kv_empty);
      store_rows<T>(dk, {p.args.scale, p.args.scale}, dk_rows, 0, p.args.head_dim);
      store_rows<T>(dv, {p.args.inverse_keep, p.args.inverse_keep}, dv_rows, 0, p.args.head_dim);
    } else {  // no query sees the keys
      rows_of(p.dk, dk_rows);
      rows_of(p.dv, dv_rows);
      arrive_warp(barriers.kv_empty);
      store_zeros<T>(dk_rows, p.args.head_dim);
      store_zeros<T>(dv_rows, p.args.head_dim);
    }
  }
};

#endif

template <class T, class C, bool general, bool drops>
__global__ void __launch_bounds__(C::threads, 1) hopper_attention_backward(__grid_constant__ const BackwardParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint4 memory[];
  __shared__ BackwardBarriers<C::stages> barriers;  // its presence says that this was compiled for wgmma: see runs_wgmma_kernel
  if (threadIdx.x == 0) {
    tma_prefetch_map(p.q);
    tma_prefetch_map(p.k);
    tma_prefetch_map(p.v);
    tma_prefetch_map(p.dy);
    constexpr int consumer_warps = C::groups * 4, dq_warps = 4, turn_warps = 2;
    barriers.kv_full.init(1);
    barriers.kv_empty.init(consumer_warps + dq_warps + turn_warps);
    for (int i = 0; i < C::stages; ++i) {
      barriers.full[i].init(1);
      barriers.empty[i].init(consumer_warps);
    }
    for (int i = 0; i < 2; ++i) {
      barriers.ds_full[i].init(consumer_warps);
      barriers.ds_empty[i].init(dq_warps);
      barriers.turn[i].init(1);
      barriers.added[i].init(dq_warps);
    }
    fence_barrier_init();
  }
  __syncthreads();
  const BackwardMemory<C> tiles{(shared_address(memory) + unsigned(swizzle_span) - 1) & ~(unsigned(swizzle_span) - 1)};
  if (threadIdx.x < warpgroup) {
    warpgroup_reg_dealloc<C::helper_registers>();
    if (threadIdx.x == 0) produce<C>(p, tiles, barriers);
    else if (threadIdx.x == 32) wait_for_turns<C>(p, barriers);
    else if (threadIdx.x == 64) pass_turns<C>(p, barriers);
  } else if (threadIdx.x < 2 * warpgroup) {
    warpgroup_reg_dealloc<C::dq_registers>();
    sum_dq<T, C>(p, tiles, barriers);
  } else {
    warpgroup_reg_alloc<C::consumer_registers>();
    BackwardConsumer<T, C, general, drops> consumer(p, tiles, barriers);
    for_each_item<C>(p, barriers, [&](int) { consumer.attend(); });
  }
#endif
}

}  // namespace tern::gpu::hopper
