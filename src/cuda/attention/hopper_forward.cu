#include "cuda/attention/hopper.cuh"
#include "cuda/device/fragment.cuh"
#include "tensor/context.h"

// Flash attention on Hopper, forward: Shah et al., "FlashAttention-3", 2024. A block has a tile of queries of one head, 64 for each of its
// consumer warpgroups, and loops over the tiles of keys that they see, from the last to the first:
//
//     producer            24 or 32 registers     one thread: q_empty -> TMA: Q -> q_full; k.empty[i] -> TMA: K -> k.full[i]; V likewise
//     consumer            240 or 160 registers   k.full[i] -> issue S = Q K^T; v.full[j] -> issue y += P V of the previous tile;
//     warpgroups                                 S complete: -> k.empty[i]; mask, online softmax of S, while the tensor cores compute P V;
//                                                P V complete: -> v.empty[j]; P = S rounded; y rescaled if a maximum has grown
//
//     shared memory   | Q (64 groups, d) | ring of K (keys, d): stages | ring of V (keys, d): stages |
//     (64, 192 x 128)      24 KiB            4 x 16 KiB                   4 x 16 KiB                      152 KiB
//     (128, 128 x 128)     32 KiB            2 x 32 KiB                   2 x 32 KiB                      160 KiB
//     (64, 128 x 128 f32)  32 KiB            2 x 32 KiB                   2 x 32 KiB                      160 KiB
//     (128, 128 x 64 f32)  64 KiB            2 x 32 KiB                   2 x 32 KiB                      192 KiB
//
//     registers       S keys / 2, P keys / 4, y d / 2:  d 64: 64 + 32 + 32 of 160;  d 128: 64 + 32 + 64 of 240
//                     f32: S keys / 2, P keys / 2, y d / 2, P V of a tile d / 2:  192 of 240
//
// Consumers take turns at the tensor cores (ping-pong): one that has issued its products lets the next one issue, and computes its softmax
// meanwhile. Named barrier 1 + g is the turn of warpgroup g. All take the same number of turns for a tile of queries, also for tiles of
// keys that their own queries do not see.
//
// A block is persistent: its producer takes work items from a queue, longest tiles first, and loads the next one while consumers write a
// result. The index of the item is passed together with Q.
//
// The softmax's reference, initially the maximum, follows the maximum only if that has grown by more than `slack` (as in FlashAttention-4):
// sums are rarely rescaled, and exponentials stay below 2^slack. f32 has no slack: its exponentials fill f16's range from 2^15 down.
namespace tern::gpu::hopper {

template <int width_, int groups_, int keys_, int stages_, int slack_ = 8, int parts_ = 1>
struct ForwardConfig {
  static constexpr int width = width_;          ///< size of a head, padded
  static constexpr int groups = groups_;        ///< consumer warpgroups
  static constexpr int keys = keys_;            ///< keys of a tile
  static constexpr int stages = stages_;        ///< pipeline stages of K and V
  static constexpr int slack = slack_;          ///< growth of the maximum, in base 2, up to which the softmax's reference stays
  static constexpr int parts = parts_;          ///< parts of an element
  static constexpr bool promotes = parts == 2;  ///< each P V is added to y by a separate addition: Note [Two parts]
  static constexpr int rows = groups * 64, threads = (groups + 1) * warpgroup;
  using QTile = Tile<width, 64, parts>;
  using KTile = Tile<width, keys, parts>;
  static constexpr int q_bytes = groups * QTile::bytes;
  static constexpr std::size_t shared_bytes = q_bytes + 2 * stages * KTile::bytes + swizzle_span;
  static constexpr int producer_registers = groups == 2 ? 24 : 32, consumer_registers = groups == 2 ? 240 : 160;
};

struct ForwardParams {
  CUtensorMap q, k, v;
  Args args;
  Heads y;
  float* log_sums;
  WorkQueue queue;
  int tiles;      ///< tiles of queries of the longest sequence
  Maxima maxima;  ///< for f32

  /// Causal: the last tiles go first, because they are the longest.
  __device__ WorkItem item(int number) const {
    WorkItem item(number, tiles, args.all_heads(), args.heads_at_once);
    if (args.causal) item.tile = tiles - 1 - item.tile;
    return item;
  }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int stages>
struct ForwardBarriers {
  MBarrier q_full, q_empty;
  Pipeline<stages> k, v;
  int item;
};

/// Tiles of keys that a range of queries sees: `count` tiles, the last one first.
struct KeyTiles {
  int last, count;

  template <int keys>
  static __device__ __forceinline__ KeyTiles of(const Sequence& sequence, int first_query, int rows) {
    const int last_query = min(first_query + rows, sequence.queries) - 1;
    if (last_query < first_query) return {0, 0};
    const int begin = sequence.key_begin(first_query), end = sequence.key_end(last_query);
    if (end <= begin) return {0, 0};
    const int last = (end - 1) / keys;
    return {last, last - begin / keys + 1};
  }
};

/// Producer: one thread.
template <class C>
__device__ __forceinline__ void produce(const ForwardParams& p, unsigned memory, ForwardBarriers<C::stages>& barriers) {
  using QTile = typename C::QTile;
  using KTile = typename C::KTile;
  const unsigned k_ring = memory + C::q_bytes, v_ring = k_ring + C::stages * KTile::bytes;
  PipelineState<C::stages> k_state, v_state;
  unsigned phase = 1;
  for (int number = static_cast<int>(blockIdx.x); number >= 0;) {
    const int next = p.queue.next();
    const WorkItem item = p.item(number);
    const int index = item.head / p.args.heads, head = item.head % p.args.heads, kv_head = head / p.args.group();
    const Sequence sequence(p.args, index);
    const int first_query = item.tile * C::rows;
    if (first_query < sequence.queries) {
      const KeyTiles tiles = KeyTiles::of<C::keys>(sequence, first_query, C::rows);
      barriers.q_empty.wait(phase);
      phase ^= 1;
      barriers.item = number;
      barriers.q_full.arrive_and_expect_tx(C::q_bytes);
#pragma unroll
      for (int g = 0; g < C::groups; ++g)
        QTile::load(memory + g * QTile::bytes, p.q, head, sequence.first_query + first_query + g * 64, sequence.batch, barriers.q_full);
      const auto load = [&](PipelineState<C::stages>& state, Pipeline<C::stages>& pipeline, unsigned ring, const CUtensorMap& map,
                            int tile) {
        MBarrier& full = pipeline.begin_load(state, KTile::bytes);
        KTile::load(ring + state.index * KTile::bytes, map, kv_head, sequence.first_key + tile * C::keys, sequence.batch, full);
        state.advance();
      };
#pragma unroll 1
      for (int i = 0; i <= tiles.count; ++i) {
        if (i < tiles.count) load(k_state, barriers.k, k_ring, p.k, tiles.last - i);
        if (i > 0) load(v_state, barriers.v, v_ring, p.v, tiles.last - i + 1);
      }
    }
    number = next;
  }
  barriers.q_empty.wait(phase);
  barriers.item = -1;
  barriers.q_full.arrive();
}

/// Consumer warpgroup: 64 queries at a time.
template <class T, class C, bool general, bool drops>
struct ForwardConsumer {
  using QTile = typename C::QTile;
  using KTile = typename C::KTile;
  using Element = element_t<T>;
  using Terms = Products<C::parts>;
  static constexpr int keys = C::keys;
  static constexpr bool is_f32 = std::is_same_v<T, float>;
  static constexpr int exponent = is_f32 ? f16_exponent : 0;  ///< P is computed times 2^exponent

  const ForwardParams& p;
  ForwardBarriers<C::stages>& barriers;
  int group;
  std::uint64_t q_descriptor, k_descriptor, v_descriptor;
  std::uint64_t dropout_position;
  PipelineState<C::stages> k_state, v_state;

  // State of a work item. A thread holds two rows of the scores, 8 apart.
  int key_begin[2], key_end[2];  ///< ranges of keys that the thread's queries see
  int whole_begin, whole_end;    ///< range of keys that all queries of the warpgroup see
  float scores[keys / 2], sums[C::width / 2], tile_sums[C::promotes ? C::width / 2 : 1];
  unsigned probabilities[C::parts][keys / 16][4];
  float reference[2], total[2], rescale[2];
  float scale_log2;  ///< scale of the scores as they are computed

  __device__ __forceinline__ ForwardConsumer(const ForwardParams& p_, unsigned memory, ForwardBarriers<C::stages>& barriers_)
      : p(p_), barriers(barriers_), group(static_cast<int>(threadIdx.x) / warpgroup - 1) {
    const unsigned k_ring = memory + C::q_bytes;
    q_descriptor = wgmma_descriptor(memory + group * QTile::bytes, 0);
    k_descriptor = wgmma_descriptor(k_ring, 0);
    v_descriptor = wgmma_descriptor(k_ring + C::stages * KTile::bytes, KTile::block_bytes);
    dropout_position = drops ? p.args.dropout.position() : 0;
    if (group == 0) named_barrier_arrive(1, 2 * warpgroup);  // the first turn
  }

  __device__ __forceinline__ void ping_pong_wait() { named_barrier_sync(1 + group, 2 * warpgroup); }
  __device__ __forceinline__ void ping_pong_pass() { named_barrier_arrive(1 + (group + 1) % C::groups, 2 * warpgroup); }

  /// S = Q K^T.
  __device__ __forceinline__ void issue_scores() {
    const std::uint64_t k = k_descriptor + k_state.index * (KTile::bytes >> 4);
    warpgroup_fence_operand(scores);
    warpgroup_arrive();
#pragma unroll
    for (int n = 0; n < Terms::count; ++n)
#pragma unroll
      for (int i = 0; i < C::width / 16; ++i)
        wgmma_k16<Element, false, false>(scores, q_descriptor + QTile::part_step(Terms::left(n)) + QTile::column_step(i),
                                         k + KTile::part_step(Terms::right(n)) + KTile::column_step(i), n > 0 || i > 0);
    warpgroup_commit_batch();
  }
  /// Accumulators of P V: separate ones for the tile if Note [Two parts] promotes them, else y's.
  __device__ __forceinline__ auto& product_sums() {
    if constexpr (C::promotes) return tile_sums;
    else return sums;
  }
  /// y += P V.
  __device__ __forceinline__ void issue_sums() {
    const std::uint64_t v = v_descriptor + v_state.index * (KTile::bytes >> 4);
    warpgroup_fence_operand(product_sums());
#pragma unroll
    for (int part = 0; part < C::parts; ++part) warpgroup_fence_operand(probabilities[part]);
    warpgroup_arrive();
#pragma unroll
    for (int n = 0; n < Terms::count; ++n)
#pragma unroll
      for (int i = 0; i < keys / 16; ++i)
        wgmma_k16<Element, true>(product_sums(), probabilities[Terms::left(n)][i],
                                 v + KTile::part_step(Terms::right(n)) + KTile::row_step(i), !C::promotes || n > 0 || i > 0);
    warpgroup_commit_batch();
  }
  /// Waits for y += P V, and releases V's stage.
  __device__ __forceinline__ void finish_sums() {
    warpgroup_wait<0>();
    warpgroup_fence_operand(product_sums());
    if constexpr (C::promotes)
#pragma unroll
      for (int i = 0; i < C::width / 2; ++i) sums[i] += tile_sums[i];
    release_v();
  }
  __device__ __forceinline__ void release_k() {
    barriers.k.empty[k_state.index].arrive_warp();
    k_state.advance();
  }
  __device__ __forceinline__ void release_v() {
    barriers.v.empty[v_state.index].arrive_warp();
    v_state.advance();
  }
  /// Skips a tile of keys that the warpgroup's queries do not see: releases its stages unread, and passes on its turn at the tensor cores.
  __device__ __forceinline__ void skip_tile(bool takes_turn) {
    barriers.k.wait_full(k_state);
    release_k();
    barriers.v.wait_full(v_state);
    release_v();
    if (takes_turn) {
      ping_pong_wait();
      ping_pong_pass();
    }
  }
  /// First query of the warp.
  __device__ __forceinline__ int row_of(const WorkItem& item) const {
    return item.tile * C::rows + group * 64 + static_cast<int>(threadIdx.x) / 32 % 4 * 16;
  }

  __device__ __forceinline__ void begin(const WorkItem& item, const Sequence& sequence) {
    const int first = item.tile * C::rows + group * 64, last = min(first + 64, sequence.queries) - 1;
    const int row = row_of(item) + static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      key_begin[r] = sequence.key_begin(row + r * 8);
      key_end[r] = sequence.key_end(row + r * 8);
      reference[r] = -INFINITY;
      total[r] = 0;
    }
    whole_begin = sequence.key_begin(last);
    whole_end = sequence.key_end(first);
    scale_log2 = p.args.scale_log2;
    if constexpr (is_f32) {
      const int kv_head = p.maxima.head(p.args, sequence.batch, item.head % p.args.heads);
      scale_log2 *= power_of_two(-p.maxima.exponent(Maxima::q, kv_head) - p.maxima.exponent(Maxima::k, kv_head));
    }
#pragma unroll
    for (int i = 0; i < C::width / 2; ++i) sums[i] = 0;
  }

  /// Masks the keys, from key0 on, that the thread's queries do not see.
  __device__ __forceinline__ void mask(int key0) {
    const int first = key0 + threadIdx.x % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int begin = key_begin[r] - first, end = key_end[r] - first;
#pragma unroll
      for (int n = 0; n < keys / 8; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (n * 8 + e < begin || n * 8 + e >= end) scores[n * 4 + r * 2 + e] = -INFINITY;
    }
  }
  /// Scales the scores and adds the padding.
  __device__ __forceinline__ void add_padding(const WorkItem& item, const Sequence& sequence, int key0) {
    const int first = key0 + threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < keys / 8; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float padding = padding_log2(p.args, sequence, item.head / p.args.heads, first + n * 8 + e);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float& score = scores[n * 4 + r * 2 + e];
          score = padding == -INFINITY ? -INFINITY : score * (is_f32 ? scale_log2 : p.args.scale_log2) + padding;
        }
      }
  }
  /// Online softmax: exponentials of S, their sums, and the factor by which the sums of y are to be rescaled.
  __device__ __forceinline__ void exponentiate(float factor) {
    float most[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float even = -INFINITY, odd = -INFINITY;  // two dependency chains of half the length
#pragma unroll
      for (int n = 0; n < keys / 8; ++n) {
        even = fmaxf(even, scores[n * 4 + r * 2]);
        odd = fmaxf(odd, scores[n * 4 + r * 2 + 1]);
      }
      most[r] = fmaxf(even, odd);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) most[r] = fmaxf(most[r], shuffle_xor(most[r], 1));
#pragma unroll
    for (int r = 0; r < 2; ++r) most[r] = fmaxf(most[r], shuffle_xor(most[r], 2)) * factor;
    float zero[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float before = reference[r];
      if (most[r] > before + C::slack) reference[r] = most[r];
      zero[r] = reference[r] == -INFINITY ? 0 : reference[r];
      rescale[r] = exp2_approx(before - zero[r]);
    }
    if (__any_sync(whole_warp, fmaxf(fabsf(zero[0]), fabsf(zero[1])) >= large_score)) {
#pragma unroll
      for (int i = 0; i < keys / 2; ++i) scores[i] *= factor;
      factor = 1;
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float shift = zero[r] - exponent;
      float partial[2] = {};
#pragma unroll
      for (int n = 0; n < keys / 8; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& score = scores[n * 4 + r * 2 + e];
          score = exp2_approx(score * factor - shift);
          partial[e] += score;
        }
      total[r] = total[r] * rescale[r] + (partial[0] + partial[1]);
    }
  }
  /// Applies dropout to the probabilities.
  __device__ __forceinline__ void drop(const WorkItem& item, int key0) {
    const Args& args = p.args;
    const std::int64_t first = (std::int64_t(item.head) * args.queries + row_of(item)) * args.keys + key0;
#pragma unroll
    for (int n = 0; n < keys / 16; ++n) {
      const unsigned kept = args.dropout.kept_16x16<MmaLanes>(args.keys, dropout_position, first + n * 16) >> 2 * (threadIdx.x % 4);
#pragma unroll
      for (int k = 0; k < 8; ++k)
        if (!(kept >> (k % 2 + k / 4 * 8 + k / 2 % 2 * 16) & 1)) scores[n * 8 + k] = 0;
    }
  }
  __device__ __forceinline__ void softmax(const WorkItem& item, const Sequence& sequence, int tile) {
    const int key0 = tile * keys;
    if constexpr (general) {
      if (p.args.padding) add_padding(item, sequence, key0);
    }
    if (key0 < whole_begin || key0 + keys > whole_end) mask(key0);
    exponentiate(general && p.args.padding ? 1 : is_f32 ? scale_log2 : p.args.scale_log2);
    if constexpr (drops) drop(item, key0);
  }
  /// Rounds S to P, the next left operand, and rescales y if a maximum has grown.
  __device__ __forceinline__ void update() {
    warpgroup_fence_operand(scores);
#pragma unroll
    for (int i = 0; i < keys / 16; ++i)
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float x = scores[i * 8 + k * 2], y = scores[i * 8 + k * 2 + 1];
        if constexpr (C::parts == 2) split_pair(x, y, probabilities[0][i][k], probabilities[1][i][k]);
        else probabilities[0][i][k] = pack_pair<Element>(x, y);
      }
    if (__any_sync(whole_warp, rescale[0] != 1 || rescale[1] != 1)) {
#pragma unroll
      for (int i = 0; i < C::width / 2; ++i) sums[i] *= rescale[i / 2 % 2];
    }
  }

  __device__ __forceinline__ void write(int number) {
    const WorkItem item = p.item(number);
    const int index = item.head / p.args.heads;
    const Sequence sequence(p.args, index);
    const int lane = threadIdx.x % 32, row0 = row_of(item);
    float* const log_sums = p.log_sums + first_row(p.args, sequence, index, item.head);
    float factor = p.args.inverse_keep;
    if constexpr (is_f32)
      factor *= power_of_two(-p.maxima.exponent(Maxima::v, p.maxima.head(p.args, sequence.batch, item.head % p.args.heads)));
    float factors[2];
    T* rows[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = total[r] + shuffle_xor(total[r], 1);
      sum += shuffle_xor(sum, 2);
      const int row = row0 + lane / 4 + r * 8;
      const bool is_there = row < sequence.queries;
      factors[r] = sum > 0 ? factor / sum : 0;
      rows[r] = is_there ? p.y.template at<T>(sequence.batch, sequence.first_query + row, item.head % p.args.heads) : nullptr;
      if (is_there && lane % 4 == 0) log_sums[row] = sum > 0 ? kept_log_sum(reference[r] + (log2f(sum) - exponent)) : INFINITY;
    }
    store_rows<T>(sums, factors, rows, 0, p.args.head_dim);
  }

  __device__ __forceinline__ void attend(int number) {
    const WorkItem item = p.item(number);
    const Sequence sequence(p.args, item.head / p.args.heads);
    begin(item, sequence);
    const KeyTiles all = KeyTiles::of<keys>(sequence, item.tile * C::rows, C::rows),
                   own = KeyTiles::of<keys>(sequence, item.tile * C::rows + group * 64, 64);
    int tile = all.last;
    const int none = all.last - all.count;  // after the first tile
    const int own_last = own.count > 0 ? own.last : none, own_first = own.last - own.count + 1;
#pragma unroll 1
    for (; tile > own_last; --tile) skip_tile(own.count > 0 || tile - 1 > none);  // the last of its own tiles takes no turn
    if (own.count > 0) {
      barriers.k.wait_full(k_state);
      issue_scores();
      warpgroup_wait<0>();
      warpgroup_fence_operand(scores);
      release_k();
      softmax(item, sequence, tile);
      update();
#pragma unroll 1
      for (--tile; tile >= own_first; --tile) {
        barriers.k.wait_full(k_state);
        ping_pong_wait();
        issue_scores();
        barriers.v.wait_full(v_state);
        issue_sums();
        ping_pong_pass();
        warpgroup_wait<1>();
        warpgroup_fence_operand(scores);
        release_k();
        softmax(item, sequence, tile);
        finish_sums();
        update();
      }
    }
    barriers.q_empty.arrive_warp();
    if (own.count > 0) {
      barriers.v.wait_full(v_state);
      issue_sums();
      finish_sums();
    }
#pragma unroll 1
    for (; tile > none; --tile) skip_tile(true);
    write(number);
  }

  __device__ __forceinline__ void run() {
    for (unsigned phase = 0;; phase ^= 1) {
      barriers.q_full.wait(phase);
      const int number = barriers.item;
      if (number < 0) break;
      attend(number);
    }
  }
};

#endif

template <class T, class C, bool general, bool drops>
__global__ void __launch_bounds__(C::threads, 1) hopper_attention_forward(__grid_constant__ const ForwardParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint4 memory[];
  __shared__ ForwardBarriers<C::stages> barriers;  // non-empty only if compiled for wgmma: see runs_wgmma_kernel
  if (threadIdx.x == 0) {
    tma_prefetch_map(p.q);
    tma_prefetch_map(p.k);
    tma_prefetch_map(p.v);
    constexpr unsigned consumers = C::groups * 4 * warp_arrivals;
    barriers.q_full.init(1);
    barriers.q_empty.init(consumers);
    barriers.k.init(consumers);
    barriers.v.init(consumers);
    fence_barrier_init();
  }
  __syncthreads();
  const unsigned tiles = swizzle_aligned_address(memory);
  if (threadIdx.x < warpgroup) {
    warpgroup_reg_dealloc<C::producer_registers>();
    if (threadIdx.x == 0) produce<C>(p, tiles, barriers);
  } else {
    warpgroup_reg_alloc<C::consumer_registers>();
    ForwardConsumer<T, C, general, drops>(p, tiles, barriers).run();
  }
#endif
}

/// Launches the kernel; the operands are q, k and v, or their parts.
template <class T, class C, bool general, bool drops>
void launch_forward(Args args, std::span<const View> operands, const AttentionCall& call, const Maxima& maxima = {}) {
  const Stream stream = call.q.stream;
  const int tiles = ceil_div(args.queries, C::rows);
  const std::int64_t items = std::int64_t(tiles) * args.all_heads();
  if (items > 0x7fffffff) fail("attention", "expected at most 2^31 - 1 tiles of queries");
  args.heads_at_once = heads_in_l2(std::int64_t(args.keys) * args.head_dim * 4 * C::parts / args.group(), args, stream);
  const ForwardParams params{map_of(operands[0], 64),
                             map_of(operands[1], C::keys),
                             map_of(operands[2], C::keys),
                             args,
                             Heads(call.y),
                             call.log_sums.as<float>(),
                             WorkQueue{completion_counters(stream, 1), static_cast<int>(items)},
                             tiles,
                             maxima};
  launch(hopper_attention_forward<T, C, general, drops>, blocks_of(items, stream), C::threads, C::shared_bytes, stream, params);
}

}  // namespace tern::gpu::hopper

namespace tern::gpu {

using namespace hopper;

bool has_hopper_attention(const View& q, const View& k, const View& v, const View& y, const kernels::Attention& attention) {
  const std::int64_t head_dim = q.shape[3];
  const bool has_dtype =
      q.dtype == DType::f32 ? context().kernels.matmul_precision != MatmulPrecision::fp32 : q.dtype == DType::bf16 || q.dtype == DType::f16;
  // With dropout, short heads are bound by random numbers, whose latency the many warps of the mma.sync kernel hide better.
  const std::int64_t queries = attention.query_starts.data ? attention.max_queries : q.shape[1];
  if (attention.dropout > 0 && q.dtype != DType::f32 && queries <= 512) return false;
  return has_dtype && head_dim > 32 && head_dim <= max_width && attention.scale > 0 && !attention.bias.data && has_tensor_map(q) &&
         has_tensor_map(k) && has_tensor_map(v) && has_tensor_map(y) &&
         runs_wgmma_kernel(hopper_attention_forward<bf16, ForwardConfig<64, 3, 128, 4>, false, false>, q.stream.device);
}

static void hopper_f32_attention(const AttentionCall& call) {
  const Args args(call.q, call.k, call.attention);
  const auto with = [&]<int parts>() {
    const View heads[] = {call.q, call.k, call.v};
    const SplitHeads split(heads, parts);
    dispatch(args, [&]<bool general, bool drops>() {
      const auto run = [&]<class C, bool is_general>() {
        launch_forward<float, C, is_general, drops>(args, split.views(), call, split.maxima());
      };
      if (args.head_dim <= 64)
        run.template operator()<ForwardConfig<64, 2, drops ? 64 : 128, 2, 0, parts>, general>();             // a draw takes registers
      else if (args.head_dim <= 96) run.template operator()<ForwardConfig<96, 2, 64, 2, 0, parts>, true>();  // rare: fewer kernels
      else run.template operator()<ForwardConfig<128, 2, 64, 2, 0, parts>, general>();
    });
  };
  if (context().kernels.matmul_precision == MatmulPrecision::tf32) with.template operator()<1>();
  else with.template operator()<2>();
}

void hopper_attention(const AttentionCall& call) {
  if (call.q.dtype == DType::f32) return hopper_f32_attention(call);
  const Args args(call.q, call.k, call.attention);
  const View operands[] = {call.q, call.k, call.v};
  dispatch(call.q.dtype, args, [&]<class T, bool general, bool drops>() {
    const auto with = [&]<class C, bool is_general>() { launch_forward<T, C, is_general, drops>(args, operands, call); };
    // With dropout, three consumer warpgroups would not have enough registers.
    if (args.head_dim <= 64) with.template operator()<ForwardConfig<64, drops ? 2 : 3, 128, 4>, general>();
    else if (args.head_dim <= 96) with.template operator()<ForwardConfig<96, 2, 128, 2>, true>();  // rare: fewer kernels
    else with.template operator()<ForwardConfig<128, 2, 128, 2>, general>();
  });
}

}  // namespace tern::gpu
