#include <numeric>

#include "cuda/device/semaphore.cuh"
#include "cuda/rows/layer_norm.cuh"
#include "tensor/sizes.h"

// Gradient of layer_norm with one read of s and g and one write of dx. With x_hat = (s - mean) rstd and h = g gamma:
//
//   dx = rstd (h - mean(h) - x_hat mean(h x_hat)) (+ g_sum), one all-reduce for both means; dbranch = dropout of dx
//   dgamma = sum over rows of g x_hat, dbeta of g, dbias of dbranch
//
// Blocks are persistent, about as many as run at once, and loop over rows. A thread has the same columns of all of them, so that it
// accumulates dgamma, dbeta and dbias in registers; a second, small kernel adds up the blocks' sums. To keep memory busy during an
// all-reduce, the next rows are prefetched to shared memory, where a thread only reads what it copied itself, without a barrier:
//
//   without g_sum   | stage 0: s, g | stage 1: s, g | stage 2: s, g |    a stage is refilled once its row is in registers,
//   with g_sum      | stage 0: s, g, g_sum  | stage 1: s, g, g_sum  |    or with g_sum once its row is written
//   at the end      | block's sums of dgamma, then of dbeta, of dbias, one for each of its groups |
namespace tern::kernels {

using namespace gpu;
using namespace gpu::norm;

namespace {

constexpr unsigned max_threads = 512;  ///< threads of a block, which has a multiprocessor for itself: 128 registers per thread

/// Elements of a row in a thread.
constexpr int elements_per_thread = 16;
/// Operand rows in all stages: three times s and g, or twice s, g and g_sum.
constexpr int slots = 6;

/// Rows of a cluster. All of them have the same misalignment, so that its threads' columns stay the same. Misalignments repeat after
/// `period` rows (1 if rows are aligned): cluster c has rows r with r % period = c % period, and of these it begins at number c / period *
/// share and takes `length` rows. Its groups take them in turn, each every `step`-th row.
struct RowSchedule {
  std::int64_t share, length, step;
  unsigned period;
};

template <class T>
struct Backward {
  const T *s, *gamma, *g, *g_sum;  ///< gamma and g_sum may be null
  const float *mean, *rstd;        ///< mean: null if rows were not centered
  T *dx, *dbranch;
  float* partials;  ///< (clusters, 3 or 2, columns): of dgamma, dbeta and dbias; null if none is needed
  std::int64_t rows;
  RowSchedule schedule;
  std::int64_t stride, ahead;  ///< in elements: from a group's row to its next one, and to the row that is prefetched
  int columns;
  float inverse;  ///< 1 / columns
  Dropout<float> dropout;
};

/// Statistics of a row, as loaded from memory. They are read one row ahead, and not used before they are needed.
template <class T>
struct Statistics {
  T shift{};
  float mean = 0, rstd = 0;

  /// Of a row whose first element is s[start]; zeros if it does not exist.
  __device__ Statistics(const Backward<T>& a, bool exists, std::int64_t row, std::int64_t start) {
    if (!exists) return;
    if (a.mean) shift = a.s[start], mean = a.mean[row];
    rstd = a.rstd[row];
  }
};

/// Numbers that normalize a row: x_hat = (s - center) rstd + rest. The center is the rounded mean; rest corrects the rounding.
struct Moments {
  float center, rest, rstd;

  /// Sum of shift and mean in twice the precision: Knuth's two-sum.
  template <class T>
  __device__ explicit Moments(const Statistics<T>& row) : rstd(row.rstd) {
    const float shift = convert<float>(row.shift);
    center = shift + row.mean;
    const float added = center - shift;
    rest = -((shift - (center - added)) + (row.mean - added)) * rstd;
  }
};

/// Reduces a group's sums over its rows to the cluster's, in `to` (sums, columns): first over a warp's groups, then over a block's, through
/// shared memory where the rows were.
template <RowAccess access, int sums, int vectors, int width>
__device__ __forceinline__ void write_partials(float (&totals)[sums][vectors][width], float* to, const RowPartition& partition,
                                               const RowColumns& own, int count, int columns, float* shared) {
  launch_dependents();  // the kernel that adds up the partials may start
  const auto write_sums = [&](float* row, const float (&values)[vectors][width]) {
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
      if (v >= count) continue;
      if constexpr (access == RowAccess::aligned) {
        write_vector(row + own[v], reinterpret_cast<const Vector<float, width>&>(values[v]));
      } else {
#pragma unroll
        for (int k = 0; k < width; ++k)
          if (is_within(own[v] + k, columns)) row[own[v] + k] = values[v][k];
      }
    }
  };
  if (partition.rows == 1) {
#pragma unroll
    for (int k = 0; k < sums; ++k) write_sums(to + k * columns, totals[k]);
    return;
  }
  cp_async_wait<0>();
  const unsigned group_warps = max(partition.threads / 32, 1u), parts = blockDim.x / 32 / group_warps;
  const unsigned part = threadIdx.x / 32 / group_warps;
#pragma unroll
  for (int k = 0; k < sums; ++k) {
    for (unsigned lanes = partition.threads; lanes < 32; lanes *= 2) {
#pragma unroll
      for (int v = 0; v < vectors; ++v) {
#pragma unroll
        for (int i = 0; i < width; ++i) totals[k][v][i] += shuffle_xor(totals[k][v][i], lanes);
      }
    }
    __syncthreads();
    if (partition.threads > 32 || threadIdx.x % 32 < partition.threads) write_sums(shared + part * columns, totals[k]);
    __syncthreads();
    for (int c = threadIdx.x; c < columns; c += blockDim.x) {
      float sum = 0;
#pragma unroll 4
      for (unsigned i = 0; i < parts; ++i) sum += shared[i * columns + c];
      to[k * columns + c] = sum;
    }
  }
}

/// with_branch: dbranch or dbias is needed.
template <class T, RowAccess access, bool with_branch>
__global__ void __launch_bounds__(max_threads, 1)
    layer_norm_grad_rows(const RowPartition partition, __grid_constant__ const Backward<T> a) {
  constexpr int width = row_vector_width<T, access>, vectors = elements_per_thread / width, sums = with_branch ? 3 : 2;
  constexpr int pitch = vectors * 32;
  extern __shared__ uint4 shared[];  // after the exchange, at a multiple of 128 bytes, so that each 128 bytes are one transfer
  __shared__ RowGroup<false>::Exchange exchange;
  RowGroup<false> group(partition, exchange);
  const auto [share, length, step, period] = a.schedule;
  const unsigned turn = group.cluster() / period;
  const std::int64_t begin = turn * share + (group.cluster() - turn * period), end = min(turn * share + length, a.rows);
  const RowColumns own = group.template columns<access, width>(begin * a.columns);
  // This thread has the vectors v < count, and the first `rounds` of its rows.
  const int count = own.first < a.columns ? min(ceil_div(a.columns - own.first, own.stride), vectors) : 0;
  std::int64_t row = begin + group.index() * period;
  const auto rounds = static_cast<unsigned>(row < end ? ceil_div(end - row, step) : 0);
  std::int64_t at = row * a.columns + own.first;

  // A warp's slots are contiguous, so that the distances are constants.
  using P = Packed<T, width>;
  P* const ring = reinterpret_cast<P*>(shared) + threadIdx.x / 32 * (slots * pitch) + threadIdx.x % 32;
  const unsigned stage_stride = (a.g_sum ? 3 : 2) * pitch;
  const auto fetch = [&](unsigned round, std::int64_t from, unsigned stage) {
    if (round < rounds) {
#pragma unroll
      for (int v = 0; v < vectors; ++v) {
        if (v < count) {
          copy_ahead(ring + stage + v * 32, a.s + from + v * own.stride);
          copy_ahead(ring + stage + pitch + v * 32, a.g + from + v * own.stride);
          if (a.g_sum) copy_ahead(ring + stage + 2 * pitch + v * 32, a.g_sum + from + v * own.stride);
        }
      }
    } else {
#pragma unroll
      for (int v = 0; v < 2 * vectors; ++v) ring[stage + v * 32] = P{};
    }
    cp_async_commit();
  };

  // Rows and columns that do not exist are zeros, which add nothing.
  if (count < vectors) {
    for (int i = 0; i < slots * vectors; ++i) ring[i * 32] = P{};
  }
  for (unsigned i = 0; i * stage_stride < slots * pitch; ++i) fetch(i, at + i * a.stride, i * stage_stride);
  Statistics<T> next(a, rounds > 0, row, at - own.first);
  float gamma[vectors][width], totals[sums][vectors][width] = {};
#pragma unroll
  for (int v = 0; v < vectors; ++v) {
    read_parameter<access>(v < count ? a.gamma : nullptr, 1, own[v], a.columns, gamma[v]);
    clear_outside<access>(gamma[v], own[v], a.columns);  // memory outside of the row may contain NaN
  }
  const std::uint64_t position = with_branch ? a.dropout.position() : 0;
  group.wait_for_cluster();

  // The groups of a warp run the same number of rounds.
  const unsigned warp_rounds = __shfl_sync(whole_warp, rounds, 0);
  unsigned stage = 0;
  for (unsigned round = 0; round < warp_rounds; ++round) {
    const Moments m(next);
    row += step;
    next = Statistics<T>(a, round + 1 < rounds, row, at + a.stride - own.first);
    if (a.g_sum) cp_async_wait<1>();
    else cp_async_wait<2>();
    float x_hat[vectors][width], h[vectors][width];
    float2 means{};  // of h and of h x_hat
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
      float g[width];
      unpack<T>(ring[stage + v * 32], x_hat[v]);
      unpack<T>(ring[stage + pitch + v * 32], g);
      clear_outside<access>(x_hat[v], own[v], a.columns);
      clear_outside<access>(g, own[v], a.columns);
#pragma unroll
      for (int k = 0; k < width; ++k) {
        x_hat[v][k] = (x_hat[v][k] - m.center) * m.rstd + m.rest;
        h[v][k] = g[k] * gamma[v][k];
        totals[0][v][k] += g[k] * x_hat[v][k];
        totals[1][v][k] += g[k];
        means.x += h[v][k];
        means.y += h[v][k] * x_hat[v][k];
        asm("" : "+f"(h[v][k]));  // a compiler barrier keeps h, which would be multiplied again after the all-reduce
      }
    }
    if (!a.g_sum) fetch(round + 3, at + a.ahead, stage);
    means = group.all_reduce_sum(means);
    const float less = a.mean ? -m.rstd * (means.x * a.inverse) : 0, slope = -m.rstd * (means.y * a.inverse);
    if (round < rounds) {
#pragma unroll
      for (int v = 0; v < vectors; ++v) {
        if (v < count) {
          float dx[width];
#pragma unroll
          for (int k = 0; k < width; ++k) dx[k] = x_hat[v][k] * slope + (h[v][k] * m.rstd + less);
          if (a.g_sum) {
            float g_sum[width];
            unpack<T>(ring[stage + 2 * pitch + v * 32], g_sum);
#pragma unroll
            for (int k = 0; k < width; ++k) dx[k] += g_sum[k];
          }
          write_row_vector<access>(a.dx + at + v * own.stride, own[v], a.columns, dx);
          if constexpr (with_branch) {
            if (a.dropout.drops) {
              a.dropout(dx, at + v * own.stride, position);
              write_row_vector<access>(a.dbranch + at + v * own.stride, own[v], a.columns, dx);
            }
#pragma unroll
            for (int k = 0; k < width; ++k) totals[2][v][k] += dx[k];
          }
        }
      }
    }
    if (a.g_sum) fetch(round + 2, at + a.ahead, stage);
    at += a.stride;
    stage += stage_stride;
    if (stage == slots * pitch) stage = 0;
  }

  if (!a.partials) return;
  float* const partials = a.partials + std::int64_t(group.cluster()) * sums * a.columns;
  write_partials<access>(totals, partials, partition, own, count, a.columns, reinterpret_cast<float*>(shared));
}

/// Returns false if a row is too long for a cluster.
template <class T>
bool layer_norm_grad_in_registers(const LayerNormGrad& a) {
  constexpr std::size_t shared_per_thread = slots * elements_per_thread * sizeof(T);
  const Stream stream = a.dx.stream;
  const std::int64_t rows = a.s.shape[0], columns = a.s.shape[1];
  const RowAccess access = norm_access<T>(columns, {&a.s, &a.gamma, &a.g, &a.g_sum, &a.dx, &a.dbranch});
  const std::size_t shared_limit = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, stream.device) - sizeof(RowGroup<false>::Exchange);
  const unsigned threads = std::min(max_threads, static_cast<unsigned>(shared_limit / shared_per_thread / 32 * 32));
  const RowLimits limits{.max_threads = threads, .shared_block = threads, .max_sharing = threads};
  const auto partition = partition_norm<T>(columns, access, elements_per_thread, limits, stream);
  if (!partition) return false;

  const bool with_branch = a.dbias.data || a.p > 0, with_sums = a.dgamma.data || a.dbeta.data || a.dbias.data;
  const auto kernel_for = [&]<bool branch>() {
    if (access == RowAccess::scalar) return layer_norm_grad_rows<T, RowAccess::scalar, branch>;
    return access == RowAccess::misaligned ? layer_norm_grad_rows<T, RowAccess::misaligned, branch>
                                           : layer_norm_grad_rows<T, RowAccess::aligned, branch>;
  };
  const auto kernel = with_branch ? kernel_for.template operator()<true>() : kernel_for.template operator()<false>();
  const std::size_t shared = partition->block() * shared_per_thread;
  const unsigned at_once = partition->cluster > 1 ? clusters_at_once(kernel, *partition, shared, stream)
                                                  : static_cast<unsigned>(attribute(cudaDevAttrMultiProcessorCount, stream.device));
  const auto period =
      access == RowAccess::misaligned ? static_cast<unsigned>(vec16_width<T> / std::gcd(columns, std::int64_t(vec16_width<T>))) : 1;
  unsigned clusters = rows == 0 ? 0 : std::min(blocks_for(rows, partition->rows), at_once);
  if (rows > 0) clusters = std::max(clusters / period, 1u) * period;
  const unsigned sums = with_branch ? 3 : 2;
  DeferredSums own(stream), &parts = own.or_given(a.deferred);
  float* const partials = with_sums ? static_cast<float*>(parts.memory(std::size_t(clusters) * sums * columns * sizeof(float))) : nullptr;
  if (rows > 0) {
    // Adjacent rows at the same time are best for memory; but if there are few, each cluster gets an even share.
    const bool few = period == 1 && rows <= 8 * std::int64_t(clusters) * partition->rows;
    const std::int64_t share = few ? ceil_div(rows, clusters) : std::int64_t(period) * partition->rows;
    const std::int64_t step = few ? partition->rows : std::int64_t(clusters) * partition->rows;
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
                               {share, few ? share : rows, step, period},
                               step * columns,
                               step * columns * (a.g_sum.data ? 2 : 3),
                               static_cast<int>(columns),
                               static_cast<float>(1 / static_cast<double>(columns)),
                               Dropout<float>(a.p, a.draws)};
    launch_rows(kernel, *partition, clusters, shared, stream, backward);
  }
  if (with_sums) {
    const View* const to[] = {&a.dgamma, &a.dbeta, &a.dbias};
    for (unsigned i = 0; i < sums; ++i)
      if (to[i]->data)
        parts.add({partials + i * columns, to[i]->data, sums * columns, 1, clusters, static_cast<unsigned>(columns), to[i]->dtype,
                   a.write == Write::accumulate});
    own.finish();
  }
  return true;
}

// Rows of any length and dtype.

using AnyLayerNormGrad = AnyRows<LayerNormGrad>;

__device__ double x_hat(const AnyLayerNormGrad& a, std::int64_t row, std::int64_t c) {
  const double shift = a.centered ? a.at(a.s, row * a.columns) : 0, mean = a.centered ? a.statistic(a.mean, row) : 0;
  return ((a.at(a.s, row * a.columns + c) - shift) - mean) * a.statistic(a.rstd, row);
}

/// One block per row: dx and dbranch.
__global__ void __launch_bounds__(block_size) layer_norm_grad_rows_any(__grid_constant__ const AnyLayerNormGrad a) {
  const std::int64_t row = blockIdx.x, start = row * a.columns;
  const auto n = static_cast<double>(a.columns);
  double h_sum = 0, h_x_hat_sum = 0;
  for (std::int64_t c = threadIdx.x; c < a.columns; c += block_size) {
    const double h = a.at(a.g, start + c) * (a.gamma.data ? a.at(a.gamma, c) : 1);
    h_sum += h;
    h_x_hat_sum += h * x_hat(a, row, c);
  }
  const double h_mean = a.centered ? block_sum(h_sum) / n : 0, h_x_hat_mean = block_sum(h_x_hat_sum) / n;
  const double rstd = a.statistic(a.rstd, row);
  const std::uint64_t position = a.dropout.position();
  for (std::int64_t c = threadIdx.x; c < a.columns; c += block_size) {
    const double h = a.at(a.g, start + c) * (a.gamma.data ? a.at(a.gamma, c) : 1);
    double dx[1] = {rstd * (h - h_mean - x_hat(a, row, c) * h_x_hat_mean)};
    if (a.g_sum.data) dx[0] += a.at(a.g_sum, start + c);
    a.put(a.dx, start + c, dx[0]);
    if (a.dropout.drops) {
      a.dropout(dx, start + c, position);
      a.put(a.dbranch, start + c, dx[0]);
    }
  }
}

/// out = the column sums of `of`, or of `of` x_hat. A block has 32 columns, one for each lane of a warp; each of its warps adds up every
/// eighth row.
__global__ void __launch_bounds__(block_size)
    sum_columns_any(__grid_constant__ const AnyLayerNormGrad a, const View of, bool times_x_hat, const View out) {
  __shared__ double shared[block_size / 32][32];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::int64_t column = std::int64_t(blockIdx.x) * 32 + lane;
  double sum = 0;
  if (column < a.columns) {
    for (std::int64_t row = warp; row < a.rows; row += block_size / 32)
      sum += a.at(of, row * a.columns + column) * (times_x_hat ? x_hat(a, row, column) : 1);
  }
  shared[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || column >= a.columns) return;
  sum = sum_column(shared, lane);
  a.put(out, column, a.write == Write::accumulate ? a.at(out, column) + sum : sum);
}

void layer_norm_grad_any(const LayerNormGrad& a) {
  const AnyLayerNormGrad any(a, a.s);
  const auto sum_columns = [&](const View& of, bool times_x_hat, const View& out) {
    if (out.data) launch(sum_columns_any, blocks_for(any.columns, 32), block_size, 0, a.dx.stream, any, of, times_x_hat, out);
  };
  sum_columns(a.g, true, a.dgamma);  // before dx, which may overwrite g
  sum_columns(a.g, false, a.dbeta);
  if (any.rows > 0) launch(layer_norm_grad_rows_any, blocks_for(any.rows, 1), block_size, 0, a.dx.stream, any);
  sum_columns(a.p > 0 ? a.dbranch : a.dx, false, a.dbias);
}

}  // namespace

static void layer_norm_grad(const LayerNormGrad& a) {
  if (a.s.shape[1] == 0) return;
  if (!dispatch_short_floats(a.s.dtype, [&]<class T>() { return layer_norm_grad_in_registers<T>(a); })) layer_norm_grad_any(a);
}
void LayerNormGrad::run(Cuda) const { layer_norm_grad(*this); }

}  // namespace tern::kernels
