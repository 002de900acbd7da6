#pragma once
#include <optional>

#include "cuda/device/async_copy.cuh"
#include "cuda/rows/row_launch.h"
#include "tensor/ceil_div.h"

// Layout of rows for attention_softmax and its gradient. A row stays in the registers of the threads that share it, from its single read to
// its single write:
//
//   columns       threads of a row       held in             all-reduce
//   to ~500       lanes of a warp        registers           shuffles
//   to ~16k       a block                registers           shuffles, shared memory
//   to ~128k      a cluster              registers           shuffles, DSMEM
//   16 bits, long a block or a cluster   shared memory, unconverted: as floats in registers, fewer bytes would be in flight
//   longer, f64   a block, two passes    nowhere: it is read twice
//
// Some 64 KB must be in flight on each multiprocessor of an H200 for its full bandwidth: hence many threads with few registers, each of
// which issues several 16-byte loads before it uses the first.
namespace tern::gpu {

inline constexpr unsigned max_softmax_threads = 512;  ///< threads of a block

/// Layout of the rows of a call.
struct SoftmaxPlan {
  RowAccess access;
  int elements;  ///< elements of a row in each thread, in vectors of 16 bytes, or single
  RowPartition partition;
};

/// Plan in which each thread holds `elements` of a row, or more, up to `max_elements`, if the row would not fit or two warps would share
/// what one can hold. None if the row is too long.
template <class T>
std::optional<SoftmaxPlan> plan_softmax(std::int64_t columns, RowAccess access, int elements, int max_elements, Stream stream) {
  const bool is_scalar = access == RowAccess::scalar;
  if (is_scalar) elements = max_elements = columns <= 256 ? 8 : 16;
  const std::int64_t extent = row_extent<T>(columns, access);
  const auto threads_with = [&](int each) { return ceil_div(extent, each); };
  const auto is_better_doubled = [&](std::int64_t threads) { return threads > max_softmax_threads || (threads > 32 && threads <= 64); };
  while (elements < max_elements && is_better_doubled(threads_with(elements))) elements *= 2;
  constexpr unsigned block_bytes = 4096;  // of rows in a block: smaller blocks start more often, larger ones wait longer for their last row
  const RowLimits limits{.max_threads = max_softmax_threads,
                         .min_lanes = is_scalar ? static_cast<unsigned>(std::min<std::int64_t>(columns, 32)) : 1,
                         .shared_block = block_bytes / static_cast<unsigned>(elements * sizeof(T))};
  const auto partition = partition_rows(threads_with(elements), limits, stream);
  if (!partition) return std::nullopt;
  return SoftmaxPlan{access, elements, *partition};
}

/// Calls run.operator()<access, vectors>() with the plan's values.
template <class T, int max_elements, class F>
void with_softmax_layout(const SoftmaxPlan& plan, F&& run) {
  const auto with_access = [&]<RowAccess access>() {
    constexpr int width = row_vector_width<T, access>;
    if (plan.elements == 8) return run.template operator()<access, 8 / width>();
    if (width == 1 || plan.elements == 16) return run.template operator()<access, 16 / width>();
    if constexpr (width > 1 && max_elements == 32) return run.template operator()<access, 32 / width>();
  };
  if (plan.access == RowAccess::aligned) return with_access.template operator()<RowAccess::aligned>();
  if (plan.access == RowAccess::misaligned) return with_access.template operator()<RowAccess::misaligned>();
  return with_access.template operator()<RowAccess::scalar>();
}

/// Columns of the row at `row` that this thread holds.
template <RowAccess access, class T, class V>
__device__ RowColumns columns_of(const RowGroup<true, V, 1>& group, const T* row) {
  return group.template columns<access, row_vector_width<T, access>>(
      static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(row) / sizeof(T)));
}

/// Grid of a kernel whose blocks process one row at a time.
struct LoopingGrid {
  unsigned blocks, threads;
};
inline LoopingGrid looping_grid(std::int64_t rows, std::int64_t columns) {
  const auto whole_warps = round_up(std::min<std::int64_t>(columns, max_softmax_threads), 32);
  return {static_cast<unsigned>(std::min<std::int64_t>(rows, 1 << 20)), static_cast<unsigned>(whole_warps)};
}

}  // namespace tern::gpu
