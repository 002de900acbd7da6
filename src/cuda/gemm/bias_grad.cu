#include "cuda/device/math.cuh"
#include "cuda/device/vec16.cuh"
#include "cuda/reduce/deferred_sums.h"
#include "cuda/runtime/dispatch.h"
#include "cuda/runtime/launch.h"
#include "ops/kernels/copy.h"
#include "ops/kernels/functors.h"
#include "ops/kernels/matmul.h"
#include "tensor/dispatch.h"

// A bias's gradient: the sums of the columns of (M, N), on the way through gelu's derivative where there is one. Each block sums some rows
// and leaves that as a part (deferred_sums.h). cuBLASLt has both as epilogues, but they take longer than these kernels: on an H200, for
// 8192 x 3072 in bf16, the derivative with the bias's gradient 169 us more than the GEMM alone, the bias's gradient beside a weight's 22 us
// more, where reading the matrix takes 12.
namespace tern::kernels {

using namespace gpu;

namespace {

constexpr int lanes = 32, warps = block_size / lanes;  ///< a row of a block's columns belongs to a warp
constexpr std::int64_t max_parts = 256;

/// gelu_tanh'(x): of floats the fast form.
template <class C>
__device__ __forceinline__ C gelu_derivative(C x) {
  if constexpr (std::is_same_v<C, float>) return gelu_tanh_derivative(x);
  else return functors::GeluTanh{}.grad(x, C(0));
}

/// The sums of the columns of g, or of g gelu'(x), which goes to dx. parts (gridDim.y, N): of rows_per_block rows each; null where nobody
/// wants the sums.
template <class T, int width, bool has_gelu>
__global__ void __launch_bounds__(block_size)
    sum_columns(const T* g, const T* x, T* dx, std::int64_t rows, std::int64_t columns, std::int64_t rows_per_block, computed_t<T>* parts) {
  using C = computed_t<T>;
  __shared__ C shared[warps][lanes * width];
  const std::int64_t first = std::int64_t(blockIdx.x) * lanes * width, column = first + threadIdx.x % lanes * width;
  const std::int64_t end = min(rows, (blockIdx.y + 1) * rows_per_block);
  C sums[width] = {};
  if (column < columns) {
    for (std::int64_t row = blockIdx.y * rows_per_block + threadIdx.x / lanes; row < end; row += warps) {
      const std::int64_t at = row * columns + column;
      const Vector<T, width> in = read_vector<width>(g + at);
      if constexpr (has_gelu) {
        const Vector<T, width> before = read_vector<width>(x + at);
        Vector<T, width> out;
#pragma unroll
        for (int k = 0; k < width; ++k) {
          const C gradient = convert<C>(in.values[k]) * gelu_derivative(convert<C>(before.values[k]));
          out.values[k] = convert<T>(gradient);
          sums[k] += gradient;
        }
        write_vector(dx + at, out);
      } else {
#pragma unroll
        for (int k = 0; k < width; ++k) sums[k] += convert<C>(in.values[k]);
      }
    }
  }
  if (!parts) return;
#pragma unroll
  for (int k = 0; k < width; ++k) shared[threadIdx.x / lanes][threadIdx.x % lanes * width + k] = sums[k];
  __syncthreads();
  for (int i = threadIdx.x; i < lanes * width && first + i < columns; i += block_size) {
    C total = 0;
#pragma unroll
    for (int warp = 0; warp < warps; ++warp) total += shared[warp][i];
    parts[blockIdx.y * columns + first + i] = total;
  }
}

template <class T, bool has_gelu>
void sum(const View& g, const View& x, const View& dx, const View& sums, Write write, DeferredSums* deferred) {
  using C = computed_t<T>;
  constexpr int widest = 16 / sizeof(T);
  const std::int64_t rows = g.shape[0], columns = g.shape[1];
  bool is_vector = columns % widest == 0 && is_aligned(g.data, widest * sizeof(T));
  if (has_gelu) is_vector = is_vector && is_aligned(x.data, widest * sizeof(T)) && is_aligned(dx.data, widest * sizeof(T));
  const unsigned across = blocks_for(columns, lanes * (is_vector ? widest : 1));
  // Some eight blocks for each multiprocessor, with two rows and more for each warp.
  const std::int64_t blocks = 8 * attribute(cudaDevAttrMultiProcessorCount, g.stream.device);
  const std::int64_t wanted = std::clamp<std::int64_t>((blocks + across - 1) / across, 1, max_parts);
  const std::int64_t rows_per_block = std::max<std::int64_t>((rows + wanted - 1) / wanted, 2 * warps);
  const auto count = static_cast<unsigned>((rows + rows_per_block - 1) / rows_per_block);
  PartialSums parts(deferred, g.stream);
  C* const memory = sums.data ? static_cast<C*>(parts->memory(count * static_cast<std::size_t>(columns) * sizeof(C))) : nullptr;
  launch(is_vector ? sum_columns<T, widest, has_gelu> : sum_columns<T, 1, has_gelu>, dim3(across, count), block_size, 0, g.stream,
         g.as<const T>(), x.as<const T>(), dx.as<T>(), rows, columns, rows_per_block, memory);
  if (sums.data)
    parts->add(
        {memory, sums.data, columns, sums.strides[0], count, static_cast<unsigned>(columns), sums.dtype, write == Write::accumulate});
  parts.finish();
}

}  // namespace

void column_sums(Cuda device, const View& g, const View& sums, Write write, DeferredSums* deferred) {
  if (g.numel() > 0) dispatch_floats(g.dtype, "column_sums", [&]<class T>() { sum<T, false>(g, {}, {}, sums, write, deferred); });
  else if (write == Write::overwrite) fill(device, sums, 0);
}

void gelu_bias_grad(Cuda device, const View& g, const View& x, const View& dx, const View& sums, Write write, DeferredSums* deferred) {
  if (g.numel() > 0) dispatch_floats(g.dtype, "gelu_bias_grad", [&]<class T>() { sum<T, true>(g, x, dx, sums, write, deferred); });
  else if (sums.data && write == Write::overwrite) fill(device, sums, 0);
}

}  // namespace tern::kernels
