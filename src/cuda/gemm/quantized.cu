#include "backend/observer.h"
#include "cuda/device/group.cuh"
#include "cuda/gemm/quantized_codes.cuh"
#include "cuda/runtime/dispatch.h"
#include "cuda/runtime/launch.h"
#include "ops/kernels/matmul.h"
#include "tensor/dispatch.h"

// Quantized weights on a GPU. Decoding a few rows is bound by reading the weights: a warp reads the row of an output channel once, four
// weights per lane, and multiplies it with all rows of x, which are in the caches. More rows of 16-bit x use tensor cores
// (quantized_gemm.cu); for more rows of float32 x, the op dequantizes a part of the weight at a time for a plain product.
namespace tern::kernels {

using namespace gpu;

namespace {

constexpr int lanes = 32, warps = block_size / lanes, max_rows = 16;

/// Value of weight k of a row.
template <class C>
__device__ C value_at(const QuantizedRows& w, const std::uint8_t* row, std::int64_t k) {
  if (!has_blocks(w.format)) return C(row_scale(row)) * C(row[4 + k] - 128);
  const std::uint8_t* const block = row + k / quant_block * block_bytes(w.format);
  const int i = static_cast<int>(k % quant_block), half = static_cast<int>(quant_block / 2);
  if (w.format == QuantFormat::q8_0) return C(block_scale(block)) * C(static_cast<std::int8_t>(block[2 + i]));
  const int pair = block[2 + i % half];
  return C(block_scale(block)) * C((i < half ? pair & 15 : pair >> 4) - 8);
}

template <class T>
__global__ void __launch_bounds__(block_size) write_values(QuantizedRows w, const std::int64_t* ids, std::int64_t count, T* y) {
  const std::int64_t i = std::int64_t(blockIdx.x) * block_size + threadIdx.x;
  if (i >= count) return;
  const std::int64_t n = i / w.in, row = ids ? ids[n] : n;
  y[i] = convert<T>(row >= 0 && row < w.out ? value_at<computed_t<T>>(w, w.row(row), i % w.in) : computed_t<T>(0));
}

/// y (rows, out) for at most R rows, one warp per output channel. Rows of x are x_stride apart.
template <class T, int R>
__global__ void __launch_bounds__(block_size)
    multiply_rows(QuantizedRows w, const T* x, std::int64_t x_stride, const T* bias, std::int64_t bias_stride, T* y, int rows) {
  const std::int64_t channel = std::int64_t(blockIdx.x) * warps + threadIdx.x / lanes;
  if (channel >= w.out) return;
  const int lane = threadIdx.x % lanes;
  const std::uint8_t* const row = w.row(channel);
  float sums[R] = {};
  for (std::int64_t k = 4 * lane; k < w.in; k += 4 * lanes) {
    float codes[4];
    const float scale = load_four_codes(w, row, k, codes);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (k + i >= w.in) break;
      const float weight = scale * codes[i];
#pragma unroll
      for (int r = 0; r < R; ++r)
        if (r < rows) sums[r] += weight * convert<float>(x[r * x_stride + k + i]);
    }
  }
  const float scale = has_blocks(w.format) ? 1.0f : row_scale(row);
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const float sum = warp_all_reduce<PlusOp<float>>(sums[r]);
    if (lane == 0 && r < rows) {
      const float added = bias ? convert<float>(bias[channel * bias_stride]) : 0.0f;
      y[r * w.out + channel] = convert<T>(scale * sum + added);
    }
  }
}

}  // namespace

bool has_quantized_linear(Cuda, const View& x) { return x.shape[0] <= max_rows || size_of(x.dtype) == 2; }

void quantized_linear(Cuda, const View& x, const QuantizedRows& w, const View& bias, const View& y) {
  if (y.numel() == 0) return;
  backend::count_flops(2 * static_cast<double>(y.numel()) * static_cast<double>(w.in), true);
  if (x.shape[0] > max_rows) return quantized_gemm(x, w, bias, y);
  dispatch_floats(y.dtype, "quantized_linear", [&]<class T>() {
    if constexpr (!std::is_same_v<T, double>) {
      const auto rows = static_cast<int>(x.shape[0]);
      const auto start = [&](auto kernel) {
        launch(kernel, blocks_for(w.out, warps), block_size, 0, y.stream, w, x.as<const T>(), x.strides[0], bias.as<const T>(),
               bias.data ? bias.strides[0] : 0, y.as<T>(), rows);
      };
      if (rows == 1) start(multiply_rows<T, 1>);
      else if (rows <= 4) start(multiply_rows<T, 4>);
      else start(multiply_rows<T, max_rows>);
    }
  });
}

void dequantize(Cuda, const QuantizedRows& w, const View& ids, const View& y) {
  if (y.numel() == 0) return;
  dispatch_floats(y.dtype, "dequantize", [&]<class T>() {
    launch(write_values<T>, blocks_for(y.numel()), block_size, 0, y.stream, w, ids.as<const std::int64_t>(), y.numel(), y.as<T>());
  });
}

}  // namespace tern::kernels
