#pragma once
#include "cuda/attention/hopper.cuh"
#include "cuda/device/fragment.cuh"
#include "cuda/device/semaphore.cuh"

// Flash attention on Hopper, backward: parts of both kernels, of 16 bits (hopper_backward.cu, which has the picture) and of float32. The
// tiles that see each other, shared memory and its barriers; the kernel that runs before; scores of a consumer; the producer warpgroup and
// the dQ warpgroup; the launch.
//
// Note [dQ semaphore] of mma_backward.cu applies here too: the sums of dQ pass from block to block in the order of the keys, and the last
// block that sees a tile writes the result. Blocks take the keys in this order, so a block waits only for blocks that have started earlier.
namespace tern::gpu::hopper {

struct BackwardParams {
  CUtensorMap q, k, v, dy;
  Args args;
  Heads dq, dk, dv;
  // For each tile of queries, at its place: Note [Rows of packed sequences].
  const float* rows;  ///< (heads, places, 2, 64): log_sums and delta
  float4* dq_sums;    ///< passed from block to block: (heads, places, pieces, 8, 128)
  int* semaphores;    ///< number of blocks that have added to a tile: (heads, places)
  WorkQueue queue;
  int places, blocks;  ///< blocks: blocks of keys of the longest sequence
  Maxima maxima;       ///< for f32
};

template <int keys>
using TileRange = flash::TileRange<keys, 64>;

/// Work item: a block of keys, as all threads of a block know it.
template <int keys>
struct KeyBlock {
  int block, index, kv_head;
  Sequence sequence;
  TileRange<keys> tiles;

  KeyBlock() = default;
  __device__ __forceinline__ KeyBlock(const BackwardParams& p, int number)
      : KeyBlock(p, WorkItem(number, p.blocks, p.args.sequences * p.args.kv_heads, p.args.heads_at_once)) {}
  __device__ __forceinline__ int first_key() const { return block * keys; }
  __device__ __forceinline__ bool is_there() const { return first_key() < sequence.keys; }

  __device__ __forceinline__ int first_head(const Args& args) const { return index * args.heads + kv_head * args.group(); }
  /// Calls f(head, tile, place) in the order of the loop; heads are counted over all sequences.
  template <class F>
  __device__ __forceinline__ void for_each_tile(const BackwardParams& p, F&& f) const {
    int first = first_tile<64>(p.args, sequence, index, first_head(p.args), p.places);
#pragma unroll 1
    for (int head = first_head(p.args); head < first_head(p.args) + p.args.group(); ++head, first += p.places)
#pragma unroll 1
      for (int i = 0; i < tiles.count; ++i) f(head, tiles.last - i, first + tiles.last - i);
  }

 private:
  __device__ __forceinline__ KeyBlock(const BackwardParams& p, const WorkItem& item)
      : block(item.tile),
        index(item.head / p.args.kv_heads),
        kv_head(item.head % p.args.kv_heads),
        sequence(p.args, index),
        tiles(TileRange<keys>::of_block(sequence, block)) {}
};

/// Computes rows (log_sums and delta) from y, dy and log_sums; sets semaphores to zero, and dQ of tiles that see no key. A query is read by
/// as many lanes as it has 16-byte vectors, a power of two.
template <class T>
__global__ void __launch_bounds__(256)
    hopper_attention_rows(Heads y, Heads dy, Heads dq, const float* log_sums, float* rows, int* semaphores, int tiles, int places,
                          int lanes, __grid_constant__ const Args args) {
  const std::int64_t thread = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x, row = thread / lanes;
  const auto head_tile = static_cast<int>(row / 64);
  constexpr int vector = vec16_width<T>;
  const int lane = static_cast<int>(thread % lanes), head = head_tile / tiles, tile = head_tile % tiles;
  float sum = 0, *to = nullptr;
  if (head < args.all_heads()) {
    const int index = head / args.heads;
    const Sequence sequence(args, index);
    const int query = tile * 64 + static_cast<int>(row % 64);
    const std::int64_t place = first_tile<64>(args, sequence, index, head, places) + tile;
    if (query < sequence.queries) {
      const int at = sequence.first_query + query, part = lane * vector;
      if (part < args.head_dim) {
        const auto a = read_vector<vector>(y.at<const T>(sequence.batch, at, head % args.heads) + part),
                   b = read_vector<vector>(dy.at<const T>(sequence.batch, at, head % args.heads) + part);
#pragma unroll
        for (int k = 0; k < vector; ++k) sum += convert<float>(a.values[k]) * convert<float>(b.values[k]);
        if (!TileRange<64>::sees_any(sequence, tile))
          write_vector(dq.at<T>(sequence.batch, at, head % args.heads) + part, Vector<T, vector>{});
      }
    }
    // A shorter sequence does not have places for all tiles of the longest.
    if (lane == 0 && tile * 64 < sequence.queries) {
      to = rows + place * 128 + row % 64;
      to[0] = query < sequence.queries ? log_sums[first_row(args, sequence, index, head) + query] : INFINITY;
      if (row % 64 == 0) semaphores[place] = 0;
    }
  }
  sum = lanes_all_reduce<PlusOp<float>>(sum, lanes);
  if (to) to[64] = sum;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// A tile of queries whose dQ a block adds to.
struct DqJob {
  int head, tile, place;
  bool is_first, is_last;  ///< this block is the first, or the last, to add to the tile
};

template <int stages, int keys>
struct BackwardBarriers {
  MBarrier kv_full, kv_empty, full[stages], empty[stages], ds_full[2], ds_empty[2], turn[2], added[2], released[2];
  int item;
  // Values of an item and of its tiles, which the producer leaves here because registers are scarce.
  KeyBlock<keys> block;
  struct {
    int head, first_query;
    unsigned cuts;  ///< bit g: the mask hides a part of the tile from group g
  } tiles[stages];
  DqJob dq_tiles[2];
};

/// Addresses of a block's shared memory.
template <class C>
struct BackwardMemory {
  unsigned base;
  __device__ __forceinline__ unsigned k() const { return base; }
  __device__ __forceinline__ unsigned v() const { return base + C::KTile::bytes; }
  __device__ __forceinline__ unsigned q(int stage) const { return base + 2 * C::KTile::bytes + stage * C::stage_bytes; }
  __device__ __forceinline__ unsigned dy(int stage) const { return q(stage) + C::QTile::bytes; }
  __device__ __forceinline__ unsigned rows(int stage) const { return base + C::rows_begin + stage * C::rows_pitch; }
  __device__ __forceinline__ unsigned ds(int i) const { return q(C::stages) + i * C::DsTile::bytes; }
};

/// Calls f(block) for each item that the producer takes, until none is left. f must arrive at kv_empty.
template <class C, class F>
__device__ __forceinline__ void for_each_item(const BackwardParams& p, BackwardBarriers<C::stages, C::keys>& barriers, F&& f) {
  for (unsigned phase = 0;; phase ^= 1) {
    barriers.kv_full.wait(phase);
    const int number = barriers.item;
    if (number < 0) break;
    f(number);
  }
}

/// Position in one or two slots that alternate: a PipelineState in one register, where registers are scarce.
template <unsigned count = 2>
struct Slots {
  unsigned used = 0;
  __device__ __forceinline__ unsigned index() const { return used % count; }
  __device__ __forceinline__ unsigned phase() const { return used / count % 2; }
};

/// A consumer warpgroup's 64 keys and its scores of a tile of queries, (keys, queries).
template <class C, bool general, bool drops>
struct BackwardScores {
  const BackwardParams& p;
  BackwardMemory<C> memory;
  BackwardBarriers<C::stages, C::keys>& barriers;
  int group;
  std::uint64_t dropout_position;
  Slots<> slots;                  ///< next slot of dS, of 16 bits
  PipelineState<C::stages> read;  ///< stage of the tile whose scores are computed

  float s[32], padding[2];
  unsigned kept;  ///< dropout's mask

  __device__ __forceinline__ BackwardScores(const BackwardParams& p_, const BackwardMemory<C>& memory_,
                                            BackwardBarriers<C::stages, C::keys>& barriers_)
      : p(p_), memory(memory_), barriers(barriers_), group(C::groups == 1 ? 0 : static_cast<int>(threadIdx.x) / warpgroup - 2) {
    dropout_position = drops ? p.args.dropout.position() : 0;
  }

  /// First key of the warp within the block.
  static __device__ __forceinline__ int warp_row() { return static_cast<int>(threadIdx.x) / 32 % (4 * C::groups) * 16; }
  /// Key of the thread's row r, within the sequence.
  __device__ __forceinline__ int key_of(int r) const {
    return barriers.block.first_key() + warp_row() + static_cast<int>(threadIdx.x) % 32 / 4 + r * 8;
  }
  /// Row address of the lane for ldmatrix and stmatrix of 16 rows, at 16-column step i.
  static __device__ __forceinline__ unsigned fragment_row(unsigned tile, int block_bytes, int i) {
    const int lane = threadIdx.x % 32, row = warp_row() + lane % 16;
    return tile + i / 4 * block_bytes + row * row_bytes + ((i % 4 * 2 + lane / 16) ^ row % 8) * 16;
  }

  /// P of a tile times 2^exponent, from S, for a given scale in base 2.
  __device__ __forceinline__ void exponentiate(int stage, float scale, int exponent = 0) {
    const unsigned log_sums = memory.rows(stage) + threadIdx.x % 4 * 8;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 log_sum = load_shared<float2>(log_sums + n * 32);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[n * 4 + e] = s[n * 4 + e] * scale - ((e % 2 ? log_sum.y : log_sum.x) - exponent);
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
  /// Dropout mask of the thread's elements of P: bit i is that of s[i].
  __device__ __forceinline__ void draw(int stage) {
    const auto& tile = barriers.tiles[stage];
    const int lane = threadIdx.x % 32;
    kept = 0;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const std::int64_t first =
          (std::int64_t(tile.head) * p.args.queries + tile.first_query + n * 16) * p.args.keys + barriers.block.first_key() + warp_row();
      const unsigned drawn = p.args.dropout.template kept_16x16<MmaLanes>(p.args.keys, dropout_position, first);
      // For the thread's two queries: bits of the lower half are keys, those of the upper half belong to the query 8 further.
      const unsigned even = __shfl_sync(whole_warp, drawn, lane % 4 * 8) >> lane / 4,
                     odd = __shfl_sync(whole_warp, drawn, lane % 4 * 8 + 4) >> lane / 4;
#pragma unroll
      for (int i = 0; i < 8; ++i) kept |= ((i % 2 ? odd : even) >> (i / 2 % 2 * 8 + i / 4 * 16) & 1) << (n * 8 + i);
    }
  }
  __device__ __forceinline__ bool is_kept(int i) const { return !drops || (kept >> i & 1); }
  /// Waits until at most that many committed batches of wgmma are pending; `result`, of an earlier batch, may then be read.
  template <int batches, int size>
  static __device__ __forceinline__ void wait_for(float (&result)[size]) {
    warpgroup_wait<batches>();
    warpgroup_fence_operand(result);
  }
  /// Rows of the thread's two keys in a gradient; null if there is no such key.
  template <class U>
  __device__ __forceinline__ void rows_of(const Heads& gradient, U* (&rows)[2]) const {
    const KeyBlock<C::keys>& block = barriers.block;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int key = key_of(r);
      rows[r] = key < block.sequence.keys ? gradient.template at<U>(block.sequence.batch, block.sequence.first_key + key, block.kv_head)
                                          : nullptr;
    }
  }
};

/// Producer: one thread.
template <class C>
__device__ __forceinline__ void produce(const BackwardParams& p, const BackwardMemory<C>& memory,
                                        BackwardBarriers<C::stages, C::keys>& barriers) {
  PipelineState<C::stages> write;
  unsigned phase = 1;
  for (int number = static_cast<int>(blockIdx.x); number >= 0;) {
    const int next = p.queue.next();
    const KeyBlock<C::keys> block(p, number);
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
      block.for_each_tile(p, [&](int head, int tile, int place) {
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
        bulk_load(memory.rows(stage), p.rows + std::int64_t(place) * C::row_values, C::row_values * 4, full);
        write.advance();
      });
    }
    number = next;
  }
  barriers.kv_empty.wait(phase);
  barriers.item = -1;
  barriers.kv_full.arrive();
}

/// Semaphore waiter, one thread: signals the dQ warpgroup when it is this block's turn to add to a tile's dQ.
template <class C>
__device__ __forceinline__ void wait_for_semaphores(const BackwardParams& p, BackwardBarriers<C::stages, C::keys>& barriers) {
  Slots<> slots;
  for_each_item<C>(p, barriers, [&](int number) {
    const KeyBlock<C::keys> block(p, number);
    barriers.kv_empty.arrive();
    block.for_each_tile(p, [&](int head, int tile, int place) {
      const int turn = block.block - TileRange<C::keys>::first_block(block.sequence, tile);
      barriers.released[slots.index()].wait(slots.phase() ^ 1);
      if (turn > 0) semaphore_wait(p.semaphores + place, turn);
      barriers.dq_tiles[slots.index()] = {head, tile, place, turn == 0,
                                          block.block == TileRange<C::keys>::last_block(block.sequence, tile)};
      barriers.turn[slots.index()].arrive();
      ++slots.used;
    });
  });
}
/// Semaphore releaser, one thread: passes the semaphore to the next block once this block has added to a tile's dQ.
template <class C>
__device__ __forceinline__ void release_semaphores(const BackwardParams& p, BackwardBarriers<C::stages, C::keys>& barriers) {
  Slots<> slots;
  for_each_item<C>(p, barriers, [&](int number) {
    const KeyBlock<C::keys> block(p, number);
    barriers.kv_empty.arrive();
    block.for_each_tile(p, [&](int, int tile, int place) {
      const int turn = block.block - TileRange<C::keys>::first_block(block.sequence, tile);
      barriers.added[slots.index()].wait(slots.phase());
      barriers.released[slots.index()].arrive();  // before the fence, which takes long: meanwhile a slot could be added to twice
      if (block.block < TileRange<C::keys>::last_block(block.sequence, tile)) semaphore_release(p.semaphores + place, turn + 1);
      ++slots.used;
    });
  });
}

/// A thread of the producer warpgroup.
template <class C>
__device__ __forceinline__ void run_producer_warps(const BackwardParams& p, const BackwardMemory<C>& memory,
                                                   BackwardBarriers<C::stages, C::keys>& barriers) {
  if (threadIdx.x == 0) produce<C>(p, memory, barriers);
  else if (threadIdx.x == 32) wait_for_semaphores<C>(p, barriers);
  else if (threadIdx.x == 64) release_semaphores<C>(p, barriers);
}
/// Initializes the barriers of a block with this number of consumer warps; called by one thread.
template <class C>
__device__ __forceinline__ void init_barriers(BackwardBarriers<C::stages, C::keys>& barriers, int consumer_warps) {
  constexpr unsigned ds_arrivals = C::groups * 4 * warp_arrivals, dq_arrivals = 4 * warp_arrivals, turn_threads = 2;
  const unsigned consumers = consumer_warps * warp_arrivals;
  barriers.kv_full.init(1);
  barriers.kv_empty.init(consumers + dq_arrivals + turn_threads);
  for (int i = 0; i < C::stages; ++i) {
    barriers.full[i].init(1);
    barriers.empty[i].init(consumers);
  }
  for (int i = 0; i < 2; ++i) {
    barriers.ds_full[i].init(ds_arrivals);
    barriers.ds_empty[i].init(dq_arrivals);
    barriers.turn[i].init(1);
    barriers.added[i].init(dq_arrivals);
    barriers.released[i].init(1);
  }
}
/// Adds 64 columns of this block's dQ of a tile to the sums of the previous blocks; the last block writes the total times `factor`.
template <class T, class C>
__device__ __forceinline__ void add_dq(const BackwardParams& p, const Sequence& sequence, const DqJob& job, float (&dq)[32], int piece,
                                       float factor) {
  float4* const to = p.dq_sums + (std::int64_t(job.place) * C::pieces + piece) * (8 * warpgroup) + threadIdx.x % warpgroup;
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
    const int lane = threadIdx.x % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
    T* rows[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int query = job.tile * 64 + warp * 16 + lane / 4 + r * 8;
      rows[r] =
          query < sequence.queries ? p.dq.template at<T>(sequence.batch, sequence.first_query + query, job.head % p.args.heads) : nullptr;
    }
    store_rows<T>(dq, {factor, factor}, rows, piece * 64, p.args.head_dim);
  }
}
/// Position of the dQ warpgroup in two rings: the two slots of `turn` and `added`, and those of dS. With two slots of dS they are one
/// position, in one register.
template <int ds_slots>
struct DqSlots {
  Slots<> turn;
  Slots<ds_slots> own;

  __device__ __forceinline__ auto& ds() {
    if constexpr (ds_slots == 2) return turn;
    else return own;
  }
  __device__ __forceinline__ void advance() {
    ++turn.used;
    if constexpr (ds_slots != 2) ++own.used;
  }
};

/// dQ warpgroup. The last block of a tile writes its dQ times factor(), which is called once for each block of keys.
template <class T, class C, class Barriers, class Factor>
__device__ __forceinline__ void sum_dq(const BackwardParams& p, const BackwardMemory<C>& memory, Barriers& barriers, Factor&& factor) {
  using KTile = typename C::KTile;
  using DsTile = typename C::DsTile;
  using Element = element_t<T>;
  using Terms = Products<C::parts>;
  const std::uint64_t k = wgmma_descriptor(memory.k(), KTile::block_bytes), ds = wgmma_descriptor(memory.ds(0), DsTile::block_bytes);
  DqSlots<C::ds_slots> slots;
  for_each_item<C>(p, barriers, [&](int) {
    const int count = barriers.block.tiles.count * p.args.group();
    const float scale = factor();
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      const auto& job = barriers.dq_tiles[slots.turn.index()];
      const std::uint64_t from = ds + slots.ds().index() * (DsTile::bytes >> 4);
      barriers.ds_full[slots.ds().index()].wait(slots.ds().phase());
#pragma unroll 1
      for (int piece = 0; piece < C::pieces; ++piece) {
        float dq[32];
        const std::uint64_t columns = k + piece * (KTile::block_bytes >> 4);
        warpgroup_arrive();
#pragma unroll
        for (int n = 0; n < Terms::count; ++n) {
          const std::uint64_t left = from + DsTile::part_step(Terms::left(n)), right = columns + KTile::part_step(Terms::right(n));
          if (n == 0) wgmma_k16_first<Element, true, true>(dq, left, right);
#pragma unroll
          for (int i = n == 0; i < C::keys / 16; ++i)
            wgmma_k16<Element, true, true>(dq, left + DsTile::row_step(i), right + KTile::row_step(i), true);
        }
        warpgroup_commit_batch();
        warpgroup_wait<0>();
        warpgroup_fence_operand(dq);
        if (piece == C::pieces - 1) barriers.ds_empty[slots.ds().index()].arrive_warp();
        if (piece == 0) barriers.turn[slots.turn.index()].wait(slots.turn.phase());
        add_dq<T, C>(p, barriers.block.sequence, job, dq, piece, scale);
      }
      barriers.added[slots.turn.index()].arrive_warp();
      slots.advance();
    }
    barriers.kv_empty.arrive_warp();
  });
}

/// Runs the roles of a block's warpgroups, once its barriers are initialized: producer, dQ, and consumers, which run consume(tiles).
template <class T, class C, class Barriers, class Factor, class Consume>
__device__ __forceinline__ void run_warpgroups(const BackwardParams& p, const void* memory, Barriers& barriers, Factor&& factor,
                                               Consume&& consume) {
  __syncthreads();
  const BackwardMemory<C> tiles{swizzle_aligned_address(memory)};
  if (threadIdx.x < warpgroup) {
    warpgroup_reg_dealloc<C::producer_registers>();
    run_producer_warps<C>(p, tiles, barriers);
  } else if (threadIdx.x < 2 * warpgroup) {
    warpgroup_reg_dealloc<C::dq_registers>();
    sum_dq<T, C>(p, tiles, barriers, factor);
  } else {
    consume(tiles);
  }
}

#endif

/// Launches the kernel, whose operands are q, k, v and dy, or their parts, after the one that computes log_sums and delta of its rows.
template <class T, class C>
void launch_backward(void (*kernel)(BackwardParams), Args args, std::span<const View> operands, const AttentionGradCall& call,
                     const Maxima& maxima = {}) {
  const Stream stream = call.q.stream;
  const kernels::AttentionGradients& to = call.gradients;
  const int tiles = ceil_div(args.queries, C::queries), blocks = ceil_div(args.keys, C::keys);
  const std::int64_t longest = std::int64_t(tiles) * args.all_heads(), all_tiles = args.all_tile_places(C::queries),
                     items = std::int64_t(blocks) * args.sequences * args.kv_heads;
  if (items > 0x7fffffff || longest > 0x7fffffff) fail("attention", "expected at most 2^31 - 1 tiles");
  const std::int64_t sum_bytes = std::int64_t(C::pieces) * C::queries * block_columns * 4;
  const Workspace rows(static_cast<std::size_t>(all_tiles * C::row_values * 4), stream);
  const Workspace semaphores(static_cast<std::size_t>(all_tiles * 4), stream);
  const Workspace sums(static_cast<std::size_t>(blocks > 1 ? all_tiles * sum_bytes : 0), stream);
  const int lanes = (args.head_dim <= 64 ? 64 : 128) / vec16_width<T>;
  launch(hopper_attention_rows<T>, blocks_for(longest * C::queries * lanes), block_size, 0, stream, Heads(call.y), Heads(call.g),
         Heads(to.q), call.log_sums.as<const float>(), rows.as<float>(), semaphores.as<int>(), tiles, args.tile_places(C::queries), lanes,
         args);
  args.heads_at_once = args.sequences * args.kv_heads;
  const BackwardParams params{map_of(operands[0], C::queries),
                              map_of(operands[1], C::keys),
                              map_of(operands[2], C::keys),
                              map_of(operands[3], C::queries),
                              args,
                              Heads(to.q),
                              Heads(to.k),
                              Heads(to.v),
                              rows.as<const float>(),
                              sums.as<float4>(),
                              semaphores.as<int>(),
                              WorkQueue{completion_counters(stream, 1), static_cast<int>(items)},
                              args.tile_places(C::queries),
                              blocks,
                              maxima};
  launch(kernel, blocks_of(items, stream), C::threads, C::shared_bytes, stream, params);
}

/// Gradient of hopper_attention in float32.
void hopper_f32_attention_grad(const AttentionGradCall& call);

}  // namespace tern::gpu::hopper
