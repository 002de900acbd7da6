#include "cuda/layer_norm.cuh"

#include "ops/kernels/layer_norm.h"

// LayerNorm and RMSNorm of rows, with what precedes them in a transformer: s = residual + dropout(x + bias). A team of threads keeps a
// row in registers from its one reading to its one writing. The mean comes first and then, from the distances to it, what is left of
// the mean and the variance in one exchange: nothing cancels, and of a mean of 1e4 no digit is lost that a deviation of 1 would miss.
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
  unsigned columns;
  float eps, inverse;  ///< inverse: 1 / columns
  bool centered;
  Dropout<float> dropout;
};

/// Elements of a row in a thread: 64 bytes, of which enough are on their way at a time.
template <class T, int width>
constexpr int elements_per_thread = width == 1 ? 16 : 64 / sizeof(T);

/// with_branch: there is a sum to write. walking: a block or a cluster goes from row to row, and the next row is on its way into shared
/// memory; else it has its rows at once, and other blocks load while it adds up.
template <class T, int width, bool with_branch, bool walking>
__global__ void __launch_bounds__(max_threads, width == 1 ? 1 : with_branch || sizeof(T) < 4 ? 2 : 3)
    normalize_rows(__grid_constant__ const Forward<T> a, const Plan plan) {
  constexpr int vectors = elements_per_thread<T, width> / width, pitch = vectors * 32;
  extern __shared__ uint4 shared[];  // after the exchanges, at a multiple of 128 bytes: a copy into it is one transfer for each 128
  __shared__ Exchange exchanges[2];
  static_assert(sizeof exchanges % 128 == 0);
  Team<true> team(plan, exchanges);
  const unsigned first = team.thread() * width, stride = team.size() * width;
  const std::uint64_t position = with_branch ? a.dropout.position() : 0;

  // The vectors of x, and of the residual, of the next row. A warp has them side by side.
  using W = Words<T, width>;
  W* const slots = reinterpret_cast<W*>(shared) + threadIdx.x / 32 * (with_branch ? 2 * pitch : pitch) + threadIdx.x % 32;
  const auto fetch = [&](std::int64_t row) {
    const std::int64_t start = row * a.columns + first;
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
      if (row < a.rows && first + v * stride < a.columns) {
        copy_ahead(slots + v * 32, a.x + start + v * stride);
        if (with_branch && a.residual) copy_ahead(slots + pitch + v * 32, a.residual + start + v * stride);
      }
    }
    __pipeline_commit();
  };
  std::int64_t begin = std::int64_t(team.cluster()) * plan.rows;
  if constexpr (walking) fetch(begin + team.group());
  team.meet();
  do {
    const std::int64_t row = begin + team.group(), start = row * a.columns + first;
    const unsigned columns = row < a.rows ? a.columns : 0;  // whole warps go on to the end, with rows that do not exist
    if constexpr (walking) __pipeline_wait_prior(0);
    W words[vectors] = {}, residual[with_branch ? vectors : 1] = {};
#pragma unroll
    for (int v = 0; v < vectors; ++v)
      if (first + v * stride < columns) words[v] = walking ? slots[v * 32] : read_once<width>(a.x + start + v * stride);
    if (with_branch && a.residual) {
#pragma unroll
      for (int v = 0; v < (with_branch ? vectors : 1); ++v)
        if (first + v * stride < columns) residual[v] = walking ? slots[pitch + v * 32] : read_once<width>(a.residual + start + v * stride);
    }
    begin += std::int64_t(gridDim.x / plan.cluster) * plan.rows;
    if constexpr (walking) fetch(begin + team.group());

    float values[vectors][width], total = 0;
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
      unpack<T>(words[v], values[v]);
      if (with_branch && first + v * stride < columns) {
        float terms[width];
        if (a.bias) {
          read_parameter(a.bias + first + v * stride, 0, terms);
#pragma unroll
          for (int k = 0; k < width; ++k) values[v][k] += terms[k];
        }
        if (a.dropout.bound > 0) a.dropout(values[v], start + v * stride, position);
        if (a.residual) {
          unpack<T>(residual[with_branch ? v : 0], terms);
#pragma unroll
          for (int k = 0; k < width; ++k) values[v][k] += terms[k];
        }
        const auto rounded = pack<T>(values[v]);
        *reinterpret_cast<W*>(a.sum + start + v * stride) = rounded;
        unpack<T>(rounded, values[v]);
      }
#pragma unroll
      for (int k = 0; k < width; ++k) total += values[v][k];
    }

    // Whatever is taken off the elements, the mean of what is left shows how much too little or too much it was.
    const float rough = a.centered ? team.add_up({total, 0}).x * a.inverse : 0, leading = values[0][0];
    float2 moments{};
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
      if (first + v * stride < columns) {
#pragma unroll
        for (int k = 0; k < width; ++k) {
          values[v][k] -= rough;
          moments.x += values[v][k];
          moments.y += values[v][k] * values[v][k];
        }
      }
    }
    moments = team.add_up(moments);
    const float rest = a.centered ? moments.x * a.inverse : 0, variance = moments.y * a.inverse - rest * rest;
    const float rstd = rsqrtf((variance < 0 ? 0 : variance) + a.eps);  // by rounding, where the elements are equal
    if (first == 0 && row < a.rows) {
      if (a.centered) a.mean[row] = (rough - leading) + rest;
      a.rstd[row] = rstd;
    }

    const float offset = -rest * rstd;
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
      if (first + v * stride < columns) {
        float gamma[width], beta[width];
        read_parameter(a.gamma ? a.gamma + first + v * stride : nullptr, 1, gamma);
        read_parameter(a.beta ? a.beta + first + v * stride : nullptr, 0, beta);
#pragma unroll
        for (int k = 0; k < width; ++k) values[v][k] = (values[v][k] * rstd + offset) * gamma[k] + beta[k];
        write_vector(a.y + start + v * stride, values[v]);
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
  constexpr int widest = 16 / sizeof(T);
  const Stream stream = a.y.stream;
  const std::int64_t rows = a.x.shape[0], columns = a.x.shape[1];
  const bool aligned = are_aligned<T>(columns, {&a.x, &a.gamma, &a.beta, &a.residual, &a.bias, &a.sum, &a.y});
  const int elements = aligned ? elements_per_thread<T, widest> : elements_per_thread<T, 1>;
  const Plan plan = plan_rows(columns, elements, aligned ? widest : 1, row_block, 32, max_threads, has_clusters(stream));
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
                           static_cast<unsigned>(columns),
                           static_cast<float>(a.eps),
                           static_cast<float>(1 / static_cast<double>(columns)),
                           a.centered,
                           Dropout<float>(a.p, a.draws)};
  // Clusters are costly to start; of large blocks too few fit on a multiprocessor for some to load while others add up.
  const bool walking = aligned && (plan.cluster > 1 || (sizeof(T) < 4 && plan.threads > max_threads / 2));
  const auto kernel_for = [&]<bool with_branch>() {
    return walking ? normalize_rows<T, widest, with_branch, true>
           : aligned ? normalize_rows<T, widest, with_branch, false> : normalize_rows<T, 1, with_branch, false>;
  };
  const auto kernel = a.sum.data ? kernel_for.template operator()<true>() : kernel_for.template operator()<false>();
  unsigned clusters = blocks_for(rows, plan.rows);
  std::size_t shared = 0;
  if (walking) {
    shared = plan.block() * elements * sizeof(T) * (a.sum.data ? 2 : 1);
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
  const AnyForward any{a.x.data,   a.gamma.data, a.beta.data, a.residual.data, a.bias.data,
                       a.sum.data, a.y.data,     a.mean.data, a.rstd.data,     a.x.dtype,
                       is_short ? DType::f32 : DType::f64, a.x.shape[1], a.eps, a.centered, Dropout<double>(a.p, a.draws)};
  launch(normalize_any, blocks_for(a.x.shape[0], 1), block_size, 0, a.y.stream, any);
}

}  // namespace tern::kernels
