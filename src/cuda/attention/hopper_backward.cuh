#pragma once
#include "cuda/attention/hopper_backward_consumer.cuh"
#include "cuda/device/semaphore.cuh"

// Flash attention on Hopper, backward. A block has 128 keys of one key head, and loops over the tiles of 64 queries that see them, for each
// query head that shares the key head, from the last tile to the first. With S, P and dP transposed, (keys, queries), and delta = sum(y dy)
// over the columns of a query:
//
//     S = K Q^T,  P = 2^(S - log_sums),  dP = V dY^T,  dS = P (dP - delta)        dV += P dY,  dK += dS Q,  dQ += dS^T K
//
//     producer         32 registers    warp 0, producer   kv_empty -> TMA: K, V -> kv_full; empty[i] -> TMA: Q, dY, rows -> full[i]
//     warpgroup                        warp 1             released[i], semaphore of dQ's tile at this block's turn -> turn[i]
//                                      warp 2             added[i] -> released[i]; passes the semaphore to the next block
//     dQ warpgroup     64 registers    ds_full[i] -> dQ = dS^T K of the whole block, 64 columns at a time -> ds_empty[i];
//                                      turn[i] -> add to dQ's sums in global memory -> added[i]
//     two consumer     208 registers   64 keys each: full[i] -> S, dP; P and dS in registers, and dS to shared memory -> ds_full[i];
//     warpgroups                       dV, dK -> empty[i]
//
//     shared memory   | K, V (128, d) | ring of Q, dY (64, d), log_sums and delta (64) | 2 x dS (128 keys, 64 queries) |
//     d 64                32 KiB         4 x 17 KiB                                        32 KiB                            132 KiB
//     d 128               64 KiB         3 x 33 KiB                                        32 KiB                            195 KiB
//
// Registers of a consumer at d = 128: dK and dV 128, S or dP 32, rounded P or dS 16: 176, plus addresses. Both S and dP at once, or an
// unrounded P, would be 208. At d = 64, K and V are left operands in registers, 32 for their fragments, which halves the shared-memory
// reads of the products S and dP. Up to d = 96 consumers need only 200 registers, which leaves 40 and 72 for the others.
//
// Rounded P and dS are the left operands of dV and dK without any shuffle. While the tensor cores compute one product, a consumer computes
// the exponentials or the differences of another one, also while the other consumer's products run.
//
// Cycles of a tile at d = 128, with 2048 multiplications and 128 bytes of shared memory per cycle: products 2560; shared-memory reads of
// operands 2048, stores of dS 128, TMA 256, additions of dQ 256. So shared memory is as busy as the tensor cores.
//
// Note [dQ semaphore] of mma_backward.cu applies here too: the sums of dQ pass from block to block in the order of the keys, and the last
// block that sees a tile writes the result. Blocks take the keys in this order, so a block waits only for blocks that have started earlier.
namespace tern::gpu::hopper {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

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

template <class T, class C, bool general, bool drops>
__global__ void __launch_bounds__(C::threads, 1) hopper_attention_backward(__grid_constant__ const BackwardParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint4 memory[];
  __shared__ BackwardBarriers<C::stages, C::keys> barriers;  // non-empty only if compiled for wgmma: see runs_wgmma_kernel
  if (threadIdx.x == 0) {
    tma_prefetch_map(p.q);
    tma_prefetch_map(p.k);
    tma_prefetch_map(p.v);
    tma_prefetch_map(p.dy);
    init_barriers<C>(barriers, C::groups * 4);
    fence_barrier_init();
  }
  run_warpgroups<T, C>(
      p, memory, barriers, [&] { return p.args.scale; },
      [&](const BackwardMemory<C>& tiles) {
        warpgroup_reg_alloc<C::consumer_registers>();
        BackwardConsumer<T, C, general, drops> consumer(p, tiles, barriers);
        for_each_item<C>(p, barriers, [&](int) { consumer.attend(); });
      });
#endif
}

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

}  // namespace tern::gpu::hopper
