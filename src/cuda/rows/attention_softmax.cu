#include <optional>

#include "cuda/device/async_copy.cuh"
#include "cuda/device/indexer.cuh"
#include "cuda/device/math.cuh"
#include "cuda/reduce/reduce.cuh"
#include "cuda/rows/row_launch.h"
#include "ops/kernels/attention.h"
#include "tensor/dispatch.h"
#include "tensor/sizes.h"

// Softmax of attention scores, with causal, prefix and padding masks. Columns after the causal limit are not read. (Softmax along any
// dimension, without a mask, is composed of ops in ops/normalize.cpp.)
//
//   row in registers, or in shared memory      two passes over a row that fits in neither
//     read x, mask            (threads)          online softmax: max and sum(exp(x - max)) in one pass
//     m = max(x)              (warp)             block-reduce both
//     e = exp(x - m)          (thread)           read x again, write exp(x - m) / sum
//     l = sum(e)              (warp)
//     (m, l) of all warps     (one exchange)
//     write e * exp(m - m_row) / l_row
//
// Note [Padding and the cache]: scores bypass the L1 cache, so that the padding of a batch, which all of its rows read, stays in it.
//
// A row of the softmax or of its gradient stays in the registers of the threads that share it, from its single read to
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

namespace tern::kernels {

using namespace gpu;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

/// Columns that a row sees: those before a limit whose padding does not hide them.
template <class C>
struct VisibleRange {
  const C* padding = nullptr;  ///< null: no padding
  std::int64_t limit = 0;

  __device__ bool operator()(std::int64_t column) const { return column < limit && (!padding || padding[column] > C(hidden_padding)); }
};

/// Out of line: 64-bit division is long code, and rarely needed.
__device__ __noinline__ std::int64_t divide_64_bit(std::int64_t n, std::int64_t divisor) { return n / divisor; }

/// Rows of scores (B, ..., T, S), with their mask.
template <class C>
struct ScoreRows {
  std::int64_t count, columns, queries, rows_per_batch;
  const C* padding;
  const std::int64_t* prefix;
  bool causal;
  bool many = count > 0x7fffffff;  ///< too many rows for the dividers
  Divider by_batch{rows_per_batch}, by_queries{queries};

  __device__ std::int64_t divide(std::int64_t row, Divider by, std::int64_t divisor) const {
    return many ? divide_64_bit(row, divisor) : by.divide(static_cast<std::uint32_t>(row));
  }

  __device__ VisibleRange<C> visible(std::int64_t row) const {
    VisibleRange<C> result{nullptr, columns};
    if (!padding && !causal) return result;
    const std::int64_t batch = divide(row, by_batch, rows_per_batch);
    if (padding) result.padding = padding + batch * columns;
    if (causal) {
      const std::int64_t past = row - divide(row, by_queries, queries) * queries + columns - queries + 1;
      result.limit = min(max(past, prefix ? prefix[batch] : std::int64_t(0)), columns);
      result.limit = max(result.limit, std::int64_t(0));
    }
    return result;
  }
};

/// Note [Exponentials]: exp(x - m) for the largest score m is 2^(ax - am) with a = log2(e): one multiply-add and one special function. am
/// is rounded, but equally for all scores, so that its error cancels in the division by their sum. If |m| is so large that a m might
/// overflow, scores are equal or so far apart that only the largest matter, and a = 1/2 suffices: then am is exact.
struct ShiftedExp {
  float a, am;

  /// If m = -inf, the row is fully masked, and the exponentials are 0 regardless of the number that is subtracted.
  __device__ explicit ShiftedExp(float m) : a(fabsf(m) < large_score || m == -infinity ? log2_e : 0.5f), am(m == -infinity ? 0 : a * m) {}

  __device__ float operator()(float x) const { return exp2_approx(fmaf(x, a, -am)); }
  /// Factor that converts exponentials relative to this maximum to a larger one.
  __device__ float factor_for(const ShiftedExp& larger) const { return a == larger.a ? exp2_approx(am - larger.am) : 0.f; }
};

/// Writes NaN to this thread's columns, in vectors of `width`, of a row in which a NaN is seen. Out of line, because it is rare.
template <int width, class T, class C>
__device__ __noinline__ void write_nan(T* y, const ScoreRows<C>& rows, std::int64_t row, RowColumns own) {
  const VisibleRange<C> visible = rows.visible(row);
  for (std::int64_t vector = own.first; vector < rows.columns; vector += own.stride)
    for (std::int64_t c = max(vector, std::int64_t(0)); c < min(vector + width, rows.columns); ++c)
      y[row * rows.columns + c] = convert<T>(visible(c) ? std::numeric_limits<C>::quiet_NaN() : C(0));
}

/// A thread's scores of a row, -inf where they are hidden.
template <RowAccess access, class T, int width, int vectors>
__device__ __forceinline__ void mask_scores(const Packed<T, width> (&packed)[vectors], const VisibleRange<float>& visible, int columns,
                                            RowColumns& own, float (&scores)[vectors][width]) {
  const int limit = static_cast<int>(visible.limit);
  if (visible.padding) {
    // Loads of 16 numbers at a time: enough to overlap several, and few enough for the registers.
    constexpr int group = 16 / width < vectors ? 16 / width : vectors;
#pragma unroll
    for (int begin = 0; begin < vectors; begin += group) {
      Vector<float, width> padding[group] = {};
#pragma unroll
      for (int i = 0; i < group; ++i) {
        const int c = own[begin + i];
        if constexpr (access == RowAccess::aligned) {
          if (c < limit) padding[i] = read_vector<width>(visible.padding + c);
        } else {
#pragma unroll
          for (int k = 0; k < width; ++k)
            if (is_within(c + k, limit)) padding[i].values[k] = visible.padding[c + k];
        }
      }
#pragma unroll
      for (int i = 0; i < group; ++i) {
        float values[width];
        unpack<T>(packed[begin + i], values);
#pragma unroll
        for (int k = 0; k < width; ++k)
          scores[begin + i][k] = padding[i].values[k] > hidden_padding ? values[k] + padding[i].values[k] : -infinity;
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < vectors; ++i) unpack<T>(packed[i], scores[i]);
  }
  if (width > 1 && (access != RowAccess::aligned || limit < columns)) {
    launder(own.first);
#pragma unroll
    for (int i = 0; i < vectors; ++i)
#pragma unroll
      for (int k = 0; k < width; ++k)
        if (!is_within(own[i] + k, limit)) scores[i][k] = -infinity;
  }
}

using SoftmaxGroup = RowGroup<true, float2, 1>;

/// Factor that converts this warp's exponentials to probabilities. They are relative to the warp's largest score `top`, and their sum is
/// `total`; one exchange of both all-reduces maximum and sum over the row.
__device__ __forceinline__ float normalizer(float top, const ShiftedExp& exponential, float total, SoftmaxGroup& group) {
  if (group.in_a_warp()) return total == 0 ? 0.f : 1 / total;
  group.wait_for_cluster();
  const auto warps = group.all_gather({top, total});
  const unsigned count = warps.count;
  const unsigned lane = threadIdx.x % 32;
  float row_top = -infinity, row_total = 0;
  for (unsigned i = lane; i < count; i += 32) row_top = fmaxf(row_top, warps[i].x);
  const ShiftedExp of_row(warp_all_reduce<MaxOp>(row_top));
  for (unsigned i = lane; i < count; i += 32)
    if (const auto [warp_top, warp_total] = warps[i]; warp_total != 0) row_total += warp_total * ShiftedExp(warp_top).factor_for(of_row);
  row_total = warp_all_reduce<PlusOp<float>>(row_total);
  if (row_total == 0) return 0;
  return (total == 0 ? 1.f : exponential.factor_for(of_row)) / row_total;
}

/// Writes this thread's vector at `column` of a row, or the part of it that is in the row.
template <RowAccess access, class T, int width>
__device__ __forceinline__ void write_probabilities(T* row, int column, int columns, const float (&values)[width]) {
  if (column < columns) write_row_vector<access>(row + column, column, columns, values);
}

template <class T, RowAccess access, int vectors>
__global__ void __launch_bounds__(max_softmax_threads, row_vector_width<T, access>* vectors <= 8 ? 3 : 2)
    softmax_in_registers(RowPartition partition, const T* x, T* y, __grid_constant__ const ScoreRows<float> rows) {
  constexpr int width = row_vector_width<T, access>;
  __shared__ SoftmaxGroup::Exchange exchange;
  SoftmaxGroup group(partition, exchange);
  // first_row() with a branch: short rows wait for each instruction before their loads, and do not need the index of a cluster.
  const std::int64_t row = group.in_a_warp() ? std::int64_t(blockIdx.x) * partition.rows + group.index() : group.cluster();
  const bool exists = row < rows.count;
  const VisibleRange<float> visible = exists ? rows.visible(row) : VisibleRange<float>{};
  const int columns = exists ? static_cast<int>(rows.columns) : 0;
  const std::int64_t start = row * rows.columns;
  RowColumns own = columns_of<access>(group, exists ? x + start : nullptr);

  Packed<T, width> packed[vectors];
#pragma unroll
  for (int i = 0; i < vectors; ++i) {
    packed[i] = broadcast<width>(T(-infinity));
    if (own[i] < visible.limit) packed[i] = read_packed_cg<width>(x + start + own[i]);
  }
  launder(own.first);
  float values[vectors][width];
  mask_scores<access, T>(packed, visible, columns, own, values);

  float top = -infinity;
#pragma unroll
  for (int i = 0; i < vectors; ++i)
#pragma unroll
    for (int k = 0; k < width; ++k) top = fmaxf(top, values[i][k]);
  top = lanes_all_reduce<MaxOp>(top, group.lanes());
  const ShiftedExp exponential(top);
  float total = 0;
#pragma unroll
  for (int i = 0; i < vectors; ++i) {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < width; ++k) sum += values[i][k] = exponential(values[i][k]);
    total += sum;
  }
  total = lanes_all_reduce<PlusOp<float>>(total, group.lanes());

  const float scale = normalizer(top, exponential, total, group);
  launder(own.first);
  if (isnan(scale)) return write_nan<width>(y, rows, row, own);
#pragma unroll
  for (int i = 0; i < vectors; ++i) {
#pragma unroll
    for (int k = 0; k < width; ++k) values[i][k] *= scale;
    write_probabilities<access>(y + start, own[i], columns, values[i]);
  }
}

constexpr int elements_in_shared = 64;  ///< elements of a row in a thread

/// Long rows of 16-bit numbers without padding, in shared memory. Each vector is read only by the thread that copied it, so that no barrier
/// is needed; the exponentials are computed twice.
template <class T, RowAccess access>
__global__ void __launch_bounds__(max_softmax_threads, 3)
    softmax_in_shared(RowPartition partition, const T* x, T* y, __grid_constant__ const ScoreRows<float> rows) {
  constexpr int width = 8, vectors = elements_in_shared / width;
  __shared__ SoftmaxGroup::Exchange exchange;
  extern __shared__ uint4 cache[];
  const auto slot = [&](int i) -> uint4& { return cache[i * blockDim.x + threadIdx.x]; };
  SoftmaxGroup group(partition, exchange);
  const std::int64_t row = group.first_row(), start = row * rows.columns;
  RowColumns own = columns_of<access>(group, x + start);
  const auto columns = static_cast<int>(rows.columns), limit = static_cast<int>(rows.visible(row).limit);
#pragma unroll
  for (int i = 0; i < vectors; ++i) {
    if (own[i] < limit) cp_async<16>(shared_address(&slot(i)), x + start + own[i]);
    else slot(i) = broadcast<width>(T(-infinity));
  }
  cp_async_wait_all();
  if (access != RowAccess::aligned || limit < columns) {
#pragma unroll 1
    for (int i = 0; i < vectors; ++i) {
      if (is_within(own[i], limit) && own[i] + width <= limit) continue;
      T* const elements = reinterpret_cast<T*>(&slot(i));
      for (int k = 0; k < width; ++k)
        if (!is_within(own[i] + k, limit)) elements[k] = T(-infinity);
    }
  }

  float top = -infinity, total = 0, values[width];
#pragma unroll
  for (int i = 0; i < vectors; ++i) {
    unpack<T>(slot(i), values);
#pragma unroll
    for (int k = 0; k < width; ++k) top = fmaxf(top, values[k]);
  }
  top = warp_all_reduce<MaxOp>(top);
  const ShiftedExp exponential(top);
  __syncwarp();  // a compiler barrier: otherwise the row would be kept in registers, of which there are too few, rather than read again
#pragma unroll
  for (int i = 0; i < vectors; ++i) {
    unpack<T>(slot(i), values);
    float sum = 0;
#pragma unroll
    for (int k = 0; k < width; ++k) sum += exponential(values[k]);
    total += sum;
  }
  const float scale = normalizer(top, exponential, warp_all_reduce<PlusOp<float>>(total), group);
  if (isnan(scale)) return write_nan<width>(y, rows, row, own);
#pragma unroll
  for (int i = 0; i < vectors; ++i) {
    unpack<T>(slot(i), values);
#pragma unroll
    for (int k = 0; k < width; ++k) values[k] = exponential(values[k]) * scale;
    write_probabilities<access>(y + start, own[i], columns, values);
  }
}

/// Maximum to subtract: if it is -inf, the row is fully masked, and the exponentials are 0 regardless of the number that is subtracted.
template <class C>
__device__ __forceinline__ C shift_for(C maximum) {
  return maximum == -std::numeric_limits<C>::infinity() ? C(0) : maximum;
}

/// Rows too long for a cluster, and f64: a block processes a row at a time, in two passes, the first an online softmax.
template <class T>
__global__ void __launch_bounds__(max_softmax_threads)
    softmax_two_pass(const T* x, T* y, __grid_constant__ const ScoreRows<compute_t<T>> rows) {
  using C = compute_t<T>;
  using Op = LogSumExpOp<C>;
  __shared__ typename Op::Accumulator shared;
  for (std::int64_t n = blockIdx.x; n < rows.count; n += gridDim.x) {
    const T* const row = x + n * rows.columns;
    T* const out = y + n * rows.columns;
    const VisibleRange<C> visible = rows.visible(n);
    const auto score = [&](std::int64_t c) { return convert<C>(row[c]) + (visible.padding ? visible.padding[c] : C(0)); };
    auto statistic = Op::identity();
#pragma unroll 4
    for (std::int64_t c = threadIdx.x; c < visible.limit; c += blockDim.x)
      if (visible(c)) Op::add(statistic, score(c));
    statistic = block_reduce<Op>(statistic);
    if (threadIdx.x == 0) shared = statistic;
    __syncthreads();
    const auto [top, total] = shared;
    if (isnan(total) || top == std::numeric_limits<C>::infinity()) {
      write_nan<1>(y, rows, n, {static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x)});
    } else {
      const C scale = total == 0 ? C(0) : C(1) / total, shift = shift_for(top);
#pragma unroll 4
      for (std::int64_t c = threadIdx.x; c < rows.columns; c += blockDim.x)
        out[c] = convert<T>(visible(c) ? std::exp(score(c) - shift) * scale : C(0));
    }
    __syncthreads();  // before the next row overwrites `shared`
  }
}

/// Returns false if a row is too long for a cluster.
template <class T>
bool softmax_by_plan(const View& x, const View& y, const ScoreRows<float>& rows) {
  RowAccess access = row_access<T>({&x, &y}, rows.columns);
  if (access == RowAccess::aligned && !is_aligned(rows.padding, sizeof(float) * vec16_width<T>)) access = RowAccess::misaligned;
  const auto launch_plan = [&](auto kernel, const SoftmaxPlan& plan, std::size_t shared) {
    launch_rows(kernel, plan.partition, blocks_for(rows.count, plan.partition.rows), shared, y.stream, x.as<const T>(), y.as<T>(), rows);
    return true;
  };
  if constexpr (is_half<T>) {
    if (rows.columns > 8192 && !rows.padding && access != RowAccess::scalar) {
      const auto kernel =
          access == RowAccess::aligned ? softmax_in_shared<T, RowAccess::aligned> : softmax_in_shared<T, RowAccess::misaligned>;
      if (const auto plan = plan_softmax<T>(rows.columns, access, elements_in_shared, elements_in_shared, y.stream))
        return launch_plan(kernel, *plan, elements_in_shared * sizeof(T) * plan->partition.block());
    }
  }
  // Enough elements of a row in each thread to keep the memory busy, but no more, because rows in few threads waste less.
  const int elements = is_half<T> ? (rows.columns <= 64 ? 16 : 32) : rows.columns <= 256 ? 8 : rows.columns <= 6144 ? 16 : 32;
  const auto plan = plan_softmax<T>(rows.columns, access, elements, 32, y.stream);
  if (!plan) return false;
  with_softmax_layout<T, 32>(*plan,
                             [&]<RowAccess access, int vectors>() { launch_plan(softmax_in_registers<T, access, vectors>, *plan, 0); });
  return true;
}

}  // namespace

void AttentionSoftmax::run(Cuda) const {
  if (y.numel() == 0) return;
  const std::int64_t columns = x.shape[x.dims() - 1], queries = x.shape[x.dims() - 2], count = x.numel() / columns;
  const std::int64_t rows_per_batch = x.dims() > 2 ? count / x.shape[0] : count;
  dispatch_floats(x.dtype, "attention_softmax", [&]<class T>() {
    using C = compute_t<T>;
    const ScoreRows<C> rows{count,      columns, queries, rows_per_batch, mask.padding.as<const C>(), mask.prefix.as<const std::int64_t>(),
                            mask.causal};
    if constexpr (!std::is_same_v<T, double>)
      if (softmax_by_plan<T>(x, y, rows)) return;
    const auto [blocks, threads] = looping_grid(count, columns);
    launch(softmax_two_pass<T>, blocks, threads, 0, y.stream, x.as<const T>(), y.as<T>(), rows);
  });
}

// Gradient of softmax, dx = y (g - sum(g y)): one read of y and of g, one write. It needs no masks, because hidden columns have y = 0.

namespace {

/// A thread's part of a row of y and g, kept in registers until their sum is known.
template <class T, int width, int vectors>
struct RegisterCache {
  Packed<T, width> y[vectors], g[vectors];

  __device__ void read(int i, bool exists, const T* from_y, const T* from_g) {
    y[i] = g[i] = broadcast<width>(T(0.f));
    if (!exists) return;
    y[i] = read_packed_cg<width>(from_y);
    g[i] = read_packed_cg<width>(from_g);
  }
  __device__ void wait() {}
  __device__ Packed<T, width> y_at(int i) { return y[i]; }
  __device__ Packed<T, width> g_at(int i) { return g[i]; }
};

extern __shared__ uint4 cache_memory[];

/// The same in shared memory, where each vector is read only by the thread that copied it: 32 16-bit numbers, in addition to the floats
/// that they are converted to, would take the registers of too many threads.
template <class T, int width, int vectors>
struct SharedCache {
  static __device__ uint4& slot(int i) { return cache_memory[i * blockDim.x + threadIdx.x]; }

  __device__ void read(int i, bool exists, const T* from_y, const T* from_g) {
    if (exists) {
      cp_async<16>(shared_address(&slot(i)), from_y);
      cp_async<16>(shared_address(&slot(vectors + i)), from_g);
    } else {
      slot(i) = slot(vectors + i) = uint4{};
    }
  }
  __device__ void wait() { cp_async_wait_all(); }
  __device__ uint4 y_at(int i) { return slot(i); }
  __device__ uint4 g_at(int i) { return slot(vectors + i); }
};

constexpr bool is_in_shared(int elements) { return elements == 32; }

template <class T, RowAccess access, int vectors>
__global__ void __launch_bounds__(max_softmax_threads, row_vector_width<T, access>* vectors == 16 ? 2 : 3)
    softmax_grad_by_groups(RowPartition partition, const T* y, const T* g, T* dx, std::int64_t count, std::int64_t row_length) {
  constexpr int width = row_vector_width<T, access>;
  using Group = RowGroup<true, float, 1>;
  __shared__ Group::Exchange exchange;
  Group group(partition, exchange);
  const std::int64_t row = group.first_row(), start = row * row_length;
  const int columns = row < count ? static_cast<int>(row_length) : 0;
  RowColumns own = columns_of<access>(group, columns > 0 ? y + start : nullptr);

  std::conditional_t<is_in_shared(width * vectors), SharedCache<T, width, vectors>, RegisterCache<T, width, vectors>> cache;
#pragma unroll
  for (int i = 0; i < vectors; ++i) cache.read(i, own[i] < columns, y + start + own[i], g + start + own[i]);
  cache.wait();
  float dot = 0;  // sum(g y)
#pragma unroll
  for (int i = 0; i < vectors; ++i) {
    float ys[width], gs[width], sum = 0;
    unpack<T>(cache.y_at(i), ys);
    unpack<T>(cache.g_at(i), gs);
    clear_outside<access>(ys, own[i], columns);
    clear_outside<access>(gs, own[i], columns);
#pragma unroll
    for (int k = 0; k < width; ++k) sum += ys[k] * gs[k];
    dot += sum;
  }
  dot = lanes_all_reduce<PlusOp<float>>(dot, group.lanes());
  if (!group.in_a_warp()) {
    group.wait_for_cluster();
    const auto warps = group.all_gather(dot);
    dot = 0;
    for (unsigned i = threadIdx.x % 32; i < warps.count; i += 32) dot += warps[i];
    dot = warp_all_reduce<PlusOp<float>>(dot);
  }
  launder(own.first);
#pragma unroll
  for (int i = 0; i < vectors; ++i) {
    float ys[width], gs[width];
    unpack<T>(cache.y_at(i), ys);
    unpack<T>(cache.g_at(i), gs);
#pragma unroll
    for (int k = 0; k < width; ++k) ys[k] *= gs[k] - dot;
    if (own[i] < columns) write_row_vector<access>(dx + start + own[i], own[i], columns, ys);
  }
}

/// Rows too long for a cluster, and f64: a block processes a row at a time, in two passes.
template <class T>
__global__ void __launch_bounds__(max_softmax_threads)
    softmax_grad_two_pass(const T* y, const T* g, T* dx, std::int64_t count, std::int64_t columns) {
  using C = compute_t<T>;
  __shared__ C shared;
  for (std::int64_t row = blockIdx.x; row < count; row += gridDim.x) {
    const std::int64_t start = row * columns;
    C dot = 0;  // sum(g y)
#pragma unroll 4
    for (std::int64_t c = threadIdx.x; c < columns; c += blockDim.x) dot += convert<C>(y[start + c]) * convert<C>(g[start + c]);
    dot = block_reduce<PlusOp<C>>(dot);
    if (threadIdx.x == 0) shared = dot;
    __syncthreads();
    dot = shared;
#pragma unroll 4
    for (std::int64_t c = threadIdx.x; c < columns; c += blockDim.x)
      dx[start + c] = convert<T>(convert<C>(y[start + c]) * (convert<C>(g[start + c]) - dot));
    __syncthreads();  // before the next row overwrites `shared`
  }
}

}  // namespace

void AttentionSoftmaxGrad::run(Cuda) const {
  if (dx.numel() == 0) return;
  const std::int64_t columns = y.shape[y.dims() - 1], count = y.numel() / columns;
  dispatch_floats(y.dtype, "attention_softmax_grad", [&]<class T>() {
    if constexpr (!std::is_same_v<T, double>) {
      const RowAccess access = row_access<T>({&y, &g, &dx}, columns);
      const bool long_rows = is_half<T> && (columns > 8192 || access == RowAccess::misaligned);
      if (const auto plan = plan_softmax<T>(columns, access, columns <= 256 ? 8 : 16, long_rows ? 32 : 16, dx.stream)) {
        const RowPartition& partition = plan->partition;
        return with_softmax_layout<T, is_half<T> ? 32 : 16>(*plan, [&]<RowAccess access, int vectors>() {
          const std::size_t shared = is_in_shared(row_vector_width<T, access> * vectors) ? 2 * sizeof(uint4) * vectors : 0;
          launch_rows(softmax_grad_by_groups<T, access, vectors>, partition, blocks_for(count, partition.rows), shared * partition.block(),
                      dx.stream, y.as<const T>(), g.as<const T>(), dx.as<T>(), count, columns);
        });
      }
    }
    const auto [blocks, threads] = looping_grid(count, columns);
    launch(softmax_grad_two_pass<T>, blocks, threads, 0, dx.stream, y.as<const T>(), g.as<const T>(), dx.as<T>(), count, columns);
  });
}

}  // namespace tern::kernels
