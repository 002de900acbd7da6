#pragma once
#include "cuda/attention/hopper_backward_work.cuh"
#include "cuda/device/fragment.cuh"

// Flash attention on Hopper, backward: the consumer warpgroups. hopper_backward.cuh has the picture.
namespace tern::gpu::hopper {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Consumer warpgroup: 64 keys, whose gradients it accumulates in registers.
template <class T, class C, bool general, bool drops>
struct BackwardConsumer {
  using KTile = typename C::KTile;
  using QTile = typename C::QTile;
  static constexpr int steps = C::width / 16;
  using Pipeline = PipelineState<C::stages>;

  const BackwardParams& p;
  BackwardMemory<C> memory;
  BackwardBarriers<C::stages, C::keys>& barriers;
  int group;
  std::uint64_t dropout_position;
  Slots<> slots;  ///< next slot of dS
  Pipeline read;  ///< stage of the tile whose scores are computed

  float s[32], dp[32], dk[C::width / 2], dv[C::width / 2];
  unsigned p_or_ds[4][4], rounded[4][4], kept;  ///< p_or_ds: left operand: rounded P, and after its product rounded dS
  unsigned k_fragments[C::caches_fragments ? steps : 1][4], v_fragments[C::caches_fragments ? steps : 1][4];
  float padding[2];

  __device__ __forceinline__ BackwardConsumer(const BackwardParams& p_, const BackwardMemory<C>& memory_,
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
  /// sums += p_or_ds queries_tile: dV += P dY, dK += dS Q.
  __device__ __forceinline__ void add_product(float (&sums)[C::width / 2], unsigned queries_tile) {
    const std::uint64_t b = wgmma_descriptor(queries_tile, QTile::block_bytes);
    warpgroup_fence_operand(sums);
    warpgroup_fence_operand(p_or_ds);
    warpgroup_arrive();
#pragma unroll
    for (int i = 0; i < 4; ++i) wgmma_k16<T, true>(sums, p_or_ds[i], b + QTile::row_step(i), true);
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
    for (int i = 0; i < 4; ++i) stmatrix(fragment_row(tile, 0, i), p_or_ds[i]);
    fence_proxy_async();
    barriers.ds_full[slots.index()].arrive_warp();
    ++slots.used;
  }
  /// Waits until at most that many committed batches of wgmma are pending; `result`, of an earlier batch, may then be read.
  template <int batches, int size>
  static __device__ __forceinline__ void wait_for(float (&result)[size]) {
    warpgroup_wait<batches>();
    warpgroup_fence_operand(result);
  }
  /// Loop over the tiles of queries: issues S of a tile with dK of the previous one, and computes exponentials meanwhile; then dP with dV,
  /// and computes dS meanwhile. After the last tile, whose dK remains, S is computed once more without use: products after the loop would
  /// make the compiler copy dK and dV, for which there are no registers.
  __device__ __forceinline__ void walk(int count) {
    const auto begin_dp = [&](int stage) {
      issue_dp(stage);
      add_product(dv, memory.dy(stage));
      warpgroup_commit_batch();
      wait_for<1>(dp);
      differentiate(stage);
    };
    barriers.full[read.index].wait(read.phase);
    issue_s(read.index);
    wait_for<0>(s);
    exponentiate(read.index, p.args.scale_log2);
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
      add_product(dk, memory.q(previous));
      warpgroup_commit_batch();
      wait_for<1>(s);
      if (count == 0) break;
      exponentiate(stage, p.args.scale_log2);
      wait_for<0>(dk);
      barriers.empty[previous].arrive_warp();
      round_p();
      begin_dp(stage);
      wait_for<0>(dv);
      round_ds();
    }
    wait_for<0>(dk);
    warpgroup_fence_operand(dv);
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
        for (int r = 0; r < 2; ++r) padding[r] = padding_log2(p.args, block.sequence, block.index, key_of(r));
      }
      walk(count);
      barriers.empty[read.index].arrive_warp();
      read.advance();
      rows_of(p.dk, dk_rows);
      rows_of(p.dv, dv_rows);
      barriers.kv_empty.arrive_warp();
      store_rows<T>(dk, {p.args.scale, p.args.scale}, dk_rows, 0, p.args.head_dim);
      store_rows<T>(dv, {p.args.inverse_keep, p.args.inverse_keep}, dv_rows, 0, p.args.head_dim);
    } else {  // no query sees the keys
      rows_of(p.dk, dk_rows);
      rows_of(p.dv, dv_rows);
      barriers.kv_empty.arrive_warp();
      store_zeros<T>(dk_rows, p.args.head_dim);
      store_zeros<T>(dv_rows, p.args.head_dim);
    }
  }
};

#endif

}  // namespace tern::gpu::hopper
