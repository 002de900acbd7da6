#include <cub/block/block_scan.cuh>

#include "cuda/device/convert.cuh"
#include "cuda/device/group.cuh"
#include "cuda/device/indexer.cuh"
#include "cuda/reduce/reduce.cuh"
#include "cuda/runtime/allocator.h"
#include "cuda/runtime/launch.h"
#include "ops/kernels/reduce.h"
#include "tensor/layout.h"
#include "tensor/sizes.h"

// Cumulative sums. A running sum cannot be a tree, so floats are added in double. Lines that are side by side in memory have one thread
// each; others one block each, in steps of a block's size, by CUB's block scan. A few long lines are divided into chunks: first the chunks'
// sums are computed, then the sums before each chunk, then the lines. The order of addition is fixed, which CUB's device scan does not
// guarantee for floats: with its decoupled look-back a block adds the partial sums that earlier blocks have published by then.
namespace tern::kernels {

using namespace gpu;

namespace {

struct Line {
  const void* x = nullptr;
  void* y = nullptr;
  DType dtype = DType::f32, x_dtype = DType::f32;
  std::int64_t length = 0, x_stride = 0, y_stride = 0, chunk_length = 0;
};

template <class C, class T>
__global__ void __launch_bounds__(block_size) cumsum_by_threads(Line line, __grid_constant__ const Indexer<2> lines, std::uint32_t count) {
  const std::uint32_t index = blockIdx.x * block_size + threadIdx.x;
  if (index >= count) return;
  std::int64_t offsets[2];
  lines.locate(index, offsets);
  C sum = 0;
  for (std::int64_t i = 0; i < line.length; ++i) {
    sum += static_cast<C>(read<T>(line.x, line.x_dtype, offsets[1] + i * line.x_stride));
    write<T>(line.y, line.dtype, offsets[0] + i * line.y_stride, sum);
  }
}

template <class C, class T>
__global__ void __launch_bounds__(block_size) sum_chunks(Line line, __grid_constant__ const Indexer<2> lines, unsigned chunks, C* sums) {
  std::int64_t offsets[2];
  lines.locate(blockIdx.x / chunks, offsets);
  const std::int64_t begin = blockIdx.x % chunks * line.chunk_length, end = min(line.length, begin + line.chunk_length);
  C sum = 0;
#pragma unroll 4
  for (std::int64_t i = begin + threadIdx.x; i < end; i += block_size)
    sum += static_cast<C>(read<T>(line.x, line.x_dtype, offsets[1] + i * line.x_stride));
  sum = block_reduce<PlusOp<C>>(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

/// Replaces each chunk's sum by the sum of the chunks before it; one thread per line.
template <class C>
__global__ void __launch_bounds__(block_size) scan_chunks(C* sums, unsigned chunks, std::uint32_t count) {
  const std::uint32_t line = blockIdx.x * block_size + threadIdx.x;
  if (line >= count) return;
  C before = 0;
  for (unsigned c = 0; c < chunks; ++c) {
    C& sum = sums[std::int64_t(line) * chunks + c];
    const C here = sum;
    sum = before;
    before += here;
  }
}

template <class C, class T>
__global__ void __launch_bounds__(block_size)
    cumsum_by_blocks(Line line, __grid_constant__ const Indexer<2> lines, unsigned chunks, const C* sums_before) {
  using BlockScan = cub::BlockScan<C, block_size, cub::BLOCK_SCAN_WARP_SCANS>;
  __shared__ typename BlockScan::TempStorage storage[2];  // alternating: one barrier per step is then enough
  std::int64_t offsets[2];
  lines.locate(blockIdx.x / chunks, offsets);
  const std::int64_t begin = blockIdx.x % chunks * line.chunk_length, end = min(line.length, begin + line.chunk_length);
  C before = sums_before ? sums_before[blockIdx.x] : C(0);
  int slot = 0;
  for (std::int64_t first = begin; first < end; first += block_size, slot ^= 1) {
    const std::int64_t i = first + threadIdx.x;
    C sum = i < end ? static_cast<C>(read<T>(line.x, line.x_dtype, offsets[1] + i * line.x_stride)) : C(0);
    C total;
    BlockScan(storage[slot]).InclusiveSum(sum, sum, total);
    if (i < end) write<T>(line.y, line.dtype, offsets[0] + i * line.y_stride, before + sum);
    before += total;
  }
}

template <class C, class T>
void cumsum_as(const View& x, const View& y, int dim, bool reverse) {
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
      return launch(cumsum_by_threads<C, T>, blocks_for(count), block_size, 0, y.stream, line, lines, static_cast<std::uint32_t>(count));

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
      launch(cumsum_by_blocks<C, T>, blocks_for(count, 1), block_size, 0, y.stream, line, lines, 1u, nullptr);
      return;
    }
    const Workspace sums(static_cast<std::size_t>(count * chunks) * sizeof(C), y.stream);
    launch(sum_chunks<C, T>, blocks_for(count * chunks, 1), block_size, 0, y.stream, line, lines, chunks, sums.as<C>());
    launch(scan_chunks<C>, blocks_for(count), block_size, 0, y.stream, sums.as<C>(), chunks, static_cast<std::uint32_t>(count));
    launch(cumsum_by_blocks<C, T>, blocks_for(count * chunks, 1), block_size, 0, y.stream, line, lines, chunks, sums.as<const C>());
  });
}

}  // namespace

void Cumsum::run(Cuda) const {
  if (y.numel() == 0) return;
  switch (y.dtype) {
    case DType::f32:
    case DType::f16:
    case DType::bf16: return cumsum_as<double, Any<float>>(x, y, dim, reverse);
    case DType::f64: return cumsum_as<double, Any<double>>(x, y, dim, reverse);
    default: return cumsum_as<std::int64_t, Any<std::int64_t>>(x, y, dim, reverse);
  }
}

}  // namespace tern::kernels
