#include "cuda/attention/hopper_backward.cuh"

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
namespace tern::gpu::hopper {

template <int width_, int stages_, bool caches_fragments_, int consumer_registers_, int producer_registers_>
struct BackwardConfig {
  static constexpr int width = width_;                         ///< size of a head, padded
  static constexpr int stages = stages_;                       ///< pipeline stages of queries
  static constexpr bool caches_fragments = caches_fragments_;  ///< K and V are fragments in registers
  static constexpr bool packs_p = width > 96;                  ///< dS is computed from the rounded P, to save registers for dK and dV
  static constexpr int keys = 128, queries = 64;               ///< sizes of tiles
  static constexpr int parts = 1, ds_slots = 2;                ///< parts of an element, slots of dS
  static constexpr int groups = 2, threads = (2 + groups) * warpgroup;
  using KTile = Tile<width, keys>;
  using QTile = Tile<width, queries>;
  using DsTile = Tile<queries, keys>;
  static constexpr int row_values = 2 * queries;  ///< log_sums and delta of a tile
  static constexpr int stage_bytes = 2 * QTile::bytes + swizzle_span, loaded_bytes = 2 * QTile::bytes + row_values * 4;
  static constexpr int rows_begin = 2 * KTile::bytes + 2 * QTile::bytes, rows_pitch = stage_bytes;
  static constexpr std::size_t shared_bytes = 2 * KTile::bytes + stages * stage_bytes + 2 * DsTile::bytes + swizzle_span;
  static constexpr int pieces = QTile::blocks;  ///< pieces of dQ, 64 columns each
  static constexpr int consumer_registers = consumer_registers_, producer_registers = producer_registers_,
                       dq_registers = 512 - 2 * consumer_registers - producer_registers;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Consumer warpgroup: 64 keys, whose gradients it accumulates in registers.
template <class T, class C, bool general, bool drops>
struct BackwardConsumer : BackwardScores<C, general, drops> {
  using Base = BackwardScores<C, general, drops>;
  using KTile = typename C::KTile;
  using QTile = typename C::QTile;
  using Base::p, Base::memory, Base::barriers, Base::group, Base::slots, Base::read, Base::s, Base::padding, Base::is_kept;
  static constexpr int steps = C::width / 16;

  float dp[32], dk[C::width / 2], dv[C::width / 2];
  unsigned p_or_ds[4][4], rounded[4][4];  ///< p_or_ds: left operand: rounded P, and after its product rounded dS
  unsigned k_fragments[C::caches_fragments ? steps : 1][4], v_fragments[C::caches_fragments ? steps : 1][4];

  using Base::Base;

  __device__ __forceinline__ void load_fragments() {
    if constexpr (C::caches_fragments) {
#pragma unroll
      for (int i = 0; i < steps; ++i) {
        ldmatrix(k_fragments[i], Base::fragment_row(memory.k(), KTile::block_bytes, i));
        ldmatrix(v_fragments[i], Base::fragment_row(memory.v(), KTile::block_bytes, i));
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
  /// sums += p_or_ds queries_tile: dV += P dY, dK += dS Q.
  __device__ __forceinline__ void add_product(float (&sums)[C::width / 2], unsigned queries_tile) {
    const std::uint64_t b = wgmma_descriptor(queries_tile, QTile::block_bytes);
    warpgroup_fence_operand(sums);
    warpgroup_fence_operand(p_or_ds);
    warpgroup_arrive();
#pragma unroll
    for (int i = 0; i < 4; ++i) wgmma_k16<T, true>(sums, p_or_ds[i], b + QTile::row_step(i), true);
  }

  /// Rounds P, with dropped elements set to 0.
  __device__ __forceinline__ void round_p() {
    warpgroup_fence_operand(s);
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int at = i * 8 + k * 2;
        if constexpr (C::packs_p && drops) rounded[i][k] = pack_pair<T>(s[at], s[at + 1]);
        p_or_ds[i][k] = pack_pair<T>(is_kept(at) ? s[at] : 0, is_kept(at + 1) ? s[at + 1] : 0);
      }
  }
  /// Computes dS from P and dP.
  __device__ __forceinline__ void differentiate(int stage) {
    const unsigned deltas = memory.rows(stage) + C::queries * 4 + threadIdx.x % 4 * 8;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 delta = load_shared<float2>(deltas + n * 32);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int at = n * 4 + r * 2;
        float first = s[at], second = s[at + 1];
        if constexpr (C::packs_p) unpack_pair<T>(drops ? rounded[n / 2][n % 2 * 2 + r] : p_or_ds[n / 2][n % 2 * 2 + r], first, second);
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
  /// Rounds dS, and writes it to shared memory for the dQ warpgroup.
  __device__ __forceinline__ void round_ds() {
    warpgroup_fence_operand(dp);
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int k = 0; k < 4; ++k) p_or_ds[i][k] = pack_pair<T>(dp[i * 8 + k * 2], dp[i * 8 + k * 2 + 1]);
    barriers.ds_empty[slots.index()].wait(slots.phase() ^ 1);
    const unsigned tile = memory.ds(slots.index());
#pragma unroll
    for (int i = 0; i < 4; ++i) stmatrix(Base::fragment_row(tile, 0, i), p_or_ds[i]);
    fence_proxy_async();
    barriers.ds_full[slots.index()].arrive_warp();
    ++slots.used;
  }
  /// Loop over the tiles of queries: issues S of a tile with dK of the previous one, and computes exponentials meanwhile; then dP with dV,
  /// and computes dS meanwhile. After the last tile, whose dK remains, S is computed once more without use: products after the loop would
  /// make the compiler copy dK and dV, for which there are no registers.
  __device__ __forceinline__ void walk(int count) {
    const auto begin_dp = [&](int stage) {
      issue_dp(stage);
      add_product(dv, memory.dy(stage));
      warpgroup_commit_batch();
      Base::template wait_for<1>(dp);
      differentiate(stage);
    };
    barriers.full[read.index].wait(read.phase);
    issue_s(read.index);
    Base::template wait_for<0>(s);
    this->exponentiate(read.index, p.args.scale_log2);
    round_p();
    begin_dp(read.index);
    Base::template wait_for<0>(dv);
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
      add_product(dk, memory.q(previous));
      warpgroup_commit_batch();
      Base::template wait_for<1>(s);
      if (count == 0) break;
      this->exponentiate(stage, p.args.scale_log2);
      Base::template wait_for<0>(dk);
      barriers.empty[previous].arrive_warp();
      round_p();
      begin_dp(stage);
      Base::template wait_for<0>(dv);
      round_ds();
    }
    Base::template wait_for<0>(dk);
    warpgroup_fence_operand(dv);
  }

  __device__ __forceinline__ void attend() {
    const KeyBlock<C::keys>& block = barriers.block;
    const int count = block.tiles.count * p.args.group();
    T *dk_rows[2], *dv_rows[2];
    if (count > 0) {
      load_fragments();
#pragma unroll
      for (int i = 0; i < C::width / 2; ++i) dk[i] = dv[i] = 0;
      if constexpr (general) {
#pragma unroll
        for (int r = 0; r < 2; ++r) padding[r] = padding_log2(p.args, block.sequence, block.index, this->key_of(r));
      }
      walk(count);
      barriers.empty[read.index].arrive_warp();
      read.advance();
      this->rows_of(p.dk, dk_rows);
      this->rows_of(p.dv, dv_rows);
      barriers.kv_empty.arrive_warp();
      store_rows<T>(dk, {p.args.scale, p.args.scale}, dk_rows, 0, p.args.head_dim);
      store_rows<T>(dv, {p.args.inverse_keep, p.args.inverse_keep}, dv_rows, 0, p.args.head_dim);
    } else {  // no query sees the keys
      this->rows_of(p.dk, dk_rows);
      this->rows_of(p.dv, dv_rows);
      barriers.kv_empty.arrive_warp();
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

}  // namespace tern::gpu::hopper

namespace tern::gpu {

using namespace hopper;

bool has_hopper_attention_grad(const View& g, const kernels::AttentionGradients& gradients) {
  return has_tensor_map(g) && has_tensor_map(gradients.q) && has_tensor_map(gradients.k) && has_tensor_map(gradients.v) &&
         !gradients.bias.data;
}

void hopper_attention_grad(const AttentionGradCall& call) {
  if (call.q.dtype == DType::f32) return hopper_f32_attention_grad(call);
  const Args args(call.q, call.k, call.attention);
  const View operands[] = {call.q, call.k, call.v, call.g};
  dispatch(call.q.dtype, args, [&]<class T, bool general, bool drops>() {
    const auto with = [&]<class C, bool is_general>() {
      launch_backward<T, C>(hopper_attention_backward<T, C, is_general, drops>, args, operands, call);
    };
    if (args.head_dim <= 64) with.template operator()<BackwardConfig<64, 4, true, 200, 40>, general>();
    else if (args.head_dim <= 96) with.template operator()<BackwardConfig<96, 3, false, 200, 40>, true>();  // rare: fewer kernels
    else with.template operator()<BackwardConfig<128, 3, false, 208, 32>, general>();
  });
}

}  // namespace tern::gpu
