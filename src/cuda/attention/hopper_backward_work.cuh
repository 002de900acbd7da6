#pragma once
#include "cuda/attention/hopper_f32.cuh"
#include "cuda/device/vec16.cuh"

// Flash attention on Hopper, backward: shared definitions. Sizes, the tiles that see each other, shared memory and its barriers; and the
// kernel that runs before. hopper_backward.cuh has the picture.
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

#endif

}  // namespace tern::gpu::hopper
