#pragma once
#include <algorithm>
#include <span>

#include "cuda/attention/attention.h"
#include "cuda/attention/attention_args.cuh"
#include "cuda/device/mma.cuh"
#include "cuda/device/vec16.cuh"
#include "cuda/device/wgmma_k16.cuh"
#include "cuda/runtime/allocator.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/tensor_map.h"
#include "tensor/ceil_div.h"

// Flash attention on Hopper's tensor cores, common to both passes: the work queue, tiles in shared memory; on the host tensor maps, the
// grid, and the choice of a kernel for a call.
//
// A tile of q, k, v or dy has rows of up to 128 elements in shared memory, in blocks of 64 columns: rows of 128 bytes with the 128-byte
// swizzle, as TMA writes and wgmma reads them. Heads of other sizes are padded with zeros by TMA. float32 numbers are split into two parts
// of 16 bits: Note [Two parts] in hopper_f32.cuh.
namespace tern::gpu::hopper {

using namespace flash;

inline constexpr int row_bytes = 128;  ///< row of a block of 64 columns
inline constexpr int warpgroup = 128;  ///< threads
inline constexpr int max_width = 128;  ///< maximal size of a head
inline constexpr int block_columns = 64;

/// Work item: a tile of a head. Items process heads_at_once heads together: all of their first tiles, then all second ones.
struct WorkItem {
  int tile, head;  ///< head: counted over all sequences

  __device__ WorkItem(int item, int tiles, int all_heads, int heads_at_once) {
    const int first = item / (heads_at_once * tiles) * heads_at_once, count = min(heads_at_once, all_heads - first);
    const int within = item - first * tiles;
    tile = within / count;
    head = first + within % count;
  }
};

/// Work queue of a persistent grid: gives the items to the blocks in order. A block's first item is its block index; further ones come from
/// a counter in device memory, which is zero between kernels.
struct WorkQueue {
  unsigned* counter;
  int items;

  /// Next item, or -1 if none is left. Called by one thread of each block until it returns -1.
  __device__ __forceinline__ int next() const {
    const unsigned taken = atomicAdd(counter, 1);
    if (taken == static_cast<unsigned>(items) - 1)
      *counter = 0;  // last call: items - blocks calls return an item, and one per block returns -1
    const int item = static_cast<int>(taken + gridDim.x);
    return item < items ? item : -1;
  }
};

/// Tile of `rows` rows of `width` elements, in `parts` parts. In global memory the parts are (B, parts, T, H, D).
template <int width, int rows, int parts = 1>
struct Tile {
  static constexpr int blocks = ceil_div(width, block_columns), block_bytes = rows * row_bytes, part_bytes = blocks * block_bytes,
                       bytes = parts * part_bytes;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  /// Starts to load rows of a head. The tensor map bounds the tensor's rows, so only rows after the last one are zeros.
  static __device__ __forceinline__ void load(unsigned to, const CUtensorMap& map, int head, int row, int batch, MBarrier& full) {
#pragma unroll
    for (int part = 0; part < parts; ++part)
#pragma unroll
      for (int i = 0; i < blocks; ++i)
        tma_load_4d(to + part * part_bytes + i * block_bytes, map, i * block_columns, head, row, batch * parts + part, full);
  }
#endif
  /// Descriptor offsets, in units of 16 bytes: to 16-column step k, if the columns are the depth of a product; to 16-row step k; and to a
  /// part.
  static constexpr int column_step(int k) { return (k / 4 * block_bytes + k % 4 * 32) >> 4; }
  static constexpr int row_step(int k) { return k * 16 * row_bytes >> 4; }
  static constexpr int part_step(int part) { return part * part_bytes >> 4; }
};

/// The products of parts that make up one product, small ones first.
template <int parts>
struct Products {
  static constexpr int count = parts == 1 ? 1 : 3;
  static constexpr int left(int product) { return parts == 2 && product == 0; }
  static constexpr int right(int product) { return parts == 2 && product == 1; }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Writes factor times a thread's two rows of accumulators (64, 2 pairs), from column `first_column` on, to the heads at `rows`; null rows
/// are skipped.
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
/// The same for zeros.
template <class T>
__device__ __forceinline__ void store_zeros(T* const (&rows)[2], int head_dim) {
#pragma unroll 1
  for (int column = threadIdx.x % 4 * 2; column < head_dim; column += 8)
#pragma unroll
    for (int r = 0; r < 2; ++r)
      if (rows[r]) write_vector(rows[r] + column, Vector<T, 2>{});
}

#endif

// Host functions.

/// True if TMA can read (B, T, H, D): addresses and strides in multiples of 16 bytes, no negative strides.
inline bool has_tensor_map(const View& heads) {
  bool is_fit = rows_are_aligned(heads, 16) && heads.shape[3] % 8 == 0;
  for (int i = 0; i < 3; ++i) is_fit = is_fit && heads.shape[i] > 0 && (heads.shape[i] == 1 || heads.strides[i] > 0);
  return is_fit;
}

/// Tensor map of (B, T, H, D), as D, H, T, B, for boxes of 64 columns and `rows` rows of one head.
inline CUtensorMap map_of(const View& view, int rows) {
  const auto stride = [&](int i) { return view.shape[i] == 1 ? std::int64_t(block_columns) : view.strides[i]; };
  const int box[] = {block_columns, 1, rows, 1};
  return tensor_map(
      TmaTensor{
          view.data, view.dtype, 4, {view.shape[3], view.shape[2], view.shape[1], view.shape[0]}, {1, stride(2), stride(1), stride(0)}},
      box);
}

/// Number of heads whose keys and values, `bytes` for each head, fit into half of the L2 cache.
inline int heads_in_l2(std::int64_t bytes, const Args& args, Stream stream) {
  const std::int64_t room = attribute(cudaDevAttrL2CacheSize, stream.device) / 2;
  return static_cast<int>(std::clamp<std::int64_t>(room / std::max<std::int64_t>(bytes, 1), 1, args.all_heads()));
}

inline int blocks_of(std::int64_t items, Stream stream) {
  return static_cast<int>(std::min<std::int64_t>(items, attribute(cudaDevAttrMultiProcessorCount, stream.device)));
}

/// Calls f<general, drops>: general if there is padding or dropout, drops if there is dropout.
template <class F>
void dispatch(const Args& args, F&& f) {
  if (args.dropout.drops) f.template operator()<true, true>();
  else if (args.padding) f.template operator()<true, false>();
  else f.template operator()<false, false>();
}
/// The same with the element type first.
template <class F>
void dispatch(DType dtype, const Args& args, F&& f) {
  dispatch_halves(dtype,
                  [&]<class T>() { dispatch(args, [&]<bool general, bool drops>() { f.template operator()<T, general, drops>(); }); });
}

}  // namespace tern::gpu::hopper
