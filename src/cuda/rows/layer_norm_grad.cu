#include <numeric>

#include "cuda/device/vec16.cuh"
#include "cuda/reduce/deferred_sums.h"
#include "cuda/rows/layer_norm.cuh"
#include "cuda/runtime/launch.h"
#include "ops/kernels/layer_norm.h"

// The gradient of layer_norm in one reading of s and g and one writing of dx. About as many blocks as run at once walk over the rows;
// a thread has the same columns of all of them, so it adds up dgamma, dbeta and dbias in registers. What the blocks have added up, a
// second, small kernel adds up. So that memory never waits while a row is added up, the next rows are on their way into shared memory:
// each thread reads back only what it asked for itself, which needs no barrier.
//
// Rows that no team can hold, and f64, which is for gradient checks, go through plain kernels that read them several times.
namespace tern::kernels {

using namespace gpu;
using namespace gpu::norm;

namespace {

constexpr unsigned max_threads = 512;  ///< of a block, which has a multiprocessor for itself: its threads have 128 registers each

template <class T>
struct Backward {
  const T *s, *gamma, *g, *g_sum;  ///< gamma and g_sum may be null
  const float *mean, *rstd;        ///< mean: null where rows were not centered
  T *dx, *dbranch;
  float* partials;  ///< (clusters, 3 or 2, columns): of dgamma, dbeta and dbias; null where none is asked for
  std::int64_t rows;
  std::int64_t share, end;  ///< cluster c has rows from c / period share on, below that + end, every `step`th for each of its teams
  std::int64_t step;
  unsigned period;             ///< and of these those of c % period, a team's neighbours in its block being as far apart
  std::int64_t stride, ahead;  ///< elements in a step, and to the row that is fetched while one is worked on
  int columns;
  float inverse;  ///< 1 / columns
  Dropout<float> dropout;
};

/// Elements of a row in a thread.
constexpr int elements_per_thread = 16;
/// Rows of operands that are on their way or worked on: three times s and g, or twice s, g and g_sum.
constexpr int slots = 6;

/// What is known of a row, as it lies in memory. It is read a row ahead, and nothing is computed with it before it is needed.
template <class T>
struct Statistics {
  T shift{};
  float mean = 0, rstd = 0;
};

/// What a row's elements are normalized with: u = (s - center) rstd + rest. The center is the mean, rounded; rest makes up for that.
struct Moments {
  float center, rest, rstd;

  /// The sum of shift and mean to twice the digits: Knuth's two-sum.
  template <class T>
  __device__ explicit Moments(const Statistics<T>& row) : rstd(row.rstd) {
    const float shift = convert<float>(row.shift);
    center = shift + row.mean;
    const float added = center - shift;
    rest = -((shift - (center - added)) + (row.mean - added)) * rstd;
  }
};

/// with_branch: dbranch or dbias is asked for. Skewed rows of one block all begin equally far from a vector's beginning, so that here,
/// too, a thread's columns stay the same.
template <class T, Alignment alignment, bool with_branch>
__global__ void __launch_bounds__(max_threads, 1) differentiate_rows(__grid_constant__ const Backward<T> a, const Plan plan) {
  constexpr int width = width_of<T, alignment>, vectors = elements_per_thread / width, sums = with_branch ? 3 : 2, pitch = vectors * 32;
  extern __shared__ uint4 shared[];  // after the exchange, at a multiple of 128 bytes: a copy into it is one transfer for each 128
  __shared__ Exchange exchange;
  Team<false> team(plan, exchange);
  const unsigned turn = team.cluster() / a.period;
  const std::int64_t begin = turn * a.share + (team.cluster() - turn * a.period), end = min(turn * a.share + a.end, a.rows);
  const int lead = static_cast<int>(team.thread()) * width, stride = static_cast<int>(team.size()) * width;
  const int first = lead - skew_of<alignment, width>(begin * a.columns);
  // Of this thread's columns first + v stride those with v < count exist, and of its rows the first `rounds`.
  const int count = first < a.columns ? min((a.columns - first + stride - 1) / stride, vectors) : 0;
  std::int64_t row = begin + team.group() * a.period;
  const auto rounds = static_cast<unsigned>(row < end ? (end - row + a.step - 1) / a.step : 0);
  std::int64_t at = row * a.columns + first;

  // A warp has its slots side by side, so that the distances are constants.
  using W = Words<T, width>;
  W* const ring = reinterpret_cast<W*>(shared) + threadIdx.x / 32 * (slots * pitch) + threadIdx.x % 32;
  const unsigned stage_pitch = (a.g_sum ? 3 : 2) * pitch;
  const auto fetch = [&](unsigned round, std::int64_t from, unsigned stage) {
    if (round < rounds) {
#pragma unroll
      for (int v = 0; v < vectors; ++v) {
        if (v < count) {
          copy_ahead(ring + stage + v * 32, a.s + from + v * stride);
          copy_ahead(ring + stage + pitch + v * 32, a.g + from + v * stride);
          if (a.g_sum) copy_ahead(ring + stage + 2 * pitch + v * 32, a.g_sum + from + v * stride);
        }
      }
    } else {
#pragma unroll
      for (int v = 0; v < 2 * vectors; ++v) ring[stage + v * 32] = W{};
    }
    __pipeline_commit();
  };
  const auto statistics_of = [&](unsigned round, std::int64_t of, std::int64_t start) {
    Statistics<T> known;
    if (round < rounds) {
      if (a.mean) known.shift = a.s[start], known.mean = a.mean[of];
      known.rstd = a.rstd[of];
    }
    return known;
  };

  // Rows and columns that do not exist are zeros, which add nothing.
  if (count < vectors) {
    for (int i = 0; i < slots * vectors; ++i) ring[i * 32] = W{};
  }
  for (unsigned i = 0; i * stage_pitch < slots * pitch; ++i) fetch(i, at + i * a.stride, i * stage_pitch);
  Statistics<T> next = statistics_of(0, row, at - first);
  float gamma[vectors][width], totals[sums][vectors][width] = {};
#pragma unroll
  for (int v = 0; v < vectors; ++v) {
    read_parameter<alignment>(v < count ? a.gamma : nullptr, 1, first + v * stride, a.columns, gamma[v]);
    clear_outside<alignment>(gamma[v], first + v * stride, a.columns);  // what lies there may be no number
  }
  const std::uint64_t position = with_branch ? a.dropout.position() : 0;
  team.meet();

  // The teams of a warp go round together.
  const unsigned warp_rounds = __shfl_sync(whole_warp, rounds, 0);
  unsigned stage = 0;
  for (unsigned round = 0; round < warp_rounds; ++round) {
    const Moments m(next);
    row += a.step;
    next = statistics_of(round + 1, row, at + a.stride - first);
    if (a.g_sum) __pipeline_wait_prior(1);
    else __pipeline_wait_prior(2);
    float u[vectors][width], h[vectors][width];
    float2 means{};
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
      float g[width];
      unpack<T>(ring[stage + v * 32], u[v]);
      unpack<T>(ring[stage + pitch + v * 32], g);
      clear_outside<alignment>(u[v], first + v * stride, a.columns);
      clear_outside<alignment>(g, first + v * stride, a.columns);
#pragma unroll
      for (int k = 0; k < width; ++k) {
        u[v][k] = (u[v][k] - m.center) * m.rstd + m.rest;
        h[v][k] = g[k] * gamma[v][k];
        totals[0][v][k] += g[k] * u[v][k];
        totals[1][v][k] += g[k];
        means.x += h[v][k];
        means.y += h[v][k] * u[v][k];
      }
    }
    if (!a.g_sum) fetch(round + 3, at + a.ahead, stage);
    means = team.add_up(means);
    const float less = a.mean ? -m.rstd * (means.x * a.inverse) : 0, slope = -m.rstd * (means.y * a.inverse);
    if (round < rounds) {
#pragma unroll
      for (int v = 0; v < vectors; ++v) {
        if (v < count) {
          const int column = first + v * stride;
          float dx[width];
#pragma unroll
          for (int k = 0; k < width; ++k) dx[k] = u[v][k] * slope + (h[v][k] * m.rstd + less);
          if (a.g_sum) {
            float more[width];
            unpack<T>(ring[stage + 2 * pitch + v * 32], more);
#pragma unroll
            for (int k = 0; k < width; ++k) dx[k] += more[k];
          }
          write_vector<alignment>(a.dx + at + v * stride, column, a.columns, dx);
          if constexpr (with_branch) {
            if (a.dropout.bound > 0) {
              a.dropout(dx, at + v * stride, position);
              write_vector<alignment>(a.dbranch + at + v * stride, column, a.columns, dx);
            }
#pragma unroll
            for (int k = 0; k < width; ++k) totals[2][v][k] += dx[k];
          }
        }
      }
    }
    if (a.g_sum) fetch(round + 2, at + a.ahead, stage);
    at += a.stride;
    stage += stage_pitch;
    if (stage == slots * pitch) stage = 0;
  }

  if (!a.partials) return;
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");  // what adds up the parts may get ready
#endif
  float* const partials = a.partials + std::int64_t(team.cluster()) * sums * a.columns;
  const auto leave = [&](float* sums_of_row, const float (&values)[vectors][width]) {
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
      if (v >= count) continue;
      if constexpr (alignment == Alignment::whole) {
        *reinterpret_cast<Vector<float, width>*>(sums_of_row + first + v * stride) =
            reinterpret_cast<const Vector<float, width>&>(values[v]);
      } else {
#pragma unroll
        for (int k = 0; k < width; ++k)
          if (static_cast<unsigned>(first + v * stride + k) < static_cast<unsigned>(a.columns))
            sums_of_row[first + v * stride + k] = values[v][k];
      }
    }
  };
  if (plan.rows == 1) {
#pragma unroll
    for (int k = 0; k < sums; ++k) leave(partials + k * a.columns, totals[k]);
    return;
  }
  // The teams of a warp, then those of a block, which leave their sums where the rows were.
  __pipeline_wait_prior(0);
  auto* const pool = reinterpret_cast<float*>(shared);
  const unsigned team_warps = max(plan.threads / 32, 1u), parts = blockDim.x / 32 / team_warps, part = threadIdx.x / 32 / team_warps;
#pragma unroll
  for (int k = 0; k < sums; ++k) {
    for (unsigned lanes = plan.threads; lanes < 32; lanes *= 2) {
#pragma unroll
      for (int v = 0; v < vectors; ++v) {
#pragma unroll
        for (int i = 0; i < width; ++i) totals[k][v][i] += shuffle_xor(totals[k][v][i], lanes);
      }
    }
    __syncthreads();
    if (!team.in_a_warp() || threadIdx.x % 32 < plan.threads) leave(pool + part * a.columns, totals[k]);
    __syncthreads();
    for (int c = threadIdx.x; c < a.columns; c += blockDim.x) {
      float sum = 0;
#pragma unroll 4
      for (unsigned i = 0; i < parts; ++i) sum += pool[i * a.columns + c];
      partials[k * a.columns + c] = sum;
    }
  }
}

/// Operands whose dtype is known at run time, computed in f64.
struct AnyBackward {
  const void *s, *gamma, *mean, *rstd, *g, *g_sum;
  void *dx, *dbranch;
  DType dtype, statistics;
  std::int64_t rows, columns;
  bool centered;
  Dropout<double> dropout;

  __device__ double at(const void* data, std::int64_t i) const { return read<AnyFloat>(data, dtype, i); }
  __device__ double normalized(std::int64_t row, std::int64_t c) const {
    const double shift = centered ? at(s, row * columns) : 0, less = centered ? read<AnyFloat>(mean, statistics, row) : 0;
    return ((at(s, row * columns + c) - shift) - less) * read<AnyFloat>(rstd, statistics, row);
  }
};

/// A block per row: dx and dbranch.
__global__ void __launch_bounds__(block_size) differentiate_any(__grid_constant__ const AnyBackward a) {
  __shared__ double shared[2];
  const std::int64_t row = blockIdx.x, start = row * a.columns;
  double sums[2] = {};
  for (std::int64_t c = threadIdx.x; c < a.columns; c += block_size) {
    const double h = a.at(a.g, start + c) * (a.gamma ? a.at(a.gamma, c) : 1);
    sums[0] += h;
    sums[1] += h * a.normalized(row, c);
  }
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const double sum = block_reduce<PlusOp<double>>(sums[k]);
    if (threadIdx.x == 0) shared[k] = sum / static_cast<double>(a.columns);
    __syncthreads();
  }
  const double rstd = read<AnyFloat>(a.rstd, a.statistics, row), h_mean = a.centered ? shared[0] : 0;
  const std::uint64_t position = a.dropout.position();
  for (std::int64_t c = threadIdx.x; c < a.columns; c += block_size) {
    const double h = a.at(a.g, start + c) * (a.gamma ? a.at(a.gamma, c) : 1);
    double dx[1] = {rstd * (h - h_mean - a.normalized(row, c) * shared[1])};
    if (a.g_sum) dx[0] += a.at(a.g_sum, start + c);
    write<AnyFloat>(a.dx, a.dtype, start + c, dx[0]);
    if (a.dropout.bound > 0) {
      a.dropout(dx, start + c, position);
      write<AnyFloat>(a.dbranch, a.dtype, start + c, dx[0]);
    }
  }
}

/// A warp side by side has a column each, the block's warps every eighth row: out = the sum over rows of `of`, times u if asked.
__global__ void __launch_bounds__(block_size)
    add_columns_any(__grid_constant__ const AnyBackward a, const void* of, bool times_u, void* out, bool adds) {
  __shared__ double shared[block_size / 32][32];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::int64_t column = std::int64_t(blockIdx.x) * 32 + lane;
  double sum = 0;
  if (column < a.columns) {
    for (std::int64_t row = warp; row < a.rows; row += block_size / 32)
      sum += a.at(of, row * a.columns + column) * (times_u ? a.normalized(row, column) : 1);
  }
  shared[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || column >= a.columns) return;
  sum = 0;
  for (int i = 0; i < block_size / 32; ++i) sum += shared[i][lane];
  write<AnyFloat>(out, a.dtype, column, adds ? read<AnyFloat>(out, a.dtype, column) + sum : sum);
}

void differentiate_any_rows(const LayerNormGradArguments& a) {
  const AnyBackward any{a.s.data,     a.gamma.data,
                        a.mean.data,  a.rstd.data,
                        a.g.data,     a.g_sum.data,
                        a.dx.data,    a.dbranch.data,
                        a.s.dtype,    a.s.dtype == DType::f64 ? DType::f64 : DType::f32,
                        a.s.shape[0], a.s.shape[1],
                        a.centered,   Dropout<double>(a.p, a.draws)};
  const auto add_columns = [&](const View& of, bool times_u, const View& out) {
    if (out.data)
      launch(add_columns_any, blocks_for(any.columns, 32), block_size, 0, a.dx.stream, any, of.data, times_u, out.data,
             a.write == Write::accumulate);
  };
  add_columns(a.g, true, a.dgamma);  // before dx, which may take the place of g
  add_columns(a.g, false, a.dbeta);
  if (any.rows > 0) launch(differentiate_any, blocks_for(any.rows, 1), block_size, 0, a.dx.stream, any);
  add_columns(a.p > 0 ? a.dbranch : a.dx, false, a.dbias);
}

/// False where a row is too long for any team.
template <class T>
bool differentiate_in_registers(const LayerNormGradArguments& a) {
  constexpr std::size_t shared_per_thread = slots * elements_per_thread * sizeof(T);
  constexpr int widest = width_of<T, Alignment::whole>;
  const Stream stream = a.dx.stream;
  const std::int64_t rows = a.s.shape[0], columns = a.s.shape[1];
  const Alignment alignment = alignment_of<T>(columns, {&a.s, &a.gamma, &a.g, &a.g_sum, &a.dx, &a.dbranch});
  const std::size_t shared_limit = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, stream.device) - sizeof(Exchange);
  const unsigned threads = std::min(max_threads, static_cast<unsigned>(shared_limit / shared_per_thread / 32 * 32));
  const Plan plan = plan_rows(columns + (alignment == Alignment::skewed ? widest - 1 : 0), elements_per_thread,
                              alignment == Alignment::single ? 1 : widest, threads, threads, threads, has_clusters(stream));
  if (plan.threads == 0) return false;

  const bool with_branch = a.dbias.data || a.p > 0, with_sums = a.dgamma.data || a.dbeta.data || a.dbias.data;
  const auto kernel_for = [&]<bool branch>() {
    if (alignment == Alignment::single) return differentiate_rows<T, Alignment::single, branch>;
    return alignment == Alignment::skewed ? differentiate_rows<T, Alignment::skewed, branch>
                                          : differentiate_rows<T, Alignment::whole, branch>;
  };
  const auto kernel = with_branch ? kernel_for.template operator()<true>() : kernel_for.template operator()<false>();
  const std::size_t shared = plan.block() * shared_per_thread;
  use(stream);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)), "cudaFuncSetAttribute");
  const unsigned at_once = plan.cluster > 1 ? clusters_at_once(reinterpret_cast<const void*>(kernel), plan, shared, stream)
                                            : static_cast<unsigned>(attribute(cudaDevAttrMultiProcessorCount, stream.device));
  // After so many rows a row begins as far from a vector's beginning as the first.
  const auto period = alignment == Alignment::skewed ? static_cast<unsigned>(widest / std::gcd(columns, std::int64_t(widest))) : 1;
  unsigned clusters = rows == 0 ? 0 : std::min(blocks_for(rows, plan.rows), at_once);
  if (rows > 0) clusters = std::max(clusters / period, 1u) * period;
  const unsigned sums = with_branch ? 3 : 2;
  PartialSums parts(a.deferred, stream);
  float* const partials = with_sums ? static_cast<float*>(parts->memory(std::size_t(clusters) * sums * columns * sizeof(float))) : nullptr;
  if (rows > 0) {
    // Neighbouring rows at the same time are best for memory; but where there are few, each cluster has its even share.
    const bool few = period == 1 && rows <= 8 * std::int64_t(clusters) * plan.rows;
    const std::int64_t share = few ? (rows + clusters - 1) / clusters : std::int64_t(period) * plan.rows;
    const std::int64_t step = few ? plan.rows : std::int64_t(clusters) * plan.rows;
    const Backward<T> backward{a.s.as<const T>(),
                               a.gamma.as<const T>(),
                               a.g.as<const T>(),
                               a.g_sum.as<const T>(),
                               a.centered ? a.mean.as<const float>() : nullptr,
                               a.rstd.as<const float>(),
                               a.dx.as<T>(),
                               a.dbranch.as<T>(),
                               partials,
                               rows,
                               share,
                               few ? share : rows,
                               step,
                               period,
                               step * columns,
                               step * columns * (a.g_sum.data ? 2 : 3),
                               static_cast<int>(columns),
                               static_cast<float>(1 / static_cast<double>(columns)),
                               Dropout<float>(a.p, a.draws)};
    launch_plan(kernel, clusters, plan, shared, stream, backward, plan);
  }
  if (with_sums) {
    const View* const to[] = {&a.dgamma, &a.dbeta, &a.dbias};
    for (unsigned i = 0; i < sums; ++i)
      if (to[i]->data)
        parts->add({partials + i * columns, to[i]->data, sums * columns, 1, clusters, static_cast<unsigned>(columns), to[i]->dtype,
                    a.write == Write::accumulate});
    parts.finish();
  }
  return true;
}

}  // namespace

void layer_norm_grad(Cuda, const LayerNormGradArguments& a) {
  if (a.s.shape[1] == 0) return;
  bool done = false;
  dispatch_short_floats(a.s.dtype, [&]<class T>() { done = differentiate_in_registers<T>(a); });
  if (!done) differentiate_any_rows(a);
}

}  // namespace tern::kernels
