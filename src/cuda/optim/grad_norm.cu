#include <algorithm>

#include "cuda/device/group.cuh"
#include "cuda/device/vec16.cuh"
#include "cuda/runtime/dispatch.h"
#include "cuda/runtime/launch.h"
#include "ops/kernels/optimizer.h"
#include "tensor/dispatch.h"

// Norm of all gradients in two kernels: blocks read the gradients once and leave one sum of squares each; one block adds these and computes
// the clip factor, by which the optimizer multiplies gradients. All sums have a fixed order.
namespace tern::kernels {

using namespace gpu;

namespace {

/// Block b adds the squares of part b of x.
template <class T>
__global__ void __launch_bounds__(block_size) add_squares(const T* x, std::int64_t count, bool aligned, double* sums) {
  using C = compute_t<T>;
  constexpr int width = 16 / sizeof(T), unroll = 4;
  const std::int64_t vectors = aligned ? count / width : 0;
  const std::int64_t thread = std::int64_t(blockIdx.x) * block_size + threadIdx.x, threads = std::int64_t(gridDim.x) * block_size;
  C sum[unroll] = {};
  std::int64_t i = thread;
  for (; i + (unroll - 1) * threads < vectors; i += unroll * threads) {
    Vector<T, width> values[unroll];
#pragma unroll
    for (int u = 0; u < unroll; ++u) values[u] = read_vector<width>(x + (i + u * threads) * width);
#pragma unroll
    for (int u = 0; u < unroll; ++u)
#pragma unroll
      for (const T value : values[u].values) sum[u] += convert<C>(value) * convert<C>(value);
  }
  for (; i < vectors; i += threads)
    for (const T value : read_vector<width>(x + i * width).values) sum[0] += convert<C>(value) * convert<C>(value);
  for (i = vectors * width + thread; i < count; i += threads) sum[1] += convert<C>(x[i]) * convert<C>(x[i]);
  double own = double(sum[0]) + double(sum[1]) + double(sum[2]) + double(sum[3]);
  if (!(own < INFINITY)) {  // squares overflow float, or a NaN: sum the thread's elements once more, in double
    own = 0;
    for (i = thread; i < vectors; i += threads)
      for (const T value : read_vector<width>(x + i * width).values) own += double(convert<C>(value)) * double(convert<C>(value));
    for (i = vectors * width + thread; i < count; i += threads) own += double(convert<C>(x[i])) * double(convert<C>(x[i]));
  }
  const double total = block_reduce<PlusOp<double>>(own);
  if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

__global__ void __launch_bounds__(block_size) finish(const double* sums, std::int64_t count, __grid_constant__ const ClipFactor result) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += block_size) sum += sums[i];
  const double total = block_reduce<PlusOp<double>>(sum);
  if (threadIdx.x == 0) result(total);
}

}  // namespace

/// About as many blocks as an H200 runs at once (132 multiprocessors, 8 blocks of 256 threads each); a smaller GPU runs them in waves.
/// Fewer if a block would have little to read.
std::int64_t square_sum_parts(Cuda, std::int64_t count) {
  constexpr std::int64_t max_parts = 1024, elements_per_part = 4096;
  return std::clamp<std::int64_t>(count / elements_per_part, 1, max_parts);
}

void square_sums(Cuda, const View& x, const View& sums) {
  if (sums.numel() == 0) return;
  dispatch_floats(x.dtype, "square_sums", [&]<class T>() {
    launch(add_squares<T>, static_cast<unsigned>(sums.numel()), block_size, 0, x.stream, x.as<const T>(), x.numel(), is_aligned(x.data, 16),
           sums.as<double>());
  });
}

void clip_factor(Cuda, const ClipArguments& a) {
  launch(finish, 1, block_size, 0, a.norm.stream, a.sums.as<const double>(), a.sums.numel(), ClipFactor(a));
}

}  // namespace tern::kernels
