#pragma once
#include <cuda.h>

#include "cuda/device/semaphore.cuh"
#include "cuda/runtime/old_names.cuh"

// Float32 products on Hopper's tensor cores: one of operands rounded to TF32, or Note [Three TF32 products]. Tiles of 128 x `width`
// elements of c are summed in steps of 32 along the depth. Of a block's four groups of four warps, one thread of the last has the copy
// engine bring the operands' tiles to shared memory, as many steps ahead as there is room. The third group rounds or splits the right
// one's, which wgmma takes from there, with the depth innermost. The first two have 64 rows each: they take the left operand to registers,
// round or split it there and multiply. A block stays for several tiles, and loads the next while it writes one.
//
// Shared memory has little to spare: of the 1536 cycles in which tensor cores do three products of a step of width 128, their own reads
// take 768, the copies 256 and the splits 384; of one product's 512 they take 256, 256 and 256, and the left operand 128 more. With
// cp.async instead of the copy engine the products of a training step took 2.15 ms, and so 1.76. Two groups that take turns with the tensor
// cores are no faster than two that do not.
namespace tern::gpu::tf32 {

inline constexpr int tile_rows = 128, tile_depth = 32;
inline constexpr int multipliers = 256, preparers = 128, loaders = 128, threads = multipliers + preparers + loaders;

/// One side of the product: (size, depth), with one stride of 1.
struct Side {
  const float* data;
  std::int64_t size, leading;
};

/// c (left, right) = left right^T.
struct Problem {
  CUtensorMap left_map, right_map;
  Side left, right;
  std::int64_t depth;
  const float* before;  ///< what is added, as c, or null
  float* c;
  std::int64_t c_leading;
  bool turned;        ///< c is stored (right, left)
  const float* bias;  ///< along c's contiguous side, or null
  float alpha;
  int row_tiles, column_tiles;
  int cluster, groups;  ///< Tf32Cut's
  float4* partial;      ///< (row_tiles column_tiles, groups, width / 8, multipliers): sums of the groups, if there are several
  unsigned* arrived;    ///< (row_tiles column_tiles, cluster): Note [Last block]

  /// Of work for a cluster.
  __host__ __device__ int units() const { return row_tiles * column_tiles * groups; }
};

template <int products, int width>
struct Stage {
  float left[tile_rows * tile_depth];
  float right[width * tile_depth];  ///< wgmma cuts off what TF32 has no room for: of three, this is the large part as it is
  float rest[products == 3 ? width * tile_depth : 1];
};
template <int width>
struct Stage<1, width> {
  float left[tile_rows * tile_depth];
  float right[width * tile_depth];
};

template <int products>
inline constexpr int stages = products == 3 ? 4 : 6;

/// With room to begin at a multiple of the swizzle's span.
template <int products, int width>
inline constexpr std::size_t shared_bytes = stages<products> * sizeof(Stage<products, width>) + swizzle_span;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// What a block does, one tile after the other, in the same order for those who load and those who multiply.
struct Cursor {
  int row_tile, column_tile, group, first_step, steps;

  /// False where nothing is left.
  __device__ bool find(const Problem& p, int unit) {
    constexpr int panel = 16;  // tiles that run at the same time share rows and columns
    const int tiles = p.row_tiles * p.column_tiles;
    if (unit >= p.units()) return false;
    group = unit / tiles;
    const int tile = unit % tiles, above = tile / (panel * p.column_tiles) * panel, rows = min(panel, p.row_tiles - above);
    const int within = tile - above * p.column_tiles;
    row_tile = above + within % rows;
    column_tile = within / rows;
    const int all = static_cast<int>((p.depth + tile_depth - 1) / tile_depth), splits = p.cluster * p.groups;
    const int split = group * p.cluster + static_cast<int>(blockIdx.x) % p.cluster, longer = all % splits;
    first_step = split * (all / splits) + min(split, longer);
    steps = all / splits + (split < longer ? 1 : 0);
    return true;
  }
  static __device__ int first(const Problem& p) { return static_cast<int>(blockIdx.x) / p.cluster; }
  static __device__ int stride(const Problem& p) { return static_cast<int>(gridDim.x) / p.cluster; }
};

/// Where element (row, k) lies in a tile whose rows have the depth innermost: the copy engine's and wgmma's swizzle of 128 bytes.
__device__ __forceinline__ int place_in_rows(int row, int k) { return row * tile_depth + ((k / 4 ^ row % 8) * 4 + k % 4); }
/// And in one whose columns do: boxes of 32 rows, each swizzled.
__device__ __forceinline__ int place_in_columns(int row, int k) {
  return row / 32 * (32 * tile_depth) + k * 32 + ((row % 32 / 4 ^ k % 8) * 4 + row % 4);
}

/// Begins to bring a tile.
template <bool along_depth, int rows>
__device__ __forceinline__ void load_tile(const CUtensorMap& map, int row0, int k0, float* to, SharedBarrier& barrier) {
  if constexpr (along_depth) {
    copy_box_async(to, map, k0, row0, barrier);
  } else {
#pragma unroll
    for (int i = 0; i < rows / 32; ++i) copy_box_async(to + i * 32 * tile_depth, map, row0 + i * 32, k0, barrier);
  }
}

__device__ __forceinline__ float to_tf32(float x) {
  std::uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return __uint_as_float(bits);
}
__device__ __forceinline__ float4 to_tf32(float4 x) { return {to_tf32(x.x), to_tf32(x.y), to_tf32(x.z), to_tf32(x.w)}; }
/// What is left of x where wgmma has cut it off.
__device__ __forceinline__ float rest_of(float x) { return to_tf32(x - __uint_as_float(__float_as_uint(x) & 0xffffe000u)); }
__device__ __forceinline__ float4 rest_of(float4 x) { return {rest_of(x.x), rest_of(x.y), rest_of(x.z), rest_of(x.w)}; }

__device__ __forceinline__ float4 vector_at(const float* tile, int place) { return *reinterpret_cast<const float4*>(tile + place); }

/// Rounds a right tile, or writes its rest; each of four warps has its quarter.
template <int products, int width>
__device__ __forceinline__ void prepare_rows(int warp, int lane, Stage<products, width>& stage) {
#pragma unroll
  for (int i = 0; i < width / 16; ++i) {
    const int place = (warp * 32 + lane + i * 128) * 4;
    const float4 x = vector_at(stage.right, place);
    if constexpr (products == 3) write_shared(stage.rest + place, rest_of(x));
    else write_shared(stage.right + place, to_tf32(x));
  }
}
/// Likewise of one of width 128 whose columns have the rows innermost; turns it in its place.
template <int products>
__device__ __forceinline__ void prepare_columns(int warp, int lane, Stage<products, 128>& stage) {
  // A warp has a box of 32 rows: squares of 4 x 4 elements, of which those of eight lanes lie on a diagonal, so that lines are read and
  // rows written in different banks.
  float4 lines[2][4];
  const int row = warp * 32 + lane % 8 * 4;
  int ks[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    ks[i] = (lane % 8 ^ (lane / 8 + i * 4)) * 4;
#pragma unroll
    for (int j = 0; j < 4; ++j) lines[i][j] = vector_at(stage.right, place_in_columns(row, ks[i] + j));
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const auto& [a, b, c, d] = lines[i];
    const float4 turned[4] = {{a.x, b.x, c.x, d.x}, {a.y, b.y, c.y, d.y}, {a.z, b.z, c.z, d.z}, {a.w, b.w, c.w, d.w}};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int place = place_in_rows(row + j, ks[i]);
      write_shared(stage.right + place, products == 3 ? turned[j] : to_tf32(turned[j]));
      if constexpr (products == 3) write_shared(stage.rest + place, rest_of(turned[j]));
    }
  }
}

/// Barriers of the stages and of what the blocks of a cluster send each other, and a word for the multipliers.
template <int stages>
struct Shared {
  SharedBarrier loaded[stages], prepared[stages], used[stages], received;
  bool is_last;
};

/// One thread's part.
template <int products, bool left_along, bool right_along, int width>
__device__ __forceinline__ void load_tiles(const Problem& p, Stage<products, width>* memory, Shared<stages<products>>& shared) {
  constexpr int depth = stages<products>;
  Cursor at;
  int loaded = 0;
  for (int unit = Cursor::first(p); at.find(p, unit); unit += Cursor::stride(p))
    for (int step = 0; step < at.steps; ++step, ++loaded) {
      const int i = loaded % depth, k0 = (at.first_step + step) * tile_depth;
      Stage<products, width>& stage = memory[i];
      shared.used[i].wait(loaded / depth % 2 ^ 1);
      shared.loaded[i].expect(sizeof(stage.left) + sizeof(stage.right));
      load_tile<left_along, tile_rows>(p.left_map, at.row_tile * tile_rows, k0, stage.left, shared.loaded[i]);
      load_tile<right_along, width>(p.right_map, at.column_tile * width, k0, stage.right, shared.loaded[i]);
    }
}

template <int products, bool right_along, int width>
__device__ __forceinline__ void prepare_tiles(const Problem& p, Stage<products, width>* memory, Shared<stages<products>>& shared) {
  constexpr int depth = stages<products>;
  const int lane = threadIdx.x % 32, warp = (static_cast<int>(threadIdx.x) - multipliers) / 32;
  Cursor at;
  int prepared = 0;
  for (int unit = Cursor::first(p); at.find(p, unit); unit += Cursor::stride(p))
    for (int step = 0; step < at.steps; ++step, ++prepared) {
      const int i = prepared % depth;
      shared.loaded[i].wait(prepared / depth % 2);
      if constexpr (right_along) prepare_rows(warp, lane, memory[i]);
      else prepare_columns(warp, lane, memory[i]);
      show_to_matrix_units();
      __syncwarp();
      if (lane == 0) shared.prepared[i].arrive();
    }
}

/// Where a thread's elements of a tile lie: in two rows and, of every 8 columns, two neighbours.
struct Places {
  int row, other_row, column;
};

/// Writes to c what a thread has of some eights of columns, the j-th, the (j + stride)-th and so on: two elements of its row, two of its
/// other one. All that is read is read before the first is written. is_whole: the tile lies within c.
template <bool turned, bool is_whole, int width, int count>
__device__ __forceinline__ void write_eights(const Problem& p, const Cursor& at, const Places& places, int j, int stride,
                                             float4 (&values)[count]) {
  const std::int64_t row = std::int64_t(at.row_tile) * tile_rows + places.row,
                     column = std::int64_t(at.column_tile) * width + j * 8 + places.column;
  const int between_rows = places.other_row - places.row;
  const std::int64_t first = turned ? column * p.c_leading + row : row * p.c_leading + column;
  const std::int64_t next = turned ? stride * 8 * p.c_leading : stride * 8, other = turned ? between_rows : between_rows * p.c_leading;
  const bool has_row = is_whole || row < p.left.size, has_other = is_whole || row + between_rows < p.left.size;
  const auto has = [&](int t) { return j + t * stride < width / 8 && (is_whole || column + t * stride * 8 < p.right.size); };
  const auto has_next = [&](int t) { return is_whole || column + t * stride * 8 + 1 < p.right.size; };  // of a pair along the lines of c^T
#pragma unroll
  for (int t = 0; t < count; ++t) values[t] = {p.alpha * values[t].x, p.alpha * values[t].y, p.alpha * values[t].z, p.alpha * values[t].w};
  if (p.bias) {
#pragma unroll
    for (int t = 0; t < count; ++t) {
      if (!has(t)) continue;
      float2 more, others;
      if constexpr (turned) {
        more.x = more.y = has_row ? p.bias[row] : 0;
        others.x = others.y = has_other ? p.bias[row + between_rows] : 0;
      } else {
        more = others = {p.bias[column + t * stride * 8], p.bias[column + t * stride * 8 + 1]};
      }
      values[t] = {values[t].x + more.x, values[t].y + more.y, values[t].z + others.x, values[t].w + others.y};
    }
  }
  if (p.before) {
    const auto read = [&](int t, std::int64_t place) {
      if constexpr (turned) return float2{p.before[place], has_next(t) ? p.before[place + p.c_leading] : 0};
      else return *reinterpret_cast<const float2*>(p.before + place);
    };
#pragma unroll
    for (int t = 0; t < count; ++t) {
      if (!has(t)) continue;
      const float2 before = has_row ? read(t, first + t * next) : float2{},
                   others = has_other ? read(t, first + t * next + other) : float2{};
      values[t] = {values[t].x + before.x, values[t].y + before.y, values[t].z + others.x, values[t].w + others.y};
    }
  }
  const auto write = [&](int t, std::int64_t place, float2 pair) {
    if constexpr (turned) {
      p.c[place] = pair.x;
      if (has_next(t)) p.c[place + p.c_leading] = pair.y;
    } else {
      __stwb(reinterpret_cast<float2*>(p.c + place), pair);  // as one word: the compiler may split a plain assignment
    }
  };
#pragma unroll
  for (int t = 0; t < count; ++t) {
    if (!has(t)) continue;
    if (has_row) write(t, first + t * next, {values[t].x, values[t].y});
    if (has_other) write(t, first + t * next + other, {values[t].z, values[t].w});
  }
}

__device__ __forceinline__ void prefetch(const float* place) { asm volatile("prefetch.global.L2 [%0];\n" ::"l"(place)); }

__device__ __forceinline__ float4 operator+(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }

/// Writes a tile whose depth is not split.
template <bool turned, bool is_whole, int width>
__device__ __forceinline__ void write_tile(const Problem& p, const Cursor& at, const Places& places, const float (&sums)[width / 2]) {
  constexpr int eights = width / 8, together = eights % 4 == 0 ? 4 : 5;
#pragma unroll
  for (int j = 0; j < eights; j += together) {
    float4 values[together];
#pragma unroll
    for (int t = 0; t < together; ++t) {
      const float* const own = sums + 4 * (j + t);
      values[t] = {own[0], own[1], own[2], own[3]};
    }
    write_eights<turned, is_whole, width>(p, at, places, j, 1, values);
  }
}

/// Adds the sums of a tile's splits, in the order of the splits, and writes them to c. In a cluster each block does that for its share of
/// the eights of columns, which the others send it: to `memory`, the stages, not needed any more, as such a block has no further tile.
template <int width, int stages>
__device__ __forceinline__ void add_and_write(const Problem& p, const Cursor& at, const Places& places, const float (&sums)[width / 2],
                                              float4* memory, Shared<stages>& shared) {
  // Code that a block runs through once comes from memory: short loops are faster here than long unrolled ones.
  constexpr int eights = width / 8, together = 2, ahead = 4;
  const int thread = threadIdx.x, cluster = p.cluster, rank = static_cast<int>(blockIdx.x) % cluster;
  const int tile = at.row_tile * p.column_tiles + at.column_tile, share = (eights - rank + cluster - 1) / cluster;
  float4* const of_tile = p.partial + (std::int64_t(tile) * p.groups * eights + rank) * multipliers + thread;
  float4* const of_group = of_tile + at.group * eights * multipliers;
  // The sums of `count` parts of several eights of the share, from the slot-th on, so that many reads are under way.
  const auto add = [&](int slot, int count, float4(&totals)[together], auto part) {
#pragma unroll 1
    for (int i0 = 0; i0 < count; i0 += ahead)
#pragma unroll
      for (int i = i0; i < i0 + ahead; ++i)
#pragma unroll
        for (int t = 0; t < together; ++t)
          if (i < count && slot + t < share) totals[t] = totals[t] + part(i, slot + t);
  };
  const auto received = [&](int i, int slot) { return memory[(slot * cluster + i) * multipliers + thread]; };
  const auto kept = [&](int i, int slot) { return __ldcg(of_tile + (i * eights + slot * cluster) * multipliers); };
  if (p.before) {
    // It may be far away, and is asked for while the sums travel.
#pragma unroll 1
    for (int slot = 0; slot < share; ++slot) {
      const std::int64_t row = std::int64_t(at.row_tile) * tile_rows + places.row;
      const std::int64_t column = std::int64_t(at.column_tile) * width + (rank + slot * cluster) * 8 + places.column;
      const std::int64_t other = (places.other_row - places.row) * (p.turned ? 1 : p.c_leading);
      const float* const place = p.before + (p.turned ? column * p.c_leading + row : row * p.c_leading + column);
      if (column < p.right.size && row < p.left.size) prefetch(place);
      if (column < p.right.size && row + (places.other_row - places.row) < p.left.size) prefetch(place + other);
    }
  }
  if (cluster > 1) {
    if (thread == 0) shared.received.expect(share * cluster * multipliers * sizeof(float4));
    meet_in_cluster();  // their stages are free
    float4* place = memory + rank * multipliers + thread;
#pragma unroll
    for (int j = 0, owner = 0; j < eights; ++j) {
      send_in_cluster(place, {sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]}, shared.received, owner);
      if (++owner == cluster) {
        owner = 0;
        place += cluster * multipliers;
      }
    }
    shared.received.wait(0);
  } else {
#pragma unroll
    for (int j = 0; j < eights; ++j) of_group[j * multipliers] = {sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]};
  }
  if (p.groups > 1) {
#pragma unroll 1
    for (int slot = 0; cluster > 1 && slot < share; slot += together) {
      float4 totals[together] = {};
      add(slot, cluster, totals, received);
#pragma unroll
      for (int t = 0; t < together; ++t)
        if (slot + t < share) of_group[(slot + t) * cluster * multipliers] = totals[t];
    }
    if (!is_last_block(p.arrived + tile * cluster + rank, p.groups, shared.is_last, [] { sync_named(1, multipliers); })) return;
  }
#pragma unroll 1
  for (int slot = 0; slot < share; slot += together) {
    float4 totals[together] = {};
    if (p.groups > 1) add(slot, p.groups, totals, kept);
    else add(slot, cluster, totals, received);
    if (p.turned) write_eights<true, false, width>(p, at, places, rank + slot * cluster, cluster, totals);
    else write_eights<false, false, width>(p, at, places, rank + slot * cluster, cluster, totals);
  }
}

/// What a thread multiplies of a step of the left tile.
template <int products>
struct LeftPart {
  std::uint32_t large[4][4], rest[products == 3 ? 4 : 1][4];
};

template <int products, bool left_along, int width>
__device__ __forceinline__ void multiply_tiles(const Problem& p, Stage<products, width>* memory, Shared<stages<products>>& shared) {
  constexpr int depth = stages<products>;
  const int lane = threadIdx.x % 32, warp = static_cast<int>(threadIdx.x) / 32, eighth = lane / 4, member = lane % 4;
  // The rows that a thread has, in which order is ours to choose: such that a warp's are in different banks.
  const int row = left_along ? warp * 16 + eighth : warp / 2 * 32 + warp % 2 * 8 + eighth / 4 * 16 + eighth % 4;
  const Places places{row, row + (left_along ? 8 : 4), member * 2};
  const auto take_left = [&](LeftPart<products>& part, int use) {
    const Stage<products, width>& stage = memory[use % depth];
    shared.loaded[use % depth].wait(use / depth % 2);
#pragma unroll
    for (int s = 0; s < 4; ++s)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = i % 2 == 0 ? places.row : places.other_row, k = s * 8 + i / 2 * 4 + member;
        const float x = stage.left[left_along ? place_in_rows(r, k) : place_in_columns(r, k)], rounded = to_tf32(x);
        part.large[s][i] = __float_as_uint(rounded);
        if constexpr (products == 3) part.rest[s][i] = __float_as_uint(to_tf32(x - rounded));
      }
  };
  const auto release = [&](int use) {
    __syncwarp();
    if (lane == 0) shared.used[use % depth].arrive();
  };
  Cursor at;
  int used = 0;
  for (int unit = Cursor::first(p); at.find(p, unit); unit += Cursor::stride(p)) {
    float sums[width / 2] = {};
    [[maybe_unused]] float of_step[products == 3 ? width / 2 : 1];
    // While tensor cores are at one step, the left operand's part for the next is made ready.
    LeftPart<products> parts[2];
    take_left(parts[0], used);
    const auto multiply_step = [&](LeftPart<products>& now, LeftPart<products>& next, int step) {
      constexpr int eight_floats = 8 * sizeof(float) >> 4;
      const Stage<products, width>& stage = memory[used % depth];
      const std::uint64_t right = descriptor_of(stage.right);
      shared.prepared[used % depth].wait(used / depth % 2);
      if constexpr (products == 3) {
        const std::uint64_t right_rest = descriptor_of(stage.rest);
        hold(of_step);
        begin_products();
#pragma unroll
        for (int s = 0; s < 4; ++s) {
          multiply_8(of_step, now.rest[s], right + s * eight_floats, s > 0);
          multiply_8(of_step, now.large[s], right_rest + s * eight_floats, true);
        }
#pragma unroll
        for (int s = 0; s < 4; ++s) multiply_8(of_step, now.large[s], right + s * eight_floats, true);
        commit_products();
        if (step + 1 < at.steps) take_left(next, used + 1);
        wait_products<0>();
        hold(of_step);
        release(used);
#pragma unroll
        for (int i = 0; i < width / 2; ++i) sums[i] += of_step[i];
      } else {
        begin_products();
#pragma unroll
        for (int s = 0; s < 4; ++s) multiply_8(sums, now.large[s], right + s * eight_floats, true);
        commit_products();
        wait_products<1>();
        if (step > 0) release(used - 1);
        if (step + 1 < at.steps) take_left(next, used + 1);
      }
      ++used;
    };
    hold(sums);
    for (int step = 0; step < at.steps; step += 2) {
      multiply_step(parts[0], parts[1], step);
      if (step + 1 < at.steps) multiply_step(parts[1], parts[0], step + 1);
    }
    if constexpr (products == 1) {
      wait_products<0>();
      hold(sums);
      release(used - 1);
    }
    const bool is_whole =
        std::int64_t(at.row_tile + 1) * tile_rows <= p.left.size && std::int64_t(at.column_tile + 1) * width <= p.right.size;
    if (p.cluster > 1 || p.groups > 1) add_and_write<width>(p, at, places, sums, reinterpret_cast<float4*>(memory), shared);
    else if (p.turned) is_whole ? write_tile<true, true, width>(p, at, places, sums) : write_tile<true, false, width>(p, at, places, sums);
    else is_whole ? write_tile<false, true, width>(p, at, places, sums) : write_tile<false, false, width>(p, at, places, sums);
  }
}

#endif

template <int products, bool left_along, bool right_along, int width>
__global__ void __launch_bounds__(threads, 1) multiply(__grid_constant__ const Problem p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int depth = stages<products>;
  extern __shared__ float memory[];
  __shared__ Shared<depth> shared;  // its presence says that this was compiled for wgmma: see has_body
  if (threadIdx.x == 0) {
    prefetch_map(p.left_map);
    prefetch_map(p.right_map);
    for (int i = 0; i < depth; ++i) {
      shared.loaded[i].init(1);
      shared.prepared[i].init(4);
      shared.used[i].init(multipliers / 32);
    }
    shared.received.init(1);
    show_to_copies();
  }
  __syncthreads();
  const auto offset = (swizzle_span - shared_address(memory) % swizzle_span) % swizzle_span;
  const auto stage = reinterpret_cast<Stage<products, width>*>(memory + offset / sizeof(float));
  // The registers that the groups give and take are those that the block was launched with.
  constexpr int first_loader = multipliers + preparers;
  if (threadIdx.x >= first_loader) {
    give_registers<24>();
    if (threadIdx.x == first_loader) load_tiles<products, left_along, right_along>(p, stage, shared);
  } else if (threadIdx.x >= multipliers) {
    give_registers<72>();
    prepare_tiles<products, right_along>(p, stage, shared);
  } else {
    take_registers<208>();
    multiply_tiles<products, left_along>(p, stage, shared);
  }
#endif
}

}  // namespace tern::gpu::tf32
