#include "cuda/rows/layer_norm.cuh"

// LayerNorm and RMSNorm of rows, with their prologue in a transformer: s = residual + dropout(x + bias). The threads of a row keep it in
// registers from its single read to its single write:
//
//   read x (, bias, residual)         -> s in registers, rounded as it is written to `sum`
//   d = s - shift                        shift: the row's first element, or with a sum its mean, which then costs an all-reduce
//   all-reduce (sum of d, of d^2)     -> mean, rstd; both in one exchange
//   y = (d rstd - rest rstd) gamma + beta
//
// Shifted by the first element, a mean of 1e4 costs no digits of a standard deviation of 1. If that element is itself far from the mean, a
// second all-reduce takes the differences from the mean, which is known by then. A row with a sum is shifted by its mean: its first element
// is not in memory yet, where other threads could read it.
//
// Blocks of long rows are persistent: they loop over rows, as many blocks as run at once. Shared memory then holds
//
//   | next row of x | next residual, with a sum                                        | by cp.async, one row ahead
//   | gamma | beta of this block's columns, without a sum, if they fit                 | for the whole kernel
namespace tern::kernels {

using namespace gpu;
using namespace gpu::norm;

namespace {

constexpr unsigned max_threads = 512;  ///< of a block: several blocks then share a multiprocessor, and some load while others reduce
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

/// Elements of a row in a thread: 64 bytes, enough loads in flight to hide their latency.
template <class T, RowAccess access>
constexpr int elements_per_thread = access == RowAccess::scalar ? 16 : 64 / sizeof(T);

/// Blocks of max_threads on a multiprocessor: as many as the registers allow.
template <class T, RowAccess access, bool with_sum, bool persistent>
constexpr int blocks_at_once() {
  if (access == RowAccess::scalar) return 1;
  return access == RowAccess::aligned && !with_sum && !persistent && sizeof(T) == 4 ? 3 : 2;
}

/// Gamma and beta for this thread's vectors of a row. `cached`: a persistent block keeps those of its columns in shared memory, because the
/// L1 cache does not hold those of all blocks of a cluster. The cache has a chunk for each v: the aligned vectors at the threads' v-th
/// vectors, and one before the first, which misaligned rows reach into.
template <class T, RowAccess access, int vectors, bool cached>
struct Parameters {
  static constexpr int width = row_vector_width<T, access>;
  using P = Packed<T, width>;
  P* cache;

  static __device__ int chunk() { return static_cast<int>(blockDim.x) + 1; }

  /// Called by all threads of the block, which has `rank` in its cluster. A thread's vectors v and v + 1 of a row are `stride` apart.
  __device__ __forceinline__ void fill_cache(const Forward<T>& a, unsigned rank, int stride) const {
    if constexpr (!cached) return;
    const int begin = (static_cast<int>(rank * blockDim.x) - 1) * width;
    for (int i = threadIdx.x; i < vectors * chunk(); i += blockDim.x) {
      const int c = begin + i / chunk() * stride + i % chunk() * width;
      if (c < 0 || c >= a.columns) continue;
      float gamma[width], beta[width];
      read_parameter<RowAccess::aligned>(a.gamma, 1, c, a.columns, gamma);
      read_parameter<RowAccess::aligned>(a.beta, 0, c, a.columns, beta);
      cache[i] = pack<T>(gamma);
      cache[i + vectors * chunk()] = pack<T>(beta);
    }
    __syncthreads();
  }
  /// Reads the parameters for vector v, at `column` of a row that begins `skew` elements after an aligned address.
  __device__ __forceinline__ void read(const Forward<T>& a, int v, int skew, int column, float (&gamma)[width],
                                       float (&beta)[width]) const {
    if constexpr (!cached) {
      read_parameter<access>(a.gamma, 1, column, a.columns, gamma);
      read_parameter<access>(a.beta, 0, column, a.columns, beta);
    } else {
      const auto read_one = [&](const P* here, float (&parameter)[width]) {
        if constexpr (access == RowAccess::misaligned) unpack<T>(shifted<T, width>(here[0], here[1], skew), parameter);
        else unpack<T>(here[1], parameter);
      };
      const P* const here = cache + v * chunk() + threadIdx.x;
      read_one(here, gamma);
      read_one(here + vectors * chunk(), beta);
    }
  }
};

/// s = residual + dropout(x + bias) of a vector, with x in `values`; the rounded result is written to `sum` and returned in `values`.
/// Elements of other rows are 0.
template <RowAccess access, class T, int width>
__device__ __forceinline__ void add_residual(const Forward<T>& a, const Packed<T, width>& residual, std::int64_t at, int column,
                                             std::uint64_t position, float (&values)[width]) {
  float terms[width];
  if (a.bias) {
    read_parameter<access>(a.bias, 0, column, a.columns, terms);
#pragma unroll
    for (int k = 0; k < width; ++k) values[k] += terms[k];
  }
  if (a.dropout.drops) a.dropout(values, at, position);
  if (a.residual) {
    unpack<T>(residual, terms);
#pragma unroll
    for (int k = 0; k < width; ++k) values[k] += terms[k];
  }
  unpack<T>(pack<T>(values), values);
  write_row_vector<access>(a.sum + at, column, a.columns, values);
  clear_outside<access>(values, column, a.columns);
}

/// Sums of d and of d^2.
template <RowAccess access, int vectors, int width>
__device__ __forceinline__ float2 subtract(float (&values)[vectors][width], float amount, const RowColumns& own, int existing,
                                           int columns) {
  float2 moments{};
#pragma unroll
  for (int v = 0; v < vectors; ++v) {
    if (own[v] < existing) {
#pragma unroll
      for (int k = 0; k < width; ++k) values[v][k] -= amount;
      clear_outside<access>(values[v], own[v], columns);
#pragma unroll
      for (int k = 0; k < width; ++k) {
        moments.x += values[v][k];
        moments.y += values[v][k] * values[v][k];
      }
    }
  }
  return moments;
}

/// with_sum: a sum is written. persistent: a block or a cluster loops over rows; otherwise it has its rows at once, and other blocks load
/// while it reduces.
template <class T, RowAccess access, bool with_sum, bool persistent>
__global__ void __launch_bounds__(max_threads, blocks_at_once<T, access, with_sum, persistent>())
    layer_norm_rows(const RowPartition partition, __grid_constant__ const Forward<T> a) {
  constexpr int width = row_vector_width<T, access>, vectors = elements_per_thread<T, access> / width, pitch = vectors * 32;
  using P = Packed<T, width>;
  extern __shared__ uint4 shared[];  // after the exchange, at a multiple of 128 bytes, so that each 128 bytes are one transfer
  __shared__ RowGroup<true>::Exchange exchange;
  RowGroup<true> group(partition, exchange);
  const int columns = a.columns, lead = static_cast<int>(group.thread()) * width, stride = static_cast<int>(group.size()) * width;
  const std::uint64_t position = with_sum ? a.dropout.position() : 0;

  // Vectors of the next row of x, and of the residual. Those of a warp are contiguous.
  P* const next_row = reinterpret_cast<P*>(shared) + threadIdx.x / 32 * (with_sum ? 2 * pitch : pitch) + threadIdx.x % 32;
  const auto fetch = [&](std::int64_t row) {
    const std::int64_t start = row * columns;
    const int first = lead - row_skew<access, width>(start);
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
      if (row < a.rows && first + v * stride < columns) {
        copy_ahead(next_row + v * 32, a.x + (start + first) + v * stride);
        if (with_sum && a.residual) copy_ahead(next_row + pitch + v * 32, a.residual + (start + first) + v * stride);
      }
    }
    cp_async_commit();
  };
  const auto first_element = [&](std::int64_t row) {
    return a.centered && row < a.rows && columns > 0 ? convert<float>(a.x[row * columns]) : 0;
  };
  std::int64_t begin = std::int64_t(group.cluster()) * partition.rows;
  if constexpr (persistent) fetch(begin + group.index());
  float next_shift = persistent && !with_sum ? first_element(begin) : 0;
  const Parameters<T, access, vectors, persistent && !with_sum> parameters{reinterpret_cast<P*>(shared) + blockDim.x * vectors};
  parameters.fill_cache(a, group.rank(), stride);
  group.wait_for_cluster();
  do {
    const std::int64_t row = begin + group.index(), start = row * columns;
    const int existing = row < a.rows ? columns : -width;  // whole warps continue to the end, with rows that do not exist
    const int skew = row_skew<access, width>(start);
    const RowColumns own{lead - skew, stride};
    const std::int64_t at = start + own.first;
    if constexpr (persistent) cp_async_wait<0>();
    P packed[vectors] = {}, residual[with_sum ? vectors : 1] = {};
#pragma unroll
    for (int v = 0; v < vectors; ++v)
      if (own[v] < existing) packed[v] = persistent ? next_row[v * 32] : read_packed_cg<width>(a.x + at + v * stride);
    if (with_sum && a.residual) {
#pragma unroll
      for (int v = 0; v < (with_sum ? vectors : 1); ++v)
        if (own[v] < existing) residual[v] = persistent ? next_row[pitch + v * 32] : read_packed_cg<width>(a.residual + at + v * stride);
    }
    const float first_shift = with_sum ? 0 : persistent ? next_shift : first_element(row);
    begin += std::int64_t(gridDim.x / partition.cluster) * partition.rows;
    if constexpr (persistent) fetch(begin + group.index());
    if constexpr (persistent && !with_sum) next_shift = first_element(begin);

    float values[vectors][width], total = 0;
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
      unpack<T>(packed[v], values[v]);
      if constexpr (with_sum) {
        if (own[v] < existing) add_residual<access>(a, residual[v], at + v * stride, own[v], position, values[v]);
#pragma unroll
        for (int k = 0; k < width; ++k) total += values[v][k];
      }
    }

    const bool has_first_column = lead == 0 && row < a.rows;
    float shift = 0, mean = 0;  // shift: subtracted from the elements; mean: that of the row, minus its first element
    if (a.centered && with_sum) {
      float first = values[0][0];
      if (access == RowAccess::misaligned && has_first_column) first = convert<float>(a.sum[start]);
      shift = group.all_reduce_sum({total, 0}).x * a.inverse;
      mean = shift - first;
    } else if (a.centered) {
      shift = first_shift;
    }
    float rest, variance;  // rest: the mean of the elements minus the shift
    const auto take_moments = [&](float amount) {
      const float2 moments = group.all_reduce_sum(subtract<access>(values, amount, own, existing, columns));
      rest = a.centered ? moments.x * a.inverse : 0;
      variance = moments.y * a.inverse - rest * rest;
    };
    take_moments(shift);
    if (!with_sum && rest * rest > 4 * variance) {  // the first element is far from the mean: the squares have lost digits
      const float known = rest;
      if constexpr (sizeof(T) == 4) {  // 16-bit elements have fewer digits than are left
#pragma unroll
        for (int v = 0; v < vectors; ++v)
          if (own[v] < existing) unpack<T>(read_packed_cg<width>(a.x + at + v * stride), values[v]);
        shift += known;
        mean = shift - first_shift;
        take_moments(shift);
      } else {
        mean = known;
        take_moments(known);
      }
    }
    const float rstd = rsqrtf((variance < 0 ? 0 : variance) + a.eps);  // negative by rounding, if the elements are equal
    if (has_first_column) {
      if (a.centered) a.mean[row] = mean + rest;
      a.rstd[row] = rstd;
    }

    const float offset = -rest * rstd;
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
      if (own[v] < existing) {
        float gamma[width], beta[width];
        parameters.read(a, v, skew, own[v], gamma, beta);
#pragma unroll
        for (int k = 0; k < width; ++k) values[v][k] = (values[v][k] * rstd + offset) * gamma[k] + beta[k];
        write_row_vector<access>(a.y + at + v * stride, own[v], columns, values[v]);
      }
    }
  } while (persistent && begin < a.rows);
}

/// Returns false if a row is too long for a cluster.
template <class T>
bool layer_norm_in_registers(const LayerNorm& a) {
  const Stream stream = a.y.stream;
  const std::int64_t rows = a.x.shape[0], columns = a.x.shape[1];
  const RowAccess access = norm_access<T>(columns, {&a.x, &a.gamma, &a.beta, &a.residual, &a.bias, &a.sum, &a.y});
  const bool is_scalar = access == RowAccess::scalar;
  const int elements = is_scalar ? elements_per_thread<T, RowAccess::scalar> : elements_per_thread<T, RowAccess::aligned>;
  const auto partition = partition_norm<T>(columns, access, elements, {.max_threads = max_threads, .shared_block = row_block}, stream);
  if (!partition) return false;
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
  // Clusters are costly to start, and only few large blocks fit on a multiprocessor, too few for some to load while others reduce.
  const bool persistent = !is_scalar && (partition->cluster > 1 || (sizeof(T) < 4 && partition->threads > max_threads / 2));
  const auto kernel_for = [&]<bool with_sum>() {
    constexpr auto aligned = RowAccess::aligned, misaligned = RowAccess::misaligned;
    if (is_scalar) return layer_norm_rows<T, RowAccess::scalar, with_sum, false>;
    if (access == misaligned)
      return persistent ? layer_norm_rows<T, misaligned, with_sum, true> : layer_norm_rows<T, misaligned, with_sum, false>;
    return persistent ? layer_norm_rows<T, aligned, with_sum, true> : layer_norm_rows<T, aligned, with_sum, false>;
  };
  const auto kernel = a.sum.data ? kernel_for.template operator()<true>() : kernel_for.template operator()<false>();
  unsigned clusters = blocks_for(rows, partition->rows);
  std::size_t shared = 0;
  if (persistent) {
    shared = partition->block() * elements * sizeof(T) * 2;                         // with the residual's vectors
    if (!a.sum.data) shared = (3 * partition->block() + 2) * elements * sizeof(T);  // with gamma's and beta's
    clusters = std::min(clusters, clusters_at_once(kernel, *partition, shared, stream));
  }
  launch_rows(kernel, *partition, clusters, shared, stream, forward);
  return true;
}

// Rows of any length and dtype.

using AnyLayerNorm = AnyRows<LayerNorm>;

/// One block per row.
__global__ void __launch_bounds__(block_size) layer_norm_rows_any(__grid_constant__ const AnyLayerNorm a) {
  const std::int64_t row = blockIdx.x, start = row * a.columns;
  const std::uint64_t position = a.dropout.position();
  const View& s = a.sum.data ? static_cast<const View&>(a.sum) : a.x;
  if (a.sum.data) {
    for (std::int64_t c = threadIdx.x; c < a.columns; c += block_size) {
      double value[1] = {a.at(a.x, start + c)};
      if (a.bias.data) value[0] += a.at(a.bias, c);
      if (a.dropout.drops) a.dropout(value, start + c, position);
      if (a.residual.data) value[0] += a.at(a.residual, start + c);
      a.put(a.sum, start + c, value[0]);
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
    if (a.centered) write<AnyFloat>(a.mean.data, a.statistics, row, mean);
    write<AnyFloat>(a.rstd.data, a.statistics, row, rstd);
  }
  for (std::int64_t c = threadIdx.x; c < a.columns; c += block_size) {
    double value = ((a.at(s, start + c) - shift) - mean) * rstd;
    if (a.gamma.data) value *= a.at(a.gamma, c);
    if (a.beta.data) value += a.at(a.beta, c);
    a.put(a.y, start + c, value);
  }
}

void layer_norm_any(const LayerNorm& a) {
  const AnyLayerNorm any(a, a.x);
  launch(layer_norm_rows_any, blocks_for(any.rows, 1), block_size, 0, a.y.stream, any);
}

}  // namespace

static void layer_norm(const LayerNorm& a) {
  if (!is_floating(a.x.dtype)) fail("layer_norm", std::string("expected a floating dtype but got ") + name(a.x.dtype));
  if (a.x.shape[0] == 0) return;
  if (!dispatch_short_floats(a.x.dtype, [&]<class T>() { return layer_norm_in_registers<T>(a); })) layer_norm_any(a);
}
void LayerNorm::run(Cuda) const { layer_norm(*this); }

}  // namespace tern::kernels
