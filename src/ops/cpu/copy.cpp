#include "ops/kernels/copy.h"

#include <cstring>

#include "ops/cpu/loops.h"
#include "tensor/sizes.h"

namespace tern::kernels {

using namespace loops;

namespace {

/// Tiled transpose, y[c, r] = x[r, c]: rows are contiguous in y, columns in x. A tile uses each cache line of either side fully while it is
/// in the cache.
template <class U>
void transpose(const U* x, std::int64_t x_stride, U* y, std::int64_t y_stride, std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t tile = 16;
  for (std::int64_t c0 = 0; c0 < columns; c0 += tile)
    for (std::int64_t r0 = 0; r0 < rows; r0 += tile) {
      const std::int64_t r1 = std::min(rows, r0 + tile), c1 = std::min(columns, c0 + tile);
      for (std::int64_t c = c0; c < c1; ++c)
        for (std::int64_t r = r0; r < r1; ++r) y[c * y_stride + r] = x[r * x_stride + c];
    }
}

/// The dimension that is contiguous in x, if it is not y's and both are long enough for tiles; else -1.
int transposed_dimension(const Layout<2>& loop) {
  if (loop.inner_stride(0) != 1 || std::abs(loop.inner_stride(1)) <= 1 || loop.inner() < 4) return -1;
  for (int d = loop.dims - 1; d > 0; --d)
    if (loop.strides[1][d] == 1 && loop.sizes[d] >= 4) return d;
  return -1;
}

template <class U>
void copy_transposed(const Layout<2>& loop, int unit, const U* x, U* y) {
  const std::int64_t rows = loop.inner(), x_stride = loop.inner_stride(1);
  const std::int64_t columns = loop.sizes[unit], y_stride = loop.strides[0][unit];
  // The unit of work is a slice of the columns; slices and all other dimensions are shared among threads.
  constexpr std::int64_t slice = 64;
  const std::int64_t slices = ceil_div(columns, slice);
  Layout<2> units;
  units.push(slices, {slice * y_stride, slice});
  for (int d = 1; d < loop.dims; ++d)
    if (d != unit) units.push(loop.sizes[d], {loop.strides[0][d], loop.strides[1][d]});
  parallel_units(units.numel(), rows * std::min(slice, columns), stream_grain, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t i = begin;
    walk(units, begin, end, 1, [&](const std::int64_t* at, std::int64_t) {
      transpose(x + at[1], x_stride, y + at[0], y_stride, rows, std::min(slice, columns - i++ % slices * slice));
    });
  });
}

/// Copy without conversion; U is any type of the elements' size.
template <class U>
void copy_elements(const View& x, const View& y) {
  const auto loop = make_loop<2>(y.shape, {y.strides, x.strides});
  if (const int unit = transposed_dimension(loop); unit >= 0) return copy_transposed(loop, unit, x.as<const U>(), y.as<U>());
  const std::int64_t x_stride = loop.inner_stride(1), y_stride = loop.inner_stride(0);
  parallel_walk(loop, stream_grain, loop.numel(), [&](const std::int64_t* at, std::int64_t n) {
    const U* from = x.as<const U>() + at[1];
    U* to = y.as<U>() + at[0];
    if (y_stride == 1 && x_stride == 1) std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(U));
    else if (y_stride == 1 && x_stride == 0) std::fill_n(to, n, *from);
    else
      for (std::int64_t i = 0; i < n; ++i) to[i * y_stride] = from[i * x_stride];
  });
}

/// Converts through C, which must hold S exactly: a loader for each source and a storer for each destination and C are far fewer than all
/// pairs. The storer is called through a pointer, because inlined each pair would instantiate its own loops: 8 times the code. If the
/// destination is of type C and contiguous, the loader writes to it directly.
template <class S>
void copy_converted(const View& x, const View& y) {
  using C = std::conditional_t<std::is_integral_v<S>, std::int64_t, compute_t<S>>;
  using Store = void (*)(const C* from, void* y, std::int64_t at, std::int64_t stride, std::int64_t n);
  const Store store_run = dispatch_all(y.dtype, []<class D>() -> Store {
    return [](const C* from, void* to, std::int64_t at, std::int64_t stride, std::int64_t n) {
      store(from, static_cast<D*>(to) + at, stride, n);
    };
  });
  const auto loop = make_loop<2>(y.shape, {y.strides, x.strides});
  const bool is_loaded_in_place = y.dtype == dtype_of<C> && loop.inner_stride(0) == 1;
  parallel(loop.numel(), stream_grain, [&](std::int64_t begin, std::int64_t end) {
    alignas(64) C buffer[chunk];
    walk(loop, begin, end, chunk, [&](const std::int64_t* at, std::int64_t n) {
      C* const place = is_loaded_in_place ? static_cast<C*>(y.data) + at[0] : buffer;
      const C* const run = load(x.as<const S>() + at[1], loop.inner_stride(1), n, place);
      if (run != place || !is_loaded_in_place) store_run(run, y.data, at[0], loop.inner_stride(0), n);
    });
  });
}

}  // namespace

void Copy::run(Cpu) const {
  if (x.dtype == y.dtype) dispatch_bits(y.dtype, [&]<class U>() { copy_elements<U>(x, y); });
  else dispatch_all(x.dtype, [&]<class S>() { copy_converted<S>(x, y); });
}

void AddRounded::run(Cpu) const {
  const auto add = [&]<class S>() {
    parallel(y.numel(), stream_grain, [&](std::int64_t begin, std::int64_t end) {
      alignas(64) float added[chunk], before[chunk];
      alignas(64) S rounded[chunk];
      for (std::int64_t first = begin; first < end; first += chunk) {
        const std::int64_t n = std::min(chunk, end - first);
        S* const to = y.as<S>() + first;
        float* const exact = sum.as<float>() + first;
        convert_run(x.as<const S>() + first, added, n);
        convert_run(to, before, n);
        convert_run(exact, rounded, n);
        for (std::int64_t i = 0; i < n; ++i) exact[i] = (rounded[i].bits == to[i].bits ? exact[i] : before[i]) + added[i];
        convert_run(exact, to, n);
      }
    });
  };
  y.dtype == DType::f16 ? add.operator()<f16>() : add.operator()<bf16>();
}

void Fill::run(Cpu) const {
  const auto loop = make_loop<1>(y.shape, {y.strides});
  dispatch_all(y.dtype, [&]<class T>() {
    const T element = from_number<T>(value);
    parallel_walk(loop, stream_grain, loop.numel(), [&](const std::int64_t* at, std::int64_t n) {
      T* to = y.as<T>() + at[0];
      if (loop.inner_stride(0) == 1) std::fill_n(to, n, element);
      else
        for (std::int64_t i = 0; i < n; ++i) to[i * loop.inner_stride(0)] = element;
    });
  });
}

void Arange::run(Cpu) const {
  dispatch_numbers(y.dtype, "arange", [&]<class T>() {
    T* const to = y.as<T>();
    const std::int64_t stride = y.strides[0];
    parallel(y.shape[0], function_grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) to[i * stride] = from_number<T>(start + double(i) * step);
    });
  });
}

void Triangle::run(Cpu) const {
  const int row_dim = y.dims() - 2;
  const std::int64_t rows = y.shape[row_dim], columns = y.shape[row_dim + 1];
  if (y.numel() == 0) return;
  const std::int64_t x_stride = x.strides.back(), y_stride = y.strides.back();
  Shape outer = y.shape;
  Strides y_outer = y.strides, x_outer = x.strides;
  outer.pop_back();
  y_outer.pop_back();
  x_outer.pop_back();
  // Row-major order, so that the index of the unit of work gives the row.
  const Layout<2> loop = layout_of(outer, {y_outer, x_outer});
  dispatch_bits(y.dtype, [&]<class U>() {
    parallel_units(loop.numel(), columns, stream_grain, [&](std::int64_t begin, std::int64_t end) {
      std::int64_t i = begin;
      walk(loop, begin, end, 1, [&](const std::int64_t* at, std::int64_t) {
        const U* from = x.as<const U>() + at[1];
        U* to = y.as<U>() + at[0];
        // Kept columns: [0, edge) of a lower triangle, [edge, columns) of an upper one.
        const std::int64_t row = i++ % rows, edge = std::clamp<std::int64_t>(row + diagonal + (upper ? 0 : 1), 0, columns);
        for (std::int64_t c = 0; c < columns; ++c) to[c * y_stride] = (c < edge) != upper ? from[c * x_stride] : U(0);
      });
    });
  });
}

}  // namespace tern::kernels
