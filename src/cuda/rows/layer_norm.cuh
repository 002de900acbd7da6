#pragma once
#include "cuda/device/async_copy.cuh"
#include "cuda/device/group.cuh"
#include "cuda/device/philox_dropout.cuh"
#include "cuda/rows/row_launch.h"
#include "ops/kernels/normalize.h"
#include "tensor/sizes.h"

// Common to layer_norm and its gradient: parameters for misaligned rows, asynchronous copies, the partition of rows, and rows of any
// length.
namespace tern::gpu::norm {

/// A misaligned vector from two packed vectors: the one that begins `skew` elements before `high`, which follows `low`. By funnel shifts of
/// 8, 4 and 2 bytes: it costs two loads and these shifts rather than one load for each element.
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

/// Elements of a parameter from a column on, aligned with a row's vector; all are `otherwise` if there is no parameter.
template <RowAccess access, int width, class T>
__device__ __forceinline__ void read_parameter(const T* parameter, float otherwise, int column, int columns, float (&values)[width]) {
  Packed<T, width> packed = broadcast<width>(convert<T>(otherwise));
  if constexpr (access == RowAccess::misaligned) {
    // The vectors that contain it. Elements outside of the row are not used, so any vector will do for them.
    const int high = (column + width - 1) & -width, last = (columns - 1) & -width;
    const auto at = [&](int c) { return read_packed<width>(parameter + min(max(c, 0), last)); };
    if (parameter) packed = shifted<T, width>(at(high - width), at(high), high - column);
  } else {
    if (parameter) packed = read_packed<width>(parameter + column);
  }
  unpack<T>(packed, values);
}

/// Starts to copy a packed vector to shared memory. Single 16-bit elements have no asynchronous copy.
template <class P>
__device__ __forceinline__ void copy_ahead(P* to, const void* from) {
  if constexpr (sizeof(P) >= 4) cp_async<sizeof(P)>(shared_address(to), from);
  else *to = *static_cast<const P*>(from);
}

/// As row_access; but a row's skew is computed from its index, so misaligned rows need tensors that begin aligned.
template <class T>
RowAccess norm_access(std::int64_t columns, std::initializer_list<const View*> views) {
  return is_aligned((*views.begin())->data, 16) ? row_access<T>(views, columns) : RowAccess::scalar;
}

/// Partition of rows of which a thread holds at most `elements`; none if even a cluster cannot hold a row. A row has at least eight
/// adjacent vectors, the 128 bytes of one memory transfer.
template <class T>
std::optional<RowPartition> partition_norm(std::int64_t columns, RowAccess access, int elements, RowLimits limits, Stream stream) {
  const std::int64_t extent = row_extent<T>(columns, access), width = access == RowAccess::scalar ? 1 : vec16_width<T>;
  limits.min_lanes = static_cast<unsigned>(std::min<std::int64_t>(ceil_div(extent, width), 8));
  return partition_rows(ceil_div(extent, elements), limits, stream);
}

// Rows of any length and dtype, for those that no group of threads can hold, and for f64, which is for gradient checks: operands whose
// dtype is known at run time, computed in f64. A block processes a row, and each pass reads it from memory.

/// Sum over the block, in all of its threads.
inline __device__ double block_sum(double value) {
  value = block_all_reduce<PlusOp<double>>(value);
  __syncthreads();  // for the next call
  return value;
}

/// Arguments of a call in the kernels' form: views, with the dtypes of their elements and of the statistics, sizes and dropout.
template <class Arguments>
struct AnyRows : Arguments {
  DType dtype, statistics;
  std::int64_t rows, columns;
  Dropout<double> dropout;

  AnyRows(const Arguments& arguments, const View& x)
      : Arguments(arguments),
        dtype(x.dtype),
        statistics(dtype == DType::f64 ? dtype : DType::f32),
        rows(x.shape[0]),
        columns(x.shape[1]),
        dropout(arguments.p, arguments.draws) {}

  __device__ double at(const View& x, std::int64_t i) const { return read<AnyFloat>(x.data, dtype, i); }
  __device__ double statistic(const View& x, std::int64_t row) const { return read<AnyFloat>(x.data, statistics, row); }
  __device__ void put(const View& x, std::int64_t i, double value) const { write<AnyFloat>(x.data, dtype, i, value); }
};

}  // namespace tern::gpu::norm
