#pragma once
#include "cuda/attention/mma_backward_consumer.cuh"

// Flash attention by mma.sync, backward. A block has some keys of one head of keys and walks over the queries that see them in tiles, from
// the last to the first, of each head of queries that shares them. With S, P and dP transposed, (keys, queries), and delta = the sum of
// y dy over a query's head:
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
//     arrive stage_empty                                             wait stage_empty; give the semaphore to the next block
//
//     shared memory    K, V (keys, d)  |  stage 0: Q, dY (queries, d), log_sums, delta, dS (keys, queries)  |  stage 1: the same
//
// The fragments of P and dS are those of left operands of the products that sum up dV and dK, in registers, over all queries. At d = 256
// those sums are too many for a warp: two have the same keys then, both compute S and dP, and each has half of the columns of dV and dK.
// dQ needs dS from all warps, through shared memory, and sums from all blocks of the head:
//
// Note [dQ semaphore]
// The sums of dQ pass from block to block, in global memory and in the order of the keys, so that they are the same in every run (see Note
// [Ordered sums]): a block adds to a tile of queries when those before it have, and the last one that sees the tile writes the result.
// Blocks of a head go over the queries from the last to the first, so that each follows the one before it; they do not wait for one another
// but for the moment in which they start together.
//
// Note [Producer warpgroup]
// Four more warps bring the next tile of queries, wait for the semaphore and pass it on, so that the others wait for neither. They meet at
// named barriers, which alternate from tile to tile where one side could be there twice before the other. On Hopper the producers give most
// of their registers to the consumers. A block that has all keys and queries of its head needs none, and computes delta itself.
namespace tern::gpu::ampere {

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
    // The next sub-tile's scores are begun before the sums of dK and dV, which need not wait for them.
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

/// delta (B, H, T) = the sum of y dy over each head, by `lanes` lanes a query; semaphores are set to zero, and so is dQ of queries that see
/// no key.
template <class T>
__global__ void __launch_bounds__(256) mma_attention_delta(Heads y, Heads dy, Heads dq, float* delta, int* semaphores, std::int64_t tiles,
                                                           int lanes, bool is_aligned, __grid_constant__ const Args args) {
  const std::int64_t thread = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x, row = thread / lanes;
  if (thread < tiles) semaphores[thread] = 0;
  const std::int64_t token = row / args.heads;  // rows in the order of memory
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

}  // namespace tern::gpu::ampere
