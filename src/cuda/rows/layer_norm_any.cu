#include "cuda/device/group.cuh"
#include "cuda/rows/layer_norm.cuh"

// layer_norm and its gradient for rows of any length and dtype: operands whose dtype is known at run time, computed in f64. A block
// processes a row, and each pass reads it from memory. For rows too long for the registers of a cluster, and for f64, which is for gradient
// checks.
namespace tern::gpu::norm {

namespace {

/// Sum over the block, in all of its threads.
__device__ double block_sum(double value) {
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
using AnyLayerNorm = AnyRows<kernels::LayerNormArguments>;
using AnyLayerNormGrad = AnyRows<kernels::LayerNormGradArguments>;

/// One block per row.
__global__ void __launch_bounds__(block_size) layer_norm_rows_any(__grid_constant__ const AnyLayerNorm a) {
  const std::int64_t row = blockIdx.x, start = row * a.columns;
  const std::uint64_t position = a.dropout.position();
  const View& s = a.sum.data ? a.sum : a.x;
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
  sum = 0;
  for (int i = 0; i < block_size / 32; ++i) sum += shared[i][lane];
  a.put(out, column, a.write == Write::accumulate ? a.at(out, column) + sum : sum);
}

}  // namespace

void layer_norm_any(const kernels::LayerNormArguments& a) {
  const AnyLayerNorm any(a, a.x);
  launch(layer_norm_rows_any, blocks_for(any.rows, 1), block_size, 0, a.y.stream, any);
}

void layer_norm_grad_any(const kernels::LayerNormGradArguments& a) {
  const AnyLayerNormGrad any(a, a.s);
  const auto sum_columns = [&](const View& of, bool times_x_hat, const View& out) {
    if (out.data) launch(sum_columns_any, blocks_for(any.columns, 32), block_size, 0, a.dx.stream, any, of, times_x_hat, out);
  };
  sum_columns(a.g, true, a.dgamma);  // before dx, which may overwrite g
  sum_columns(a.g, false, a.dbeta);
  if (any.rows > 0) launch(layer_norm_grad_rows_any, blocks_for(any.rows, 1), block_size, 0, a.dx.stream, any);
  sum_columns(a.p > 0 ? a.dbranch : a.dx, false, a.dbias);
}

}  // namespace tern::gpu::norm
