#include "cuda/attention/mma_backward_consumer.cuh"
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

void mma_attention_grad(const View& q, const View& k, const View& v, const View& y, const View& log_sums, const View& g,
                        const kernels::Attention& attention, const kernels::AttentionGradients& gradients) {
  if (q.shape[0] == 0 || q.shape[2] == 0) return;
  const Args args(q, k, attention);
  if (args.sequences == 0) return;
  const AttentionGradCall call{{q, k, v, attention, y, log_sums}, g, gradients};
  const auto with = [&]<class C, bool is_rare>() {
    dispatch<is_rare>(q.dtype, args, attention, [&]<class T, Flavour flavour>() { launch_backward<T, C, flavour>(call, args); });
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
