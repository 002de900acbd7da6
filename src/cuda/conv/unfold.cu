#include "cuda/device/convert.cuh"
#include "cuda/device/indexer.cuh"
#include "cuda/device/vec16.cuh"
#include "cuda/runtime/dispatch.h"
#include "cuda/runtime/launch.h"
#include "ops/kernels/conv.h"
#include "tensor/dispatch.h"

// im2col and its adjoint. Unfold: a thread writes 16 bytes of a row of columns, for which it computes its position once; if rows of several
// images are contiguous, as in the columns of a product, a thread's elements may continue from one image to the next. Fold: a thread sums
// one element of the image, and adjacent threads adjacent elements. Both read through the cache, which the taps of a window share.
namespace tern::kernels {

using namespace gpu;

namespace {

/// A window as a kernel takes it; indices in a launch have 32 bits.
struct Axis {
  int taps, stride, padding, dilation, positions;
  explicit Axis(const WindowAxis& axis)
      : taps(static_cast<int>(axis.taps)),
        stride(static_cast<int>(std::min(axis.stride, std::int64_t(1) << 30))),  // larger ones leave the image at once
        padding(static_cast<int>(axis.padding)),
        dilation(static_cast<int>(axis.dilation)),
        positions(static_cast<int>(axis.positions)) {}
};

template <class T>
struct Unfold {
  const T* x;
  T* columns;
  std::int64_t strides[4];            ///< strides of x: batch, channel, height, width
  std::int64_t batch_step, row_step;  ///< steps of columns
  int height, width;
  Axis y_axis, x_axis;
  Divider runs, rows, taps, taps_of_row, positions, positions_of_row;  ///< runs of a row of columns; C kh kw; kh kw; kw; oh ow; ow
  std::uint32_t length;                                                ///< elements of a row
  std::uint32_t count;                                                 ///< number of threads
};

/// `width` elements of a row, which begin at a multiple of 16 bytes if there are several.
template <class T, int width>
__global__ void __launch_bounds__(block_size) unfold_images(__grid_constant__ const Unfold<T> a) {
  const std::uint32_t index = blockIdx.x * block_size + threadIdx.x;
  if (index >= a.count) return;
  // index = (image or 0, (c kh + i) kw + j, run), decomposed from the last; a position in a row = (image, oh, ow), or (oh, ow).
  const std::uint32_t line = a.runs.divide(index), begin = (index - line * a.runs.divisor) * width;
  const std::uint32_t outer = a.rows.divide(line), row = line - outer * a.rows.divisor;
  const std::uint32_t c = a.taps.divide(row), tap = row - c * a.taps.divisor;
  const std::uint32_t i = a.taps_of_row.divide(tap), j = tap - i * a.taps_of_row.divisor;
  const std::uint32_t inner = a.positions.divide(begin), position = begin - inner * a.positions.divisor;
  const std::uint32_t oh = a.positions_of_row.divide(position), ow = position - oh * a.positions_of_row.divisor;
  const int h_of_first = static_cast<int>(i) * a.y_axis.dilation - a.y_axis.padding;
  const int w_of_first = static_cast<int>(j) * a.x_axis.dilation - a.x_axis.padding;
  int h = h_of_first + static_cast<int>(oh) * a.y_axis.stride, w = w_of_first + static_cast<int>(ow) * a.x_axis.stride;
  int left_of_row = a.x_axis.positions - static_cast<int>(ow), left_of_image = a.y_axis.positions - static_cast<int>(oh);
  const T* image = a.x + (outer + inner) * a.strides[0] + c * a.strides[1];
  const int in_row = min(width, static_cast<int>(a.length - begin));
  Vector<T, width> values;
#pragma unroll
  for (int k = 0; k < width; ++k) {
    values.values[k] = T{};
    if (k < in_row && h >= 0 && h < a.height && w >= 0 && w < a.width) values.values[k] = image[h * a.strides[2] + w * a.strides[3]];
    w += a.x_axis.stride;
    if (--left_of_row > 0) continue;
    left_of_row = a.x_axis.positions;
    w = w_of_first;
    h += a.y_axis.stride;
    if (--left_of_image > 0) continue;
    left_of_image = a.y_axis.positions;
    h = h_of_first;
    image += a.strides[0];
  }
  T* const to = a.columns + outer * a.batch_step + row * a.row_step + begin;
  if (in_row == width) {
    write_vector(to, values);
  } else {
#pragma unroll
    for (int k = 0; k < width; ++k)
      if (k < in_row) to[k] = values.values[k];
  }
}

template <class T>
struct Fold {
  const T* columns;
  T* x;
  std::int64_t batch_step, row_step;  ///< steps of columns
  Axis y_axis, x_axis;
  Divider width, height, channels, y_stride, x_stride;
  std::uint32_t count;
};

template <class T>
__global__ void __launch_bounds__(block_size) fold_columns(__grid_constant__ const Fold<T> a) {
  const std::uint32_t index = blockIdx.x * block_size + threadIdx.x;
  if (index >= a.count) return;
  const std::uint32_t row = a.width.divide(index), w = index - row * a.width.divisor;
  const std::uint32_t plane = a.height.divide(row), h = row - plane * a.height.divisor;
  const std::uint32_t b = a.channels.divide(plane), c = plane - b * a.channels.divisor;
  const T* from = a.columns + b * a.batch_step + std::int64_t(c) * a.y_axis.taps * a.x_axis.taps * a.row_step;
  // The windows that contain (h, w), tap by tap: a fixed order, so that sums are reproducible.
  computed_t<T> sum = 0;
  for (int i = 0; i < a.y_axis.taps; ++i) {
    const int above = static_cast<int>(h) + a.y_axis.padding - i * a.y_axis.dilation;
    const int oh = above < 0 ? -1 : static_cast<int>(a.y_stride.divide(above));
    const bool in_y = oh * a.y_axis.stride == above && oh < a.y_axis.positions;
    for (int j = 0; j < a.x_axis.taps; ++j, from += a.row_step) {
      const int before = static_cast<int>(w) + a.x_axis.padding - j * a.x_axis.dilation;
      if (!in_y || above < 0 || before < 0) continue;
      const int ow = static_cast<int>(a.x_stride.divide(before));
      if (ow * a.x_axis.stride == before && ow < a.x_axis.positions) sum += convert<computed_t<T>>(from[oh * a.x_axis.positions + ow]);
    }
  }
  a.x[index] = convert<T>(sum);
}

/// Calls f(first image, number of images) for parts of a batch that have fewer than 2^31 elements, with `of_image` per image.
template <class F>
void for_images(const char* op, std::int64_t batch, std::int64_t of_image, F&& f) {
  constexpr std::int64_t most = std::int64_t(1) << 30;
  if (batch == 0 || of_image == 0) return;
  if (of_image > most) fail(op, "expected at most 2^30 elements of an image on a GPU");
  const std::int64_t step = std::min(batch, most / of_image);
  for (std::int64_t first = 0; first < batch; first += step) f(first, std::min(step, batch - first));
}

}  // namespace

void unfold(Cuda, const View& x, const SlidingWindow& window, const View& columns) {
  const std::int64_t rows = columns.shape[1], positions = columns.shape[2];
  // Contiguous rows of several images are one row.
  const bool is_joined = columns.strides[0] == positions;
  dispatch_floats(x.dtype, "unfold", [&]<class T>() {
    for_images("unfold", x.shape[0], rows * positions, [&](std::int64_t first, std::int64_t images) {
      constexpr int most = vec16_width<T>;
      Unfold<T> a{x.as<const T>() + first * x.strides[0],
                  columns.as<T>() + first * columns.strides[0],
                  {x.strides[0], x.strides[1], x.strides[2], x.strides[3]},
                  is_joined ? 0 : columns.strides[0],
                  columns.strides[1],
                  static_cast<int>(x.shape[2]),
                  static_cast<int>(x.shape[3]),
                  Axis(window.y),
                  Axis(window.x),
                  {},
                  Divider(rows),
                  Divider(window.y.taps * window.x.taps),
                  Divider(window.x.taps),
                  Divider(positions),
                  Divider(window.x.positions),
                  static_cast<std::uint32_t>(is_joined ? images * positions : positions),
                  0};
      const bool is_wide = is_aligned(a.columns, 16) && a.batch_step % most == 0 && a.row_step % most == 0;
      const std::int64_t runs = (a.length + (is_wide ? most : 1) - 1) / (is_wide ? most : 1);
      a.runs = Divider(runs);
      a.count = static_cast<std::uint32_t>((is_joined ? 1 : images) * rows * runs);
      launch(is_wide ? unfold_images<T, most> : unfold_images<T, 1>, blocks_for(a.count), block_size, 0, columns.stream, a);
    });
  });
}

void fold(Cuda, const View& columns, const SlidingWindow& window, const View& x) {
  const std::int64_t of_image = x.shape[1] * x.shape[2] * x.shape[3];
  dispatch_floats(x.dtype, "fold", [&]<class T>() {
    for_images("fold", x.shape[0], of_image, [&](std::int64_t first, std::int64_t images) {
      const Fold<T> arguments{columns.as<const T>() + first * columns.strides[0],
                              x.as<T>() + first * of_image,
                              columns.strides[0],
                              columns.strides[1],
                              Axis(window.y),
                              Axis(window.x),
                              Divider(x.shape[3]),
                              Divider(x.shape[2]),
                              Divider(x.shape[1]),
                              Divider(Axis(window.y).stride),
                              Divider(Axis(window.x).stride),
                              static_cast<std::uint32_t>(images * of_image)};
      launch(fold_columns<T>, blocks_for(arguments.count), block_size, 0, x.stream, arguments);
    });
  });
}

}  // namespace tern::kernels
