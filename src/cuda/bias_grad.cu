#include "cuda/allocator.h"
#include "cuda/arrivals.cuh"
#include "cuda/convert.cuh"
#include "cuda/launch.h"
#include "cuda/warp.cuh"
#include "ops/kernels/copy.h"
#include "ops/kernels/functors.h"
#include "ops/kernels/matmul.h"

// A bias's gradient: the sums of the columns of (M, N), on the way through gelu's derivative where there is one. Blocks sum strips of
// rows, and the last one adds the strips, in a fixed order. cuBLASLt has both as epilogues, but they take longer than these kernels: on
// an H200, for 8192 x 3072 in bf16, the derivative with the bias's gradient 169 us more than the product alone, the bias's gradient
// beside a weight's 22 us more, where reading the matrix takes 12.
namespace tern::kernels {

using namespace gpu;

namespace {

// A block has few columns, so that the block that adds the strips has little to read: `lanes` threads side by side, and the others below.
constexpr int lanes = 8, groups = block_size / lanes, warps = block_size / 32;
constexpr std::int64_t most_strips = 64;

/// The sums of a block's columns over its groups of lanes; those of column `i` in the thread i of the first `lanes * width`.
template <int width, class C>
__device__ C sum_groups(C (&shared)[warps][lanes * width], C (&sums)[width]) {
#pragma unroll
  for (int k = 0; k < width; ++k) {
#pragma unroll
    for (unsigned step = lanes; step < 32; step *= 2) sums[k] += shuffle_xor(sums[k], step);
    if (threadIdx.x % 32 < lanes) shared[threadIdx.x / 32][threadIdx.x % lanes * width + k] = sums[k];
  }
  __syncthreads();
  C total = 0;
  if (threadIdx.x < lanes * width)
#pragma unroll
    for (int warp = 0; warp < warps; ++warp) total += shared[warp][threadIdx.x];
  return total;
}

/// Where the columns' sums go.
template <class T>
struct ColumnSums {
  T* sums;  ///< null: nowhere
  std::int64_t stride;
  bool adds;
  computed_t<T>* strips;  ///< (gridDim.y, N): the sums of each strip of rows
  unsigned* arrivals;     ///< of the blocks of each group of columns
};

/// The sums of the columns of g, or of g gelu'(x), which goes to dx. See Note [Last block].
template <class T, int width, bool has_gelu>
__global__ void __launch_bounds__(block_size)
    sum_columns(const T* g, const T* x, T* dx, std::int64_t rows, std::int64_t columns, std::int64_t rows_in_strip,
                __grid_constant__ const ColumnSums<T> to) {
  using C = computed_t<T>;
  __shared__ C shared[warps][lanes * width];
  const std::int64_t first = std::int64_t(blockIdx.x) * lanes * width, column = first + threadIdx.x % lanes * width;
  const std::int64_t end = min(rows, (blockIdx.y + 1) * rows_in_strip);
  C sums[width] = {};
  if (column < columns) {
#pragma unroll 4
    for (std::int64_t row = blockIdx.y * rows_in_strip + threadIdx.x / lanes; row < end; row += groups) {
      const std::int64_t at = row * columns + column;
      const Vector<T, width> in = read_vector<width>(g + at);
      if constexpr (has_gelu) {
        const Vector<T, width> before = read_vector<width>(x + at);
        Vector<T, width> out;
#pragma unroll
        for (int k = 0; k < width; ++k) {
          const C gradient = convert<C>(in.values[k]) * functors::GeluTanh{}.grad(convert<C>(before.values[k]), C(0));
          out.values[k] = convert<T>(gradient);
          sums[k] += gradient;
        }
        *reinterpret_cast<Vector<T, width>*>(dx + at) = out;
      } else {
#pragma unroll
        for (int k = 0; k < width; ++k) sums[k] += convert<C>(in.values[k]);
      }
    }
  }
  if (!to.sums) return;
  C total = sum_groups<width>(shared, sums);
  const std::int64_t own = first + threadIdx.x;  // the column whose sum this thread has
  const bool has_sum = threadIdx.x < lanes * width && own < columns;
  if (gridDim.y > 1) {
    if (has_sum) to.strips[blockIdx.y * columns + own] = total;
    if (!is_last_block(to.arrivals + blockIdx.x, gridDim.y)) return;
    C parts[width] = {};
    if (column < columns)
#pragma unroll 2
      for (unsigned strip = threadIdx.x / lanes; strip < gridDim.y; strip += groups) {
        const Vector<C, width> part = read_vector<width>(to.strips + strip * columns + column);
#pragma unroll
        for (int k = 0; k < width; ++k) parts[k] += part.values[k];
      }
    total = sum_groups<width>(shared, parts);
  }
  if (!has_sum) return;
  T& sum = to.sums[own * to.stride];
  sum = convert<T>(to.adds ? convert<C>(sum) + total : total);
}

template <class T, bool has_gelu>
void sum(const View& g, const View& x, const View& dx, const View& sums, Write write) {
  using C = computed_t<T>;
  constexpr int widest = 16 / sizeof(T) > 4 ? 4 : 16 / sizeof(T);
  const std::int64_t rows = g.shape[0], columns = g.shape[1];
  bool is_vector = columns % widest == 0 && is_aligned(g.data, widest * sizeof(T));
  if (has_gelu) is_vector = is_vector && is_aligned(x.data, widest * sizeof(T)) && is_aligned(dx.data, widest * sizeof(T));
  const unsigned across = blocks_for(columns, lanes * (is_vector ? widest : 1));
  // Some eight blocks for each of a large device's multiprocessors.
  const std::int64_t wanted = std::clamp<std::int64_t>((1056 + across - 1) / across, 1, most_strips);
  const std::int64_t rows_in_strip = std::max<std::int64_t>((rows + wanted - 1) / wanted, groups);
  const auto count = static_cast<unsigned>((rows + rows_in_strip - 1) / rows_in_strip);
  const bool has_strips = sums.data && count > 1;
  const Workspace strips(has_strips ? count * static_cast<std::size_t>(columns) * sizeof(C) : 0, g.stream);
  const ColumnSums<T> to{sums.as<T>(), sums.data ? sums.strides[0] : 0, write == Write::accumulate, strips.as<C>(),
                         has_strips ? arrivals(g.stream, across) : nullptr};
  launch(is_vector ? sum_columns<T, widest, has_gelu> : sum_columns<T, 1, has_gelu>, dim3(across, count), block_size, 0, g.stream,
         g.as<const T>(), x.as<const T>(), dx.as<T>(), rows, columns, rows_in_strip, to);
}

}  // namespace

void column_sums(Cuda device, const View& g, const View& sums, Write write) {
  if (g.numel() > 0) dispatch_floats(g.dtype, "column_sums", [&]<class T>() { sum<T, false>(g, {}, {}, sums, write); });
  else if (write == Write::overwrite) fill(device, sums, 0);
}

void gelu_bias_grad(Cuda device, const View& g, const View& x, const View& dx, const View& sums, Write write) {
  if (g.numel() > 0) dispatch_floats(g.dtype, "gelu_bias_grad", [&]<class T>() { sum<T, true>(g, x, dx, sums, write); });
  else if (sums.data && write == Write::overwrite) fill(device, sums, 0);
}

}  // namespace tern::kernels
