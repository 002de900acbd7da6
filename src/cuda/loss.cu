#include "cuda/convert.cuh"
#include "cuda/launch.h"
#include "cuda/warp.cuh"
#include "ops/kernels/loss.h"

// Cross-entropy of rows of logits whose logsumexp is known. The loss of a row is one element, or with smoothing also the row's
// sum; its gradient is one reading and one writing of the row, 16 bytes at a time. A target outside the range, which a
// GPU cannot report without waiting, gives the row a loss of NaN.
namespace tern::kernels {

using namespace gpu;

namespace {

/// What rows are made of. C is float for short floats, else double; lse, losses, weights and gradients have that type.
template <class C, class T>
struct Rows {
  const T* x;
  std::int64_t count, columns, stride;
  const C* lse;
  const std::int64_t* targets;
  const C* weights;  ///< null: all 1
  C sharp, smoothing;
  std::int64_t ignore_index;
};

template <class C, class T>
__device__ C loss_of(const Rows<C, T>& rows, std::int64_t n, C mean) {
  const std::int64_t target = rows.targets[n];
  if (target == rows.ignore_index) return C(0);
  if (target < 0 || target >= rows.columns) return std::numeric_limits<C>::quiet_NaN();
  const C top = rows.lse[n];
  C loss = rows.sharp * (top - convert<C>(rows.x[n * rows.stride + target]));
  if (rows.smoothing != C(0)) loss += rows.smoothing * (top - mean);
  return rows.weights ? loss * rows.weights[n] : loss;
}

template <class C, class T>
__global__ void __launch_bounds__(block_size) losses_by_threads(__grid_constant__ const Rows<C, T> rows, C* losses) {
  const std::int64_t n = std::int64_t(blockIdx.x) * block_size + threadIdx.x;
  if (n < rows.count) losses[n] = loss_of(rows, n, C(0));
}

template <class C, class T>
__global__ void __launch_bounds__(block_size) losses_by_blocks(__grid_constant__ const Rows<C, T> rows, C* losses) {
  constexpr int width = 16 / sizeof(T);
  const std::int64_t n = blockIdx.x;
  const T* __restrict__ const row = rows.x + n * rows.stride;
  // Elements before the first aligned address, vectors, and the rest.
  const auto misaligned = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(row) % 16 / sizeof(T));
  const std::int64_t head = min(rows.columns, std::int64_t((width - misaligned) % width)), vectors = (rows.columns - head) / width;
  C sum = 0;
  for (std::int64_t i = threadIdx.x; i < head; i += block_size) sum += convert<C>(row[i]);
#pragma unroll 2
  for (std::int64_t v = threadIdx.x; v < vectors; v += block_size) {
    const auto words = read_vector<width>(row + head + v * width);
    C part = 0;
#pragma unroll
    for (int k = 0; k < width; ++k) part += convert<C>(words.values[k]);
    sum += part;
  }
  for (std::int64_t i = head + vectors * width + threadIdx.x; i < rows.columns; i += block_size) sum += convert<C>(row[i]);
  sum = block_reduce<PlusOp<C>>(sum);
  if (threadIdx.x == 0) losses[n] = loss_of(rows, n, sum / static_cast<C>(rows.columns));
}

/// `threads` threads of a block share a row: 32 or all of them.
template <class C, class T>
__global__ void __launch_bounds__(block_size)
    gradients(__grid_constant__ const Rows<C, T> rows, const C* g, std::int64_t g_stride, T* dx, C even, unsigned threads) {
  constexpr int width = 16 / sizeof(T);
  const std::int64_t n = std::int64_t(blockIdx.x) * (block_size / threads) + threadIdx.x / threads;
  if (n >= rows.count) return;
  const unsigned lane = threadIdx.x % threads;
  const std::int64_t columns = rows.columns, target = rows.targets[n];
  const T* const row = rows.x + n * rows.stride;
  T* const out = dx + n * columns;
  const bool ignored = target == rows.ignore_index;
  const C top = rows.lse[n];
  const C factor = ignored ? C(0) : g[n * g_stride] * (rows.weights ? rows.weights[n] : C(1));
  const auto derivative = [&](T x, std::int64_t i) {
    const C value = factor * (std::exp(convert<C>(x) - top) - (i == target ? rows.sharp : C(0)) - even);
    return convert<T>(ignored ? C(0) : value);
  };
  // Both rows are read and written in vectors if they are equally far from an aligned address.
  const auto misaligned = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(row) % 16 / sizeof(T));
  const bool aligned = reinterpret_cast<std::uintptr_t>(row) % 16 == reinterpret_cast<std::uintptr_t>(out) % 16;
  const std::int64_t head = aligned ? min(columns, std::int64_t((width - misaligned) % width)) : columns;
  const std::int64_t vectors = (columns - head) / width;
  for (std::int64_t i = lane; i < head; i += threads) out[i] = derivative(row[i], i);
  for (std::int64_t v = lane; v < vectors; v += threads) {
    const std::int64_t first = head + v * width;
    auto words = read_vector<width>(row + first);
#pragma unroll
    for (int k = 0; k < width; ++k) words.values[k] = derivative(words.values[k], first + k);
    *reinterpret_cast<Vector<T, width>*>(out + first) = words;
  }
  for (std::int64_t i = head + vectors * width + lane; i < columns; i += threads) out[i] = derivative(row[i], i);
}

template <class T>
Rows<computed_t<T>, T> rows_of(const View& x, const View& lse, const View& targets, const View& weights, double smoothing,
                               std::int64_t ignore_index) {
  using C = computed_t<T>;
  return {x.as<const T>(),           x.shape[0],           x.shape[1],
          x.strides[0],              lse.as<const C>(),    targets.as<const std::int64_t>(),
          weights.as<const C>(),     static_cast<C>(1 - smoothing), static_cast<C>(smoothing),
          ignore_index};
}

}  // namespace

void cross_entropy(Cuda, const View& x, const View& lse, const View& targets, const View& weights, const View& losses,
                   double smoothing, std::int64_t ignore_index) {
  if (losses.numel() == 0) return;
  dispatch_floats(x.dtype, "cross_entropy", [&]<class T>() {
    using C = computed_t<T>;
    const auto rows = rows_of<T>(x, lse, targets, weights, smoothing, ignore_index);
    if (smoothing == 0) launch(losses_by_threads<C, T>, blocks_for(rows.count), block_size, 0, losses.stream, rows, losses.as<C>());
    else launch(losses_by_blocks<C, T>, blocks_for(rows.count, 1), block_size, 0, losses.stream, rows, losses.as<C>());
  });
}

void cross_entropy_grad(Cuda, const View& x, const View& lse, const View& targets, const View& weights, const View& g, const View& dx,
                        double smoothing, std::int64_t ignore_index) {
  if (dx.numel() == 0) return;
  dispatch_floats(x.dtype, "cross_entropy_grad", [&]<class T>() {
    using C = computed_t<T>;
    const auto rows = rows_of<T>(x, lse, targets, weights, smoothing, ignore_index);
    const auto even = static_cast<C>(smoothing / static_cast<double>(rows.columns));
    const unsigned threads = rows.columns <= 1024 ? 32 : block_size;
    launch(gradients<C, T>, blocks_for(rows.count, block_size / threads), block_size, 0, dx.stream, rows, g.as<const C>(), g.strides[0],
           dx.as<T>(), even, threads);
  });
}

}  // namespace tern::kernels
