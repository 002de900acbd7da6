#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <limits>

#include "cuda/device/convert.cuh"
#include "cuda/device/group.cuh"
#include "cuda/device/indexer.cuh"
#include "cuda/reduce/reduce.cuh"
#include "cuda/runtime/allocator.h"
#include "cuda/runtime/launch.h"
#include "ops/kernels/reduce.h"
#include "tensor/layout.h"
#include "tensor/sizes.h"

// Cumulative sums and maxima. A running sum cannot be a tree, so floats are added in double. Lines that are side by side in memory have one
// thread each; others one block each, in steps of a block's size, by CUB's block scan. A few long lines are divided into chunks: first the
// chunks' sums are computed, then the sums before each chunk, then the lines; maxima likewise. The order of addition is fixed, which CUB's
// device scan does not guarantee for floats: with its decoupled look-back a block adds the partial sums that earlier blocks have published
// by then.
namespace tern::kernels {

using namespace gpu;

namespace {

/// Sum, or maximum that NaN propagates through: of what is before, and what follows.
template <class C>
struct Running {
  bool is_max;

  __device__ C identity() const {
    if (!is_max) return C(0);
    if constexpr (std::is_integral_v<C>) return std::numeric_limits<C>::min();
    else return -std::numeric_limits<C>::infinity();
  }
  __device__ C operator()(C before, C after) const {
    if (!is_max) return before + after;
    return after > before || after != after ? after : before;
  }
};

struct Line {
  const void* x = nullptr;
  void* y = nullptr;
  DType dtype = DType::f32, x_dtype = DType::f32;
  std::int64_t length = 0, x_stride = 0, y_stride = 0, chunk_length = 0;
};

template <class C, class T>
__global__ void __launch_bounds__(block_size)
    accumulate_by_threads(Running<C> combine, Line line, __grid_constant__ const Indexer<2> lines, std::uint32_t count) {
  const std::uint32_t index = blockIdx.x * block_size + threadIdx.x;
  if (index >= count) return;
  std::int64_t offsets[2];
  lines.locate(index, offsets);
  C all = combine.identity();
  for (std::int64_t i = 0; i < line.length; ++i) {
    all = combine(all, static_cast<C>(read<T>(line.x, line.x_dtype, offsets[1] + i * line.x_stride)));
    write<T>(line.y, line.dtype, offsets[0] + i * line.y_stride, all);
  }
}

template <class C, class T>
__global__ void __launch_bounds__(block_size)
    reduce_chunks(Running<C> combine, Line line, __grid_constant__ const Indexer<2> lines, unsigned chunks, C* results) {
  using BlockReduce = cub::BlockReduce<C, block_size>;
  __shared__ typename BlockReduce::TempStorage storage;
  std::int64_t offsets[2];
  lines.locate(blockIdx.x / chunks, offsets);
  const std::int64_t begin = blockIdx.x % chunks * line.chunk_length, end = min(line.length, begin + line.chunk_length);
  C all = combine.identity();
#pragma unroll 4
  for (std::int64_t i = begin + threadIdx.x; i < end; i += block_size)
    all = combine(all, static_cast<C>(read<T>(line.x, line.x_dtype, offsets[1] + i * line.x_stride)));
  all = BlockReduce(storage).Reduce(all, combine);
  if (threadIdx.x == 0) results[blockIdx.x] = all;
}

/// Replaces each chunk's result by that of the chunks before it; one thread per line.
template <class C>
__global__ void __launch_bounds__(block_size) scan_chunks(Running<C> combine, C* results, unsigned chunks, std::uint32_t count) {
  const std::uint32_t line = blockIdx.x * block_size + threadIdx.x;
  if (line >= count) return;
  C before = combine.identity();
  for (unsigned c = 0; c < chunks; ++c) {
    C& result = results[std::int64_t(line) * chunks + c];
    const C here = result;
    result = before;
    before = combine(before, here);
  }
}

template <class C, class T>
__global__ void __launch_bounds__(block_size)
    accumulate_by_blocks(Running<C> combine, Line line, __grid_constant__ const Indexer<2> lines, unsigned chunks, const C* results) {
  using BlockScan = cub::BlockScan<C, block_size, cub::BLOCK_SCAN_WARP_SCANS>;
  __shared__ typename BlockScan::TempStorage storage[2];  // alternating: one barrier per step is then enough
  std::int64_t offsets[2];
  lines.locate(blockIdx.x / chunks, offsets);
  const std::int64_t begin = blockIdx.x % chunks * line.chunk_length, end = min(line.length, begin + line.chunk_length);
  C before = results ? results[blockIdx.x] : combine.identity();
  int slot = 0;
  for (std::int64_t first = begin; first < end; first += block_size, slot ^= 1) {
    const std::int64_t i = first + threadIdx.x;
    C here = i < end ? static_cast<C>(read<T>(line.x, line.x_dtype, offsets[1] + i * line.x_stride)) : combine.identity();
    C all;
    if (combine.is_max) BlockScan(storage[slot]).InclusiveScan(here, here, combine, all);
    else BlockScan(storage[slot]).InclusiveSum(here, here, all);
    if (i < end) write<T>(line.y, line.dtype, offsets[0] + i * line.y_stride, combine(before, here));
    before = combine(before, all);
  }
}

template <class C, class T>
void accumulate(const Cumulative& kernel) {
  const View &x = kernel.x, &y = kernel.y;
  const int dim = kernel.dim;
  const bool reverse = kernel.reverse;
  const Running<C> combine{kernel.f == CumulativeFunction::max};
  Layout<2> whole;
  for (int d = x.dims() - 1; d >= 0; --d)
    if (d != dim) whole.push(y.shape[d], {y.strides[d], x.strides[d]});
  whole.simplify();
  const auto at = [](const View& view, std::int64_t offset) {
    return view.as<char>() + offset * static_cast<std::int64_t>(size_of(view.dtype));
  };
  const std::int64_t length = y.shape[dim], start = reverse ? length - 1 : 0;
  for_pieces(whole, [&](const Layout<2>& lines, const std::int64_t* offsets) {
    Line line{at(x, offsets[1] + start * x.strides[dim]), at(y, offsets[0] + start * y.strides[dim]), y.dtype, x.dtype, length,
              reverse ? -x.strides[dim] : x.strides[dim], reverse ? -y.strides[dim] : y.strides[dim], length};
    const std::int64_t count = lines.numel();
    const bool side_by_side = are_side_by_side(count, lines.strides[0][0], line.y_stride);
    if (length <= 16 || (side_by_side && count >= 8192))
      return launch(accumulate_by_threads<C, T>, blocks_for(count), block_size, 0, y.stream, combine, line, lines,
                    static_cast<std::uint32_t>(count));

    // Chunks of some thousand elements, enough for two blocks on each multiprocessor of a large GPU; fixed, for the same reason as
    // enough_threads.
    constexpr std::int64_t long_line = 8192, enough_blocks = 256;
    unsigned chunks = 1;
    if (length > long_line && count < enough_blocks) {
      const std::int64_t wanted = std::min(length / (long_line / 2), enough_blocks / count + 1);
      line.chunk_length = round_up(ceil_div(length, wanted), block_size);
      chunks = static_cast<unsigned>(ceil_div(length, line.chunk_length));
    }
    if (chunks == 1) {
      launch(accumulate_by_blocks<C, T>, blocks_for(count, 1), block_size, 0, y.stream, combine, line, lines, 1u, nullptr);
      return;
    }
    const Workspace results(static_cast<std::size_t>(count * chunks) * sizeof(C), y.stream);
    launch(reduce_chunks<C, T>, blocks_for(count * chunks, 1), block_size, 0, y.stream, combine, line, lines, chunks, results.as<C>());
    launch(scan_chunks<C>, blocks_for(count), block_size, 0, y.stream, combine, results.as<C>(), chunks, static_cast<std::uint32_t>(count));
    launch(accumulate_by_blocks<C, T>, blocks_for(count * chunks, 1), block_size, 0, y.stream, combine, line, lines, chunks,
           results.as<const C>());
  });
}

}  // namespace

void Cumulative::run(Cuda) const {
  if (y.numel() == 0) return;
  switch (y.dtype) {
    case DType::f32:
    case DType::f16:
    case DType::bf16: return accumulate<double, Any<float>>(*this);
    case DType::f64: return accumulate<double, Any<double>>(*this);
    default: return accumulate<std::int64_t, Any<std::int64_t>>(*this);
  }
}

}  // namespace tern::kernels
