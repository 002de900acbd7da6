#pragma once
#include "cuda/attention/hopper_f32.cuh"

// Flash attention on Hopper, forward: sizes, the tiles of keys that queries see, and the producer. hopper_forward.cuh has the picture.
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

#endif

}  // namespace tern::gpu::hopper
