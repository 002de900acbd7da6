#pragma once
#include <algorithm>
#include <span>

#include "cuda/attention/attention_args.cuh"
#include "cuda/attention/flash_attention.h"
#include "cuda/device/mma.cuh"
#include "cuda/device/vec16.cuh"
#include "cuda/device/wgmma_k16.cuh"
#include "cuda/runtime/allocator.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/tensor_map.h"
#include "tensor/ceil_div.h"

// Flash attention on Hopper's tensor cores, shared by both passes: the order of the work, tiles in shared memory; on the host tensor maps,
// the grid, and which kernel serves a call.
//
// A tile of q, k, v or dy has rows of up to 128 elements in shared memory, in blocks of 64 columns: rows of 128 bytes in the swizzle of 128
// bytes, as TMA writes and wgmma reads them. Heads of other sizes are filled up with zeros by TMA, which knows how long they are.
// Numbers of float32 come in two parts of 16 bits: Note [Two parts] in hopper_f32.cuh.
namespace tern::gpu::hopper {

using namespace flash;

inline constexpr int row_bytes = 128;  ///< of a block of 64 columns
inline constexpr int warpgroup = 128;  ///< threads
inline constexpr int max_width = 128;  ///< elements of a head
inline constexpr int block_columns = 64;

/// Work item: a tile of a head. Items go through heads_at_once heads together: all of their first tiles, then all second ones.
struct WorkItem {
  int tile, head;  ///< head among those of all sequences

  __device__ WorkItem(int item, int tiles, int all_heads, int heads_at_once) {
    const int first = item / (heads_at_once * tiles) * heads_at_once, count = min(heads_at_once, all_heads - first);
    const int within = item - first * tiles;
    tile = within / count;
    head = first + within % count;
  }
};

/// Work queue of a persistent grid: hands the items to the blocks in order. A block's first item is its own number; the next ones come from
/// a counter in device memory, which is zero between kernels.
struct WorkQueue {
  unsigned* counter;
  int items;

  /// The next item, or -1 where none is left. Called by one thread of each block until it gets -1.
  __device__ __forceinline__ int next() const {
    const unsigned taken = atomicAdd(counter, 1);
    if (taken == static_cast<unsigned>(items) - 1)
      *counter = 0;  // the last call: there are items - blocks that give an item, and one a block that gives -1
    const int item = static_cast<int>(taken + gridDim.x);
    return item < items ? item : -1;
  }
};

/// Tiles of `rows` rows of `width` elements, in so many parts. In global memory the parts are (B, parts, T, H, D).
template <int width, int rows, int parts = 1>
struct Tile {
  static constexpr int blocks = ceil_div(width, block_columns), block_bytes = rows * row_bytes, part_bytes = blocks * block_bytes,
                       bytes = parts * part_bytes;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  /// Begins to load rows of a head; of the tensor's rows, so zeros come after the last one only.
  static __device__ __forceinline__ void load(unsigned to, const CUtensorMap& map, int head, int row, int batch, MBarrier& full) {
#pragma unroll
    for (int part = 0; part < parts; ++part)
#pragma unroll
      for (int i = 0; i < blocks; ++i)
        tma_load_4d(to + part * part_bytes + i * block_bytes, map, i * block_columns, head, row, batch * parts + part, full);
  }
#endif
  /// Descriptor steps, in its units: to step k of 16 of the columns, where those are the depth of a product; and of the rows.
  static constexpr int column_step(int k) { return (k / 4 * block_bytes + k % 4 * 32) >> 4; }
  static constexpr int row_step(int k) { return k * 16 * row_bytes >> 4; }
  static constexpr int part_step(int part) { return part * part_bytes >> 4; }
};

/// The products of parts that make up a product, the small ones first.
template <int parts>
struct Products {
  static constexpr int count = parts == 1 ? 1 : 3;
  static constexpr int left(int product) { return parts == 2 && product == 0; }
  static constexpr int right(int product) { return parts == 2 && product == 1; }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Writes factor times a thread's two rows of accumulators (64, 2 pairs): elements `first_column` on of the heads at `rows`, of which those
/// that are null do not exist.
template <class T, int size>
__device__ __forceinline__ void store_rows(const float (&values)[size], const float (&factors)[2], T* const (&rows)[2], int first_column,
                                           int head_dim) {
  const int member = threadIdx.x % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r)
    if (rows[r])
#pragma unroll
      for (int n = 0; n < size / 4; ++n)
        if (first_column + n * 8 < head_dim) {
          T* const to = rows[r] + first_column + n * 8 + member * 2;
          const float x = values[n * 4 + r * 2] * factors[r], y = values[n * 4 + r * 2 + 1] * factors[r];
          if constexpr (std::is_same_v<T, float>) *reinterpret_cast<float2*>(to) = {x, y};
          else *reinterpret_cast<unsigned*>(to) = pack_pair<T>(x, y);
        }
}
/// Likewise zeros.
template <class T>
__device__ __forceinline__ void store_zeros(T* const (&rows)[2], int head_dim) {
#pragma unroll 1
  for (int column = threadIdx.x % 4 * 2; column < head_dim; column += 8)
#pragma unroll
    for (int r = 0; r < 2; ++r)
      if (rows[r]) write_vector(rows[r] + column, Vector<T, 2>{});
}

#endif

// The host's half.

/// Whether TMA can read (B, T, H, D): addresses and strides in multiples of 16 bytes, and no stride runs backwards.
inline bool has_tensor_map(const View& heads) {
  bool is_fit = rows_are_aligned(heads, 16) && heads.shape[3] % 8 == 0;
  for (int i = 0; i < 3; ++i) is_fit = is_fit && heads.shape[i] > 0 && (heads.shape[i] == 1 || heads.strides[i] > 0);
  return is_fit;
}

/// The map of (B, T, H, D), as D, H, T, B, for boxes of 64 columns and so many rows of one head.
inline CUtensorMap map_of(const View& view, int rows) {
  const auto stride = [&](int i) { return view.shape[i] == 1 ? std::int64_t(block_columns) : view.strides[i]; };
  const int box[] = {block_columns, 1, rows, 1};
  return tensor_map(
      TmaTensor{
          view.data, view.dtype, 4, {view.shape[3], view.shape[2], view.shape[1], view.shape[0]}, {1, stride(2), stride(1), stride(0)}},
      box);
}

/// Heads whose keys and values, of so many bytes each, take half of the L2 cache.
inline int heads_in_l2(std::int64_t bytes, const Args& args, Stream stream) {
  const std::int64_t room = attribute(cudaDevAttrL2CacheSize, stream.device) / 2;
  return static_cast<int>(std::clamp<std::int64_t>(room / std::max<std::int64_t>(bytes, 1), 1, args.all_heads()));
}

inline int blocks_of(std::int64_t items, Stream stream) {
  return static_cast<int>(std::min<std::int64_t>(items, attribute(cudaDevAttrMultiProcessorCount, stream.device)));
}

/// Calls f with whether scores get a padding, and whether probabilities are dropped, which implies the former.
template <class F>
void dispatch(const Args& args, F&& f) {
  if (args.dropout.drops) f.template operator()<true, true>();
  else if (args.padding) f.template operator()<true, false>();
  else f.template operator()<false, false>();
}
/// Likewise with the element type before them.
template <class F>
void dispatch(DType dtype, const Args& args, F&& f) {
  dispatch_halves(dtype,
                  [&]<class T>() { dispatch(args, [&]<bool general, bool drops>() { f.template operator()<T, general, drops>(); }); });
}

}  // namespace tern::gpu::hopper
