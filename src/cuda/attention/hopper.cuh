#pragma once
#include <algorithm>
#include <array>
#include <optional>
#include <span>

#include "cuda/attention/attention.h"
#include "cuda/attention/attention_args.cuh"
#include "cuda/device/fragment.cuh"
#include "cuda/device/vec16.cuh"
#include "cuda/device/wgmma.cuh"
#include "cuda/runtime/allocator.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/tensor_map.h"
#include "tensor/sizes.h"

// Flash attention on Hopper's tensor cores, common to both passes: the work queue, tiles in shared memory; on the host tensor maps, the
// grid, and the choice of a kernel for a call.
//
// A tile of q, k, v or dy has rows of up to 128 elements in shared memory, in blocks of 64 columns: rows of 128 bytes with the 128-byte
// swizzle, as TMA writes and wgmma reads them. Heads of other sizes are padded with zeros by TMA. float32 numbers are split into two parts
// of 16 bits: Note [Two parts].
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

// Note [Two parts]
// float32 on tensor cores of 16 bits: a number x is split into two f16 numbers, hi = x rounded, lo = x - hi rounded, together at least 22
// bits. Three products, lo hi, hi lo, hi hi, give one of float32: half the cost of 3xTF32, with all of the layouts that 16-bit operands
// allow. With one part, hi alone, a product has the 11 bits of TF32.
//
// f16's range requires scales. Each tensor is multiplied by a power of two for each of its heads (for queries: for each group that shares a
// key head), which brings the largest number to [2^14, 2^15); numbers 2^17 times smaller than that begin to lose bits. Rows that a mask
// hides are included. P is computed times 2^15. dS = P (dP - delta) is bounded by 2 |dy| |v| / (1 - dropout), with the largest norms of the
// rows of dy and v, and is scaled by that bound. All scales are powers of two and so exact.
//
// Tensor cores truncate when they add to an accumulator, so a long sum in one accumulator drifts towards zero. Each tile's product
// therefore has a separate accumulator, which an ordinary addition adds to the sum (promotion). And lo hi and hi lo come first, while sums
// are small.
inline constexpr int f16_exponent = 15;  ///< scaled numbers are below 2^15

/// Element type of the operands of products.
template <class T>
using element_t = std::conditional_t<std::is_same_v<T, float>, f16, T>;

/// 2^exponent as a normal number.
__device__ __forceinline__ float power_of_two(int exponent) { return __int_as_float((min(max(exponent, -126), 127) + 127) << 23); }
/// The exponent of x > 0: x < 2^(exponent + 1).
__device__ __forceinline__ int exponent_of(float x) { return (__float_as_int(x) >> 23) - 127; }

/// Numbers from which scales are computed: (values, heads) for the key heads of all batch rows.
struct Maxima {
  enum Value { q, k, v, dy, v_length, dy_length, values };  ///< largest magnitudes, and norms of rows

  const float* data;
  int heads;

  __device__ __forceinline__ int head(const Args& args, int batch, int q_head) const {
    return batch * args.kv_heads + q_head / args.group();
  }
  /// Exponent of the power of two that a tensor is multiplied by. Bounded so that its inverse, and products of two inverses, are finite.
  __device__ __forceinline__ int exponent(Value value, int head) const {
    return min(f16_exponent - 1 - exponent_of(data[value * heads + head]), 100);
  }
  /// The same for dS: 2 a b inverse_keep < 2^-exponent for the norms a and b.
  __device__ __forceinline__ int ds_exponent(int head, float inverse_keep) const {
    const float a = data[v_length * heads + head], b = data[dy_length * heads + head];
    const int ea = exponent_of(a), eb = exponent_of(b);
    const float mantissas = a * power_of_two(-ea) * (b * power_of_two(-eb)) * inverse_keep;
    return min(-(ea + eb + exponent_of(mantissas) + 2), 100);
  }
};

/// Splits two numbers into their parts.
__device__ __forceinline__ void split_pair(float x, float y, unsigned& hi, unsigned& lo) {
  hi = pack_pair<f16>(x, y);
  float x_hi, y_hi;
  unpack_pair<f16>(hi, x_hi, y_hi);
  lo = pack_pair<f16>(x - x_hi, y - y_hi);
}

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

/// float32 heads, (B, T, H, D) each, as scaled parts of f16: Note [Two parts]. Lives for the duration of a call.
class SplitHeads {
 public:
  /// Splits q, k, v, or those and dy, in this order; k and v have kv_heads heads, the others a multiple. D <= 128.
  SplitHeads(std::span<const View> heads, int parts);

  /// (B parts, T, H, D) of f16, contiguous.
  const std::array<View, 4>& views() const { return views_; }
  Maxima maxima() const { return {maxima_.as<const float>(), kv_heads_}; }

 private:
  int kv_heads_;  ///< counted over all batch rows
  Workspace maxima_;
  std::array<std::optional<Workspace>, 4> data_;
  std::array<View, 4> views_;
};

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
