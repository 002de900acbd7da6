#include "cuda/device/indexer.cuh"
#include "cuda/pointwise/pointwise.cuh"
#include "cuda/runtime/dispatch.h"
#include "cuda/runtime/launch.h"
#include "ops/kernels/copy.h"
#include "tensor/dispatch.h"
#include "tensor/layout.h"
#include "tensor/sizes.h"

// Copy, cast, fill, sums in 16 bits, arange and triangle. Copies between equal dtypes move bits. A copy whose two sides are contiguous
// along different dimensions is a tiled transpose through shared memory, so that reads and writes are both coalesced.
namespace tern::kernels {

namespace {

using namespace gpu;

struct Identity {
  template <class T>
  __device__ T operator()(T x) const {
    return x;
  }
};

constexpr int tile = 32, tile_rows = 8;

/// y[r, c] = x[c, r] for each matrix of a batch: y is contiguous along c, x along r.
template <class Bits>
__global__ void __launch_bounds__((tile * tile_rows))
    transpose_tiles(const Bits* x, std::int64_t x_stride, Bits* y, std::int64_t y_stride, std::int64_t rows, std::int64_t columns,
                    unsigned tiles_across, unsigned tiles_down, Indexer<2> batch) {
  __shared__ Bits cells[tile][tile + 1];  // padded: a column is free of bank conflicts
  const unsigned across = blockIdx.x % tiles_across, rest = blockIdx.x / tiles_across;
  const std::int64_t column0 = std::int64_t(across) * tile, row0 = std::int64_t(rest % tiles_down) * tile;
  std::int64_t offsets[2];
  batch.locate(rest / tiles_down, offsets);
  y += offsets[0];
  x += offsets[1];
  const std::int64_t row = row0 + threadIdx.x;
  for (int j = threadIdx.y; j < tile; j += tile_rows)
    if (row < rows && column0 + j < columns) cells[j][threadIdx.x] = x[(column0 + j) * x_stride + row];
  __syncthreads();
  const std::int64_t column = column0 + threadIdx.x;
  for (int j = threadIdx.y; j < tile; j += tile_rows)
    if (row0 + j < rows && column < columns) y[(row0 + j) * y_stride + column] = cells[threadIdx.x][j];
}

/// Copies by tiles, if both sides have a contiguous dimension of 16 elements or more. Returns false otherwise.
template <class Bits>
bool copy_transposed(const View& x, const View& y) {
  Layout<2> layout = layout_of(y.shape, {y.strides, x.strides});
  layout.simplify();
  if (layout.dims < 2 || layout.strides[0][0] != 1 || layout.strides[1][0] == 1 || layout.sizes[0] < 16) return false;
  int row_dim = 0;
  for (int d = 1; d < layout.dims; ++d)
    if (layout.strides[1][d] == 1 && layout.sizes[d] >= 16) row_dim = d;
  if (row_dim == 0) return false;
  Layout<2> batch = layout.without(row_dim).without(0);
  batch.simplify();
  const std::int64_t rows = layout.sizes[row_dim], columns = layout.sizes[0];
  const std::int64_t down = ceil_div(rows, tile), across = ceil_div(columns, tile);
  if (down * across * batch.numel() > 0x7fffffff) return false;
  launch(transpose_tiles<Bits>, static_cast<unsigned>(down * across * batch.numel()), dim3(tile, tile_rows), 0, y.stream,
         x.as<const Bits>(), layout.strides[1][0], y.as<Bits>(), layout.strides[0][row_dim], rows, columns, static_cast<unsigned>(across),
         static_cast<unsigned>(down), batch);
  return true;
}

template <class Out, class In>
void convert_copy(const View& x, const View& y) {
  pointwise<Out, In>(Identity{}, y, {view_source(x)});
}

/// Casts among f32, f16 and bf16, which mixed precision does all the time, by separate kernels. Returns false for other dtypes.
bool copy_short_floats(const View& x, const View& y) {
  return dispatch_short_floats(
      y.dtype, [&]<class Out>() { return dispatch_short_floats(x.dtype, [&]<class In>() { convert_copy<Out, In>(x, y); }); });
}

__global__ void __launch_bounds__(block_size)
    arange_elements(void* y, DType dtype, std::int64_t stride, std::int64_t count, double start, double step) {
  const std::int64_t i = std::int64_t(blockIdx.x) * block_size + threadIdx.x;
  if (i < count) write<AnyNumber>(y, dtype, i * stride, start + static_cast<double>(i) * step);
}

template <class Bits>
__global__ void __launch_bounds__(block_size)
    triangle_elements(const Bits* x, Bits* y, Indexer<2> indexer, std::uint32_t count, std::int64_t diagonal, bool upper) {
  const std::uint32_t index = blockIdx.x * block_size + threadIdx.x;
  if (index >= count) return;
  // The first two dimensions are a matrix's columns and rows.
  const std::uint32_t line = indexer.sizes[0].divide(index), column = index - line * indexer.sizes[0].divisor;
  const std::uint32_t row = line - indexer.sizes[1].divide(line) * indexer.sizes[1].divisor;
  const std::int64_t distance = std::int64_t(column) - std::int64_t(row);
  std::int64_t offsets[2];
  indexer.locate(index, offsets);
  const bool keep = upper ? distance >= diagonal : distance <= diagonal;
  y[offsets[0]] = keep ? x[offsets[1]] : Bits(0);
}

template <class T, int width>
__global__ void __launch_bounds__(block_size) add_rounded_elements(const T* x, float* sum, T* y, std::int64_t vectors) {
  const std::int64_t i = std::int64_t(blockIdx.x) * block_size + threadIdx.x;
  if (i >= vectors) return;
  const auto added = read_vector<width>(x + i * width);
  auto exact = read_vector<width>(sum + i * width);
  auto before = read_vector<width>(y + i * width);
#pragma unroll
  for (int k = 0; k < width; ++k) {
    const bool is_sum = convert<T>(exact.values[k]).bits == before.values[k].bits;
    exact.values[k] = (is_sum ? exact.values[k] : widen(before.values[k])) + widen(added.values[k]);
    before.values[k] = convert<T>(exact.values[k]);
  }
  write_vector(sum + i * width, exact);
  write_vector(y + i * width, before);
}

}  // namespace

void AddRounded::run(Cuda) const {
  const std::int64_t count = y.numel();
  if (count == 0) return;
  constexpr int width = 4;
  const bool is_wide = count % width == 0 && is_aligned(x.data, 8) && is_aligned(sum.data, 16) && is_aligned(y.data, 8);
  dispatch_halves(y.dtype, [&]<class T>() {
    const auto run = [&](auto kernel, std::int64_t vectors) {
      launch(kernel, blocks_for(vectors), block_size, 0, y.stream, x.as<const T>(), sum.as<float>(), y.as<T>(), vectors);
    };
    if (is_wide) run(add_rounded_elements<T, width>, count / width);
    else run(add_rounded_elements<T, 1>, count);
  });
}

void Copy::run(Cuda) const {
  if (y.numel() == 0) return;
  if (x.dtype == y.dtype) {
    if (x.is_contiguous() && y.is_contiguous()) {
      use(y.stream);
      const std::size_t bytes = static_cast<std::size_t>(y.numel()) * size_of(y.dtype);
      return check(cudaMemcpyAsync(y.data, x.data, bytes, cudaMemcpyDeviceToDevice, handle(y.stream)), "copy");
    }
    dispatch_bits(y.dtype, [&]<class Bits>() {
      if (!copy_transposed<Bits>(x, y)) convert_copy<Bits, Bits>(x, y);
    });
    return;
  }
  if (copy_short_floats(x, y)) return;
  if (is_floating(x.dtype)) convert_copy<AnyNumber, AnyFloat>(x, y);
  else convert_copy<AnyNumber, Any<std::int64_t>>(x, y);
}

void Fill::run(Cuda) const {
  if (y.numel() == 0) return;
  const std::uint64_t bits = bits_of(value, y.dtype);
  if (bits == 0 && y.is_contiguous()) {
    use(y.stream);
    const std::size_t bytes = static_cast<std::size_t>(y.numel()) * size_of(y.dtype);
    return check(cudaMemsetAsync(y.data, 0, bytes, handle(y.stream)), "fill");
  }
  dispatch_bits(y.dtype, [&]<class Bits>() { pointwise<Bits, Bits>(Identity{}, y, {number_source(static_cast<Bits>(bits), y)}); });
}

void Arange::run(Cuda) const {
  if (y.dtype == DType::boolean) fail("arange", "expected a numeric dtype but got bool");
  const std::int64_t count = y.shape[0];
  if (count == 0) return;
  launch(arange_elements, blocks_for(count), block_size, 0, y.stream, y.data, y.dtype, y.strides[0], count, start, step);
}

void Triangle::run(Cuda) const {
  const std::int64_t count = y.numel();
  if (count == 0) return;
  if (count <= std::int64_t(1) << 30) {
    return dispatch_bits(y.dtype, [&]<class Bits>() {
      launch(triangle_elements<Bits>, blocks_for(count), block_size, 0, y.stream, x.as<const Bits>(), y.as<Bits>(),
             layout_of(y.shape, {y.strides, x.strides}), static_cast<std::uint32_t>(count), diagonal, upper);
    });
  }
  // In parts along the leading dimension, because an element's index, of 32 bits, must give its row.
  if (y.dims() == 2) fail("triangle", "expected matrices of at most 2^30 elements");
  for (std::int64_t i = 0; i < y.shape[0]; ++i) {
    View from = x, to = y;
    for (View* part : {&from, &to}) {
      part->data = part->as<char>() + i * part->strides[0] * static_cast<std::int64_t>(size_of(part->dtype));
      part->shape.erase(0);
      part->strides.erase(0);
    }
    Triangle{from, to, diagonal, upper}.run(Cuda{});
  }
}

}  // namespace tern::kernels
