#include "cuda/device/indexer.cuh"
#include "cuda/device/vec16.cuh"
#include "cuda/reduce/reduce_ops.cuh"
#include "cuda/rows/attention_softmax.cuh"
#include "cuda/runtime/dispatch.h"
#include "cuda/runtime/launch.h"
#include "ops/kernels/attention_softmax.h"
#include "tensor/dispatch.h"

// Softmax with the masks of attention. Columns behind the causal limit are not read. Note [Padding and the cache]: scores pass by the
// first-level cache, so that the padding of a batch, which all of its rows read, stays there.
namespace tern::kernels {

using namespace gpu;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

/// What a row sees: the columns before a limit whose padding is not hidden.
template <class C>
struct Sight {
  const C* padding = nullptr;  ///< null: nothing is added
  std::int64_t limit = 0;

  __device__ bool operator()(std::int64_t column) const { return column < limit && (!padding || padding[column] > C(hidden_padding)); }
};

/// Out of line: 64-bit division is long, and rarely needed.
__device__ __noinline__ std::int64_t divide_slowly(std::int64_t n, std::int64_t divisor) { return n / divisor; }

/// The rows of the scores, and SoftmaxMask.
template <class C>
struct Rows {
  std::int64_t count, columns, queries, rows_per_batch;
  const C* padding;
  const std::int64_t* prefix;
  bool causal;
  bool many = count > 0x7fffffff;  ///< too many for the dividers
  Divider by_batch{rows_per_batch}, by_queries{queries};

  __device__ std::int64_t divide(std::int64_t row, Divider by, std::int64_t divisor) const {
    return many ? divide_slowly(row, divisor) : by.divide(static_cast<std::uint32_t>(row));
  }

  __device__ Sight<C> sight(std::int64_t row) const {
    Sight<C> result{nullptr, columns};
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

/// 2^x within 2 units in the last place; denormal results are 0.
__device__ __forceinline__ float exp2_of(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

/// Note [Exponentials]: exp(x - m) for the largest score m is 2^(ax - am) with a = log2(e): one multiplication and addition and one
/// special function. am is rounded, but alike for all scores, so what that does to them cancels in the division by their sum. Where
/// |m| is so large that it might overflow instead, scores are equal or so far apart that only the largest count, and a = 1/2 does:
/// then am is exact.
struct Exponent {
  float a, am;

  /// Where m is -inf nothing is seen, and the exponentials are 0 whatever is subtracted.
  __device__ explicit Exponent(float m) : a(fabsf(m) < 0x1p30f || m == -infinity ? 1.44269504f : 0.5f), am(m == -infinity ? 0 : a * m) {}

  __device__ float operator()(float x) const { return exp2_of(fmaf(x, a, -am)); }
  /// What turns exponentials relative to this maximum into those relative to a larger one.
  __device__ float factor_for(const Exponent& larger) const { return a == larger.a ? exp2_of(am - larger.am) : 0.f; }
};

constexpr int elements_in_shared = 64;

/// A maximum to subtract: where it is -inf, nothing is seen, and the exponentials are 0 whatever is subtracted.
template <class C>
__device__ __forceinline__ C shift_for(C maximum) {
  return maximum == -std::numeric_limits<C>::infinity() ? C(0) : maximum;
}

/// A row in which a NaN is seen; this thread writes every `stride`th column from `first` on. Out of line, since it is rare.
template <class T, class C>
__device__ __noinline__ void write_nan(T* y, const Rows<C>& rows, std::int64_t row, std::int64_t first, std::int64_t stride) {
  const Sight<C> sees = rows.sight(row);
  for (std::int64_t c = first; c < rows.columns; c += stride)
    y[row * rows.columns + c] = convert<T>(sees(c) ? std::numeric_limits<C>::quiet_NaN() : C(0));
}

/// A thread's scores of a row, -inf where they are hidden.
template <bool aligned, class T, int width, int vectors>
__device__ __forceinline__ void make_scores(const Word<T, width> (&words)[vectors], const Sight<float>& sees, int columns, Place& place,
                                            float (&scores)[vectors][width]) {
  const int limit = static_cast<int>(sees.limit);
  if (sees.padding) {
    // Loads of 16 numbers at a time: enough to wait once for several, and few enough for the registers.
    constexpr int group = 16 / width < vectors ? 16 / width : vectors;
#pragma unroll
    for (int begin = 0; begin < vectors; begin += group) {
      Vector<float, width> padding[group] = {};
#pragma unroll
      for (int i = 0; i < group; ++i) {
        const int c = place.column(begin + i);
        if constexpr (aligned) {
          if (c < limit) padding[i] = read_vector<width>(sees.padding + c);
        } else {
#pragma unroll
          for (int k = 0; k < width; ++k)
            if (is_within(c + k, limit)) padding[i].values[k] = sees.padding[c + k];
        }
      }
#pragma unroll
      for (int i = 0; i < group; ++i) {
        float values[width];
        unpack<T, width>(words[begin + i], values);
#pragma unroll
        for (int k = 0; k < width; ++k)
          scores[begin + i][k] = padding[i].values[k] > hidden_padding ? values[k] + padding[i].values[k] : -infinity;
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < vectors; ++i) unpack<T, width>(words[i], scores[i]);
  }
  if (width > 1 && (!aligned || limit < columns)) {
    place.forget_columns();
#pragma unroll
    for (int i = 0; i < vectors; ++i)
#pragma unroll
      for (int k = 0; k < width; ++k)
        if (!is_within(place.column(i) + k, limit)) scores[i][k] = -infinity;
  }
}

/// What makes probabilities of the exponentials of this warp, which are relative to its own largest score `top` and have the sum
/// `total`. So one exchange tells the row's maximum and its sum.
__device__ __forceinline__ float scale_of(float top, const Exponent& exponential, float total, Parts<float2>& parts, Team team) {
  if (team.in_a_warp()) return total == 0 ? 0.f : 1 / total;
  const unsigned count = exchange(parts, float2{top, total}, team), lane = threadIdx.x % 32;
  float row_top = -infinity, row_total = 0;
  for (unsigned i = lane; i < count; i += 32) row_top = fmaxf(row_top, parts.values[i].x);
  const Exponent of_row(max_of_lanes(row_top, 32));
  for (unsigned i = lane; i < count; i += 32)
    if (const auto [part_top, part] = parts.values[i]; part != 0) row_total += part * Exponent(part_top).factor_for(of_row);
  row_total = sum_of_lanes(row_total, 32);
  if (row_total == 0) return 0;
  return (total == 0 ? 1.f : exponential.factor_for(of_row)) / row_total;
}

template <class T, int width, int vectors, bool aligned>
__global__ void __launch_bounds__(most_threads, width* vectors <= 8 ? 3 : 2)
    softmax_of_teams(Team team, const T* x, T* y, __grid_constant__ const Rows<float> rows) {
  __shared__ Parts<float2> parts;
  announce(team);
  Place place(team);
  const bool exists = place.row < rows.count;
  const Sight<float> sees = exists ? rows.sight(place.row) : Sight<float>{};
  const int columns = exists ? static_cast<int>(rows.columns) : 0;
  const std::int64_t start = place.row * rows.columns;
  place.divide<width, aligned>(exists ? x + start : nullptr);

  Word<T, width> words[vectors];
#pragma unroll
  for (int i = 0; i < vectors; ++i) {
    words[i] = repeat<width>(T(-infinity));
    if (place.column(i) < sees.limit) words[i] = read_once<width>(x + start + place.column(i));
  }
  place.forget_columns();
  float values[vectors][width];
  make_scores<aligned, T>(words, sees, columns, place, values);

  float top = -infinity;
#pragma unroll
  for (int i = 0; i < vectors; ++i)
#pragma unroll
    for (int k = 0; k < width; ++k) top = fmaxf(top, values[i][k]);
  top = max_of_lanes(top, team.lanes());
  const Exponent exponential(top);
  float total = 0;
#pragma unroll
  for (int i = 0; i < vectors; ++i) {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < width; ++k) sum += values[i][k] = exponential(values[i][k]);
    total += sum;
  }
  total = sum_of_lanes(total, team.lanes());

  const float scale = scale_of(top, exponential, total, parts, team);
  place.forget_columns();
  if (isnan(scale)) return write_nan(y, rows, place.row, (place.first + width - 1) / width, place.stride / width);
#pragma unroll
  for (int i = 0; i < vectors; ++i) {
#pragma unroll
    for (int k = 0; k < width; ++k) values[i][k] *= scale;
    write_vector<aligned>(y + start, place.column(i), columns, values[i]);
  }
}

/// Long rows of 16-bit numbers without padding. In registers, which hold them as floats, too little of them would be under way to
/// keep the memory busy. Here a row lies in shared memory as it came, each vector where only the thread that copied it reads; the
/// exponentials are computed twice.
template <class T, bool aligned>
__global__ void __launch_bounds__(most_threads, 3)
    softmax_in_shared(Team team, const T* x, T* y, __grid_constant__ const Rows<float> rows) {
  constexpr int width = 8, vectors = elements_in_shared / width;
  __shared__ Parts<float2> parts;
  extern __shared__ uint4 copies[];
  const auto slot = [&](int i) -> uint4& { return copies[i * blockDim.x + threadIdx.x]; };
  announce(team);
  Place place(team);
  const std::int64_t start = place.row * rows.columns;
  place.divide<width, aligned>(x + start);
  const auto columns = static_cast<int>(rows.columns), limit = static_cast<int>(rows.sight(place.row).limit);
#pragma unroll
  for (int i = 0; i < vectors; ++i) {
    if (place.column(i) < limit) copy_async(slot(i), x + start + place.column(i));
    else slot(i) = repeat<width>(T(-infinity));
  }
  await_copies();
  if (!aligned || limit < columns) {
#pragma unroll 1
    for (int i = 0; i < vectors; ++i) {
      if (is_vector_within<width, false>(place.column(i), limit)) continue;
      T* const elements = reinterpret_cast<T*>(&slot(i));
      for (int k = 0; k < width; ++k)
        if (!is_within(place.column(i) + k, limit)) elements[k] = T(-infinity);
    }
  }

  float top = -infinity, total = 0, values[width];
#pragma unroll
  for (int i = 0; i < vectors; ++i) {
    unpack<T, width>(slot(i), values);
#pragma unroll
    for (int k = 0; k < width; ++k) top = fmaxf(top, values[k]);
  }
  top = max_of_lanes(top, 32);
  const Exponent exponential(top);
  __syncwarp();  // not for its waiting: the compiler would keep in registers, of which there are too few, what is to be read again
#pragma unroll
  for (int i = 0; i < vectors; ++i) {
    unpack<T, width>(slot(i), values);
    float sum = 0;
#pragma unroll
    for (int k = 0; k < width; ++k) sum += exponential(values[k]);
    total += sum;
  }
  const float scale = scale_of(top, exponential, sum_of_lanes(total, 32), parts, team);
  if (isnan(scale)) return write_nan(y, rows, place.row, (place.first + width - 1) / width, place.stride / width);
#pragma unroll
  for (int i = 0; i < vectors; ++i) {
    unpack<T, width>(slot(i), values);
#pragma unroll
    for (int k = 0; k < width; ++k) values[k] = exponential(values[k]) * scale;
    write_vector<aligned>(y + start, place.column(i), columns, values);
  }
}

/// Rows too long for the largest team, and f64: a block per row at a time, two readings.
template <class T>
__global__ void __launch_bounds__(most_threads) softmax_in_two_readings(const T* x, T* y, __grid_constant__ const Rows<compute_t<T>> rows) {
  using C = compute_t<T>;
  using Op = LogSumExpOp<C>;
  __shared__ ScaledSum<C> shared;
  for (std::int64_t n = blockIdx.x; n < rows.count; n += gridDim.x) {
    const T* const row = x + n * rows.columns;
    T* const out = y + n * rows.columns;
    const Sight<C> sees = rows.sight(n);
    const auto score = [&](std::int64_t c) { return convert<C>(row[c]) + (sees.padding ? sees.padding[c] : C(0)); };
    auto statistic = Op::identity();
#pragma unroll 4
    for (std::int64_t c = threadIdx.x; c < sees.limit; c += blockDim.x)
      if (sees(c)) Op::add(statistic, score(c));
    statistic = block_reduce<Op>(statistic);
    if (threadIdx.x == 0) shared = statistic;
    __syncthreads();
    const auto [top, total] = shared;
    if (isnan(total) || top == std::numeric_limits<C>::infinity()) {
      write_nan(y, rows, n, threadIdx.x, blockDim.x);
    } else {
      const C scale = total == 0 ? C(0) : C(1) / total, shift = shift_for(top);
#pragma unroll 4
      for (std::int64_t c = threadIdx.x; c < rows.columns; c += blockDim.x)
        out[c] = convert<T>(sees(c) ? std::exp(score(c) - shift) * scale : C(0));
    }
    __syncthreads();  // the next row overwrites what is shared
  }
}

template <class T>
void softmax_by_plan(const Plan& plan, const View& x, const View& y, const Rows<float>& rows) {
  with_layout<T, 32>(plan, [&]<int width, int vectors, bool aligned>() {
    launch_teams(softmax_of_teams<T, width, vectors, aligned>, plan, rows.count, 0, y.stream, x.as<const T>(), y.as<T>(), rows);
  });
}

template <class T>
void softmax_of_long_rows(const View& x, const View& y, const Rows<compute_t<T>>& rows) {
  const auto [blocks, threads] = looping_grid(rows.count, rows.columns);
  launch(softmax_in_two_readings<T>, blocks, threads, 0, y.stream, x.as<const T>(), y.as<T>(), rows);
}

}  // namespace

void attention_softmax(Cuda, const View& x, const SoftmaxMask& mask, const View& y) {
  if (y.numel() == 0) return;
  const std::int64_t columns = x.shape[x.dims() - 1], queries = x.shape[x.dims() - 2], count = x.numel() / columns;
  const std::int64_t rows_per_batch = x.dims() > 2 ? count / x.shape[0] : count;
  dispatch_floats(x.dtype, "attention_softmax", [&]<class T>() {
    using C = compute_t<T>;
    const Rows<C> rows{count,      columns, queries, rows_per_batch, mask.padding.as<const C>(), mask.prefix.as<const std::int64_t>(),
                       mask.causal};
    if constexpr (!std::is_same_v<T, double>) {
      Rowwise kind = rowwise<T>({x, y}, columns);
      if (kind == Rowwise::aligned && !is_aligned(rows.padding, 16 / sizeof(T) * sizeof(float))) kind = Rowwise::skewed;
      if constexpr (is_half<T>) {
        if (columns > 8192 && !rows.padding && kind != Rowwise::single) {
          if (const auto plan = plan_for<T>(columns, kind, elements_in_shared, elements_in_shared, y.stream))
            return launch_teams(kind == Rowwise::aligned ? softmax_in_shared<T, true> : softmax_in_shared<T, false>, *plan, count,
                                elements_in_shared * sizeof(T), y.stream, x.as<const T>(), y.as<T>(), rows);
        }
      }
      // Enough of a row in each thread to keep the memory busy, and no more than it takes, since small teams waste less.
      const int elements = is_half<T> ? (columns <= 64 ? 16 : 32) : columns <= 256 ? 8 : columns <= 6144 ? 16 : 32;
      if (const auto plan = plan_for<T>(columns, kind, elements, 32, y.stream)) return softmax_by_plan<T>(*plan, x, y, rows);
    }
    softmax_of_long_rows<T>(x, y, rows);
  });
}

}  // namespace tern::kernels
