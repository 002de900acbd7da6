#pragma once
#include "cuda/device/async_copy.cuh"
#include "cuda/device/philox_dropout.cuh"
#include "cuda/rows/row_launch.h"
#include "ops/kernels/layer_norm.h"
#include "tensor/ceil_div.h"

// Shared by layer_norm and its gradient: parameters beside a row that is not aligned, asynchronous copies, and the partition of rows.
namespace tern::gpu::norm {

/// Packed vectors lie one after another in memory: the vector that begins `skew` elements before `high`, which follows `low`. Funnel shifts
/// by 8, by 4 and by 2 bytes: a vector that is not aligned costs two loads and these, in place of a load for each element.
template <class T, int width>
__device__ __forceinline__ uint4 shifted(const uint4& low, const uint4& high, int skew) {
  const int bytes = skew * static_cast<int>(sizeof(T));
  const std::uint32_t all[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  std::uint32_t by_two[6], by_one[5], result[4];
#pragma unroll
  for (int i = 0; i < 6; ++i) by_two[i] = bytes & 8 ? all[i] : all[i + 2];
#pragma unroll
  for (int i = 0; i < 5; ++i) by_one[i] = bytes & 4 ? by_two[i] : by_two[i + 1];
#pragma unroll
  for (int i = 0; i < 4; ++i) result[i] = sizeof(T) < 4 ? __funnelshift_l(by_one[i], by_one[i + 1], bytes % 4 * 8) : by_one[i + 1];
  return {result[0], result[1], result[2], result[3]};
}

/// A parameter's elements from a column on, as a row's vector has them; all are `otherwise` where there is no parameter.
template <RowAccess access, int width, class T>
__device__ __forceinline__ void read_parameter(const T* parameter, float otherwise, int column, int columns, float (&values)[width]) {
  Packed<T, width> packed = broadcast<width>(convert<T>(otherwise));
  if constexpr (access == RowAccess::misaligned) {
    // The vectors in which it lies. Elements outside the row are not used: for them, any vector does.
    const int high = (column + width - 1) & -width, last = (columns - 1) & -width;
    const auto at = [&](int c) { return read_packed<width>(parameter + min(max(c, 0), last)); };
    if (parameter) packed = shifted<T, width>(at(high - width), at(high), high - column);
  } else {
    if (parameter) packed = read_packed<width>(parameter + column);
  }
  unpack<T>(packed, values);
}

/// Begins to copy a packed vector into shared memory. Single elements of 16 bits have no asynchronous copy.
template <class P>
__device__ __forceinline__ void copy_ahead(P* to, const void* from) {
  if constexpr (sizeof(P) >= 4) cp_async<sizeof(P)>(shared_address(to), from);
  else *to = *static_cast<const P*>(from);
}

/// Rows as row_access has them; but a row's skew is known from its number, so that misaligned rows need tensors that begin aligned.
template <class T>
RowAccess norm_access(std::int64_t columns, std::initializer_list<const View*> views) {
  return is_aligned((*views.begin())->data, 16) ? row_access<T>(views, columns) : RowAccess::scalar;
}

/// The partition of rows of which a thread takes `elements` at most; nothing where even a cluster cannot hold a row. A row has at least
/// eight vectors side by side, the 128 bytes that memory gives at once.
template <class T>
std::optional<RowPartition> partition_norm(std::int64_t columns, RowAccess access, int elements, RowLimits limits, Stream stream) {
  const std::int64_t extent = row_extent<T>(columns, access), width = access == RowAccess::scalar ? 1 : vec16_width<T>;
  limits.min_lanes = static_cast<unsigned>(std::min<std::int64_t>(ceil_div(extent, width), 8));
  return partition_rows(ceil_div(extent, elements), limits, stream);
}

/// layer_norm_any.cu: rows that no group of threads can hold, and f64, which is for gradient checks.
void layer_norm_any(const kernels::LayerNormArguments& a);
void layer_norm_grad_any(const kernels::LayerNormGradArguments& a);

}  // namespace tern::gpu::norm
