#include "cuda/device/vec16.cuh"
#include "cuda/rows/layer_norm.cuh"
#include "cuda/runtime/launch.h"
#include "ops/kernels/layer_norm.h"

// LayerNorm and RMSNorm of rows, with what precedes them in a transformer: s = residual + dropout(x + bias). A team of threads keeps a
// row in registers from its one reading to its one writing. Mean and variance come in one exchange, from the distances to the row's first
// element: a mean of 1e4 takes no digit from a deviation of 1. Only where that element is itself far off is there a second exchange, of
// the distances to the mean then known; and where there is a sum to write, whose first element no other thread knows, the mean is first.
//
// Rows that no team can hold, and f64, which is for gradient checks, go through one plain kernel that reads rows again and again.
namespace tern::kernels {

using namespace gpu;
using namespace gpu::norm;

namespace {

constexpr unsigned max_threads = 512;  ///< of a block: several then share a multiprocessor, and some load while others add up
constexpr unsigned row_block = 128;    ///< threads of a block that holds several rows

template <class T>
struct Forward {
  const T *x, *gamma, *beta, *residual, *bias;  ///< all but x may be null
  T *sum, *y;
  float *mean, *rstd;
  std::int64_t rows;
  int columns;
  float eps, inverse;  ///< inverse: 1 / columns
  bool centered;
  Dropout<float> dropout;
};

/// Elements of a row in a thread: 64 bytes, of which enough are on their way at a time.
template <class T, Alignment alignment>
constexpr int elements_per_thread = alignment == Alignment::single ? 16 : 64 / sizeof(T);

/// Blocks of max_threads on a multiprocessor: what the registers allow.
template <class T, Alignment alignment, bool with_branch, bool walking>
constexpr int blocks_at_once() {
  if (alignment == Alignment::single) return 1;
  return alignment == Alignment::whole && !with_branch && !walking && sizeof(T) == 4 ? 3 : 2;
}

/// with_branch: there is a sum to write. walking: a block or a cluster goes from row to row, and the next row is on its way into shared
/// memory; else it has its rows at once, and other blocks load while it adds up. Whoever walks keeps its part of gamma and beta in shared
/// memory, if there is room for it: the parts of a cluster's blocks are more than the first cache holds.
template <class T, Alignment alignment, bool with_branch, bool walking>
__global__ void __launch_bounds__(max_threads, blocks_at_once<T, alignment, with_branch, walking>())
    normalize_rows(__grid_constant__ const Forward<T> a, const Plan plan) {
  constexpr int width = width_of<T, alignment>, vectors = elements_per_thread<T, alignment> / width, pitch = vectors * 32;
  constexpr bool keeping = walking && !with_branch;
  extern __shared__ uint4 shared[];  // after the exchange, at a multiple of 128 bytes: a copy into it is one transfer for each 128
  __shared__ Exchange exchange;
  Team<true> team(plan, exchange);
  const int columns = a.columns, lead = static_cast<int>(team.thread()) * width, stride = static_cast<int>(team.size()) * width;
  const std::uint64_t position = with_branch ? a.dropout.position() : 0;

  // The vectors of x, and of the residual, of the next row. A warp has them side by side.
  using W = Words<T, width>;
  W* const slots = reinterpret_cast<W*>(shared) + threadIdx.x / 32 * (with_branch ? 2 * pitch : pitch) + threadIdx.x % 32;
  const auto fetch = [&](std::int64_t row) {
    const std::int64_t start = row * columns;
    const int first = lead - skew_of<alignment, width>(start);
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
      if (row < a.rows && first + v * stride < columns) {
        copy_ahead(slots + v * 32, a.x + (start + first) + v * stride);
        if (with_branch && a.residual) copy_ahead(slots + pitch + v * 32, a.residual + (start + first) + v * stride);
      }
    }
    __pipeline_commit();
  };
  const auto leading_of = [&](std::int64_t row) {
    return a.centered && row < a.rows && columns > 0 ? convert<float>(a.x[row * columns]) : 0;
  };
  std::int64_t begin = std::int64_t(team.cluster()) * plan.rows;
  if constexpr (walking) fetch(begin + team.group());
  float next = walking && !with_branch ? leading_of(begin) : 0;

  // Of a parameter, the v-th vectors of the block's threads, and the one before them, of which skewed rows have a part.
  const int chunk = static_cast<int>(blockDim.x) + 1;
  W* const kept = reinterpret_cast<W*>(shared) + blockDim.x * vectors;
  if constexpr (keeping) {
    const int begins = (static_cast<int>(team.rank() * blockDim.x) - 1) * width;
    for (int i = threadIdx.x; i < vectors * chunk; i += blockDim.x) {
      const int c = begins + i / chunk * stride + i % chunk * width;
      if (c < 0 || c >= columns) continue;
      float gamma[width], beta[width];
      read_parameter<Alignment::whole>(a.gamma, 1, c, columns, gamma);
      read_parameter<Alignment::whole>(a.beta, 0, c, columns, beta);
      kept[i] = pack<T>(gamma);
      kept[i + vectors * chunk] = pack<T>(beta);
    }
    __syncthreads();
  }
  team.meet();
  do {
    const std::int64_t row = begin + team.group(), start = row * columns;
    const int existing = row < a.rows ? columns : -width;  // whole warps go on to the end, with rows that do not exist
    const int skew = skew_of<alignment, width>(start), first = lead - skew;
    const std::int64_t at = start + first;
    if constexpr (walking) __pipeline_wait_prior(0);
    W words[vectors] = {}, residual[with_branch ? vectors : 1] = {};
#pragma unroll
    for (int v = 0; v < vectors; ++v)
      if (first + v * stride < existing) words[v] = walking ? slots[v * 32] : read_once<width>(a.x + at + v * stride);
    if (with_branch && a.residual) {
#pragma unroll
      for (int v = 0; v < (with_branch ? vectors : 1); ++v)
        if (first + v * stride < existing) residual[v] = walking ? slots[pitch + v * 32] : read_once<width>(a.residual + at + v * stride);
    }
    const float leading = with_branch ? 0 : walking ? next : leading_of(row);
    begin += std::int64_t(gridDim.x / plan.cluster) * plan.rows;
    if constexpr (walking) fetch(begin + team.group());
    if constexpr (walking && !with_branch) next = leading_of(begin);

    float values[vectors][width], total = 0;
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
      const int column = first + v * stride;
      unpack<T>(words[v], values[v]);
      if (with_branch && column < existing) {
        float terms[width];
        if (a.bias) {
          read_parameter<alignment>(a.bias, 0, column, columns, terms);
#pragma unroll
          for (int k = 0; k < width; ++k) values[v][k] += terms[k];
        }
        if (a.dropout.bound > 0) a.dropout(values[v], at + v * stride, position);
        if (a.residual) {
          unpack<T>(residual[with_branch ? v : 0], terms);
#pragma unroll
          for (int k = 0; k < width; ++k) values[v][k] += terms[k];
        }
        unpack<T>(pack<T>(values[v]), values[v]);
        write_vector<alignment>(a.sum + at + v * stride, column, columns, values[v]);
        clear_outside<alignment>(values[v], column, columns);
      }
      if constexpr (with_branch) {
#pragma unroll
        for (int k = 0; k < width; ++k) total += values[v][k];
      }
    }

    const bool has_first_column = lead == 0 && row < a.rows;
    float shift = 0, mean = 0;  // what is taken off the elements, and that from the first element on
    if (a.centered && with_branch) {
      float leading = values[0][0];
      if (alignment == Alignment::skewed && has_first_column) leading = convert<float>(a.sum[start]);
      shift = team.add_up({total, 0}).x * a.inverse;
      mean = shift - leading;
    } else if (a.centered) {
      shift = leading;
    }
    float rest, variance;
    const auto take_off = [&](float amount) {
      float2 moments{};
#pragma unroll
      for (int v = 0; v < vectors; ++v) {
        if (first + v * stride < existing) {
#pragma unroll
          for (int k = 0; k < width; ++k) values[v][k] -= amount;
          clear_outside<alignment>(values[v], first + v * stride, columns);
#pragma unroll
          for (int k = 0; k < width; ++k) {
            moments.x += values[v][k];
            moments.y += values[v][k] * values[v][k];
          }
        }
      }
      moments = team.add_up(moments);
      rest = a.centered ? moments.x * a.inverse : 0;
      variance = moments.y * a.inverse - rest * rest;
    };
    take_off(shift);
    if (!with_branch && rest * rest > 4 * variance) {  // the first element is far off: digits are lost
      const float known = rest;
      if constexpr (sizeof(T) == 4) {  // those of 16 bits have fewer than are left
#pragma unroll
        for (int v = 0; v < vectors; ++v)
          if (first + v * stride < existing) unpack<T>(read_once<width>(a.x + at + v * stride), values[v]);
        shift += known;
        mean = shift - leading;
        take_off(shift);
      } else {
        mean = known;
        take_off(known);
      }
    }
    const float rstd = rsqrtf((variance < 0 ? 0 : variance) + a.eps);  // by rounding, where the elements are equal
    if (has_first_column) {
      if (a.centered) a.mean[row] = mean + rest;
      a.rstd[row] = rstd;
    }

    const float offset = -rest * rstd;
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
      if (first + v * stride < existing) {
        float gamma[width], beta[width];
        if constexpr (keeping) {
          const auto read = [&](const W* here, float (&parameter)[width]) {
            if constexpr (alignment == Alignment::skewed) unpack<T>(shifted<T, width>(here[0], here[1], skew), parameter);
            else unpack<T>(here[1], parameter);
          };
          const W* const here = kept + v * chunk + threadIdx.x;
          read(here, gamma);
          read(here + vectors * chunk, beta);
        } else {
          read_parameter<alignment>(a.gamma, 1, first + v * stride, columns, gamma);
          read_parameter<alignment>(a.beta, 0, first + v * stride, columns, beta);
        }
#pragma unroll
        for (int k = 0; k < width; ++k) values[v][k] = (values[v][k] * rstd + offset) * gamma[k] + beta[k];
        write_vector<alignment>(a.y + at + v * stride, first + v * stride, columns, values[v]);
      }
    }
  } while (walking && begin < a.rows);
}

/// Operands whose dtype is known at run time, computed in f64.
struct AnyForward {
  const void *x, *gamma, *beta, *residual, *bias;
  void *sum, *y, *mean, *rstd;
  DType dtype, statistics;
  std::int64_t columns;
  double eps;
  bool centered;
  Dropout<double> dropout;

  __device__ double at(const void* data, std::int64_t i) const { return read<AnyFloat>(data, dtype, i); }
};

/// A block per row.
__global__ void __launch_bounds__(block_size) normalize_any(__grid_constant__ const AnyForward a) {
  __shared__ double shared;
  const auto block_sum = [](double value) {
    value = block_reduce<PlusOp<double>>(value);
    if (threadIdx.x == 0) shared = value;
    __syncthreads();
    value = shared;
    __syncthreads();
    return value;
  };
  const std::int64_t row = blockIdx.x, start = row * a.columns;
  const std::uint64_t position = a.dropout.position();
  const void* const s = a.sum ? a.sum : a.x;
  if (a.sum) {
    for (std::int64_t c = threadIdx.x; c < a.columns; c += block_size) {
      double value[1] = {a.at(a.x, start + c)};
      if (a.bias) value[0] += a.at(a.bias, c);
      if (a.dropout.bound > 0) a.dropout(value, start + c, position);
      if (a.residual) value[0] += a.at(a.residual, start + c);
      write<AnyFloat>(a.sum, a.dtype, start + c, value[0]);
    }
    __syncthreads();
  }
  const double shift = a.centered && a.columns > 0 ? a.at(s, start) : 0;
  __syncthreads();  // y may be s
  double mean = 0, squares = 0;
  if (a.centered) {
    for (std::int64_t c = threadIdx.x; c < a.columns; c += block_size) mean += a.at(s, start + c) - shift;
    mean = block_sum(mean) / static_cast<double>(a.columns);
  }
  for (std::int64_t c = threadIdx.x; c < a.columns; c += block_size) {
    const double distance = (a.at(s, start + c) - shift) - mean;
    squares += distance * distance;
  }
  const double rstd = 1 / std::sqrt(block_sum(squares) / static_cast<double>(a.columns) + a.eps);
  if (threadIdx.x == 0) {
    if (a.centered) write<AnyFloat>(a.mean, a.statistics, row, mean);
    write<AnyFloat>(a.rstd, a.statistics, row, rstd);
  }
  for (std::int64_t c = threadIdx.x; c < a.columns; c += block_size) {
    double value = ((a.at(s, start + c) - shift) - mean) * rstd;
    if (a.gamma) value *= a.at(a.gamma, c);
    if (a.beta) value += a.at(a.beta, c);
    write<AnyFloat>(a.y, a.dtype, start + c, value);
  }
}

/// False where a row is too long for any team.
template <class T>
bool normalize_in_registers(const LayerNormArguments& a) {
  const Stream stream = a.y.stream;
  const std::int64_t rows = a.x.shape[0], columns = a.x.shape[1];
  const Alignment alignment = alignment_of<T>(columns, {&a.x, &a.gamma, &a.beta, &a.residual, &a.bias, &a.sum, &a.y});
  constexpr int widest = width_of<T, Alignment::whole>;
  const int elements =
      alignment == Alignment::single ? elements_per_thread<T, Alignment::single> : elements_per_thread<T, Alignment::whole>;
  const Plan plan = plan_rows(columns + (alignment == Alignment::skewed ? widest - 1 : 0), elements,
                              alignment == Alignment::single ? 1 : widest, row_block, 32, max_threads, has_clusters(stream));
  if (plan.threads == 0) return false;
  const Forward<T> forward{a.x.as<const T>(),
                           a.gamma.as<const T>(),
                           a.beta.as<const T>(),
                           a.residual.as<const T>(),
                           a.bias.as<const T>(),
                           a.sum.as<T>(),
                           a.y.as<T>(),
                           a.mean.as<float>(),
                           a.rstd.as<float>(),
                           rows,
                           static_cast<int>(columns),
                           static_cast<float>(a.eps),
                           static_cast<float>(1 / static_cast<double>(columns)),
                           a.centered,
                           Dropout<float>(a.p, a.draws)};
  // Clusters are costly to start; of large blocks too few fit on a multiprocessor for some to load while others add up.
  const bool walking = alignment != Alignment::single && (plan.cluster > 1 || (sizeof(T) < 4 && plan.threads > max_threads / 2));
  const auto kernel_for = [&]<bool with_branch>() {
    if (alignment == Alignment::single) return normalize_rows<T, Alignment::single, with_branch, false>;
    if (alignment == Alignment::skewed)
      return walking ? normalize_rows<T, Alignment::skewed, with_branch, true> : normalize_rows<T, Alignment::skewed, with_branch, false>;
    return walking ? normalize_rows<T, Alignment::whole, with_branch, true> : normalize_rows<T, Alignment::whole, with_branch, false>;
  };
  const auto kernel = a.sum.data ? kernel_for.template operator()<true>() : kernel_for.template operator()<false>();
  unsigned clusters = blocks_for(rows, plan.rows);
  std::size_t shared = 0;
  if (walking) {
    shared = plan.block() * elements * sizeof(T) * 2;                         // with the residual's vectors
    if (!a.sum.data) shared = (3 * plan.block() + 2) * elements * sizeof(T);  // with gamma's and beta's
    use(stream);
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)), "cudaFuncSetAttribute");
    clusters = std::min(clusters, clusters_at_once(reinterpret_cast<const void*>(kernel), plan, shared, stream));
  }
  launch_plan(kernel, clusters, plan, shared, stream, forward, plan);
  return true;
}

}  // namespace

void layer_norm(Cuda, const LayerNormArguments& a) {
  if (a.x.shape[0] == 0) return;
  bool done = false;
  const bool is_short = dispatch_short_floats(a.x.dtype, [&]<class T>() { done = normalize_in_registers<T>(a); });
  if (done) return;
  const AnyForward any{a.x.data,
                       a.gamma.data,
                       a.beta.data,
                       a.residual.data,
                       a.bias.data,
                       a.sum.data,
                       a.y.data,
                       a.mean.data,
                       a.rstd.data,
                       a.x.dtype,
                       is_short ? DType::f32 : DType::f64,
                       a.x.shape[1],
                       a.eps,
                       a.centered,
                       Dropout<double>(a.p, a.draws)};
  launch(normalize_any, blocks_for(a.x.shape[0], 1), block_size, 0, a.y.stream, any);
}

}  // namespace tern::kernels
