#include "cuda/device/convert.cuh"
#include "cuda/device/indexer.cuh"
#include "cuda/runtime/launch.h"
#include "ops/kernels/conv.h"
#include "tensor/dispatch.h"

// im2col and its adjoint. A thread writes one element, and neighbouring threads neighbouring ones; either way the image is read (unfold)
// or summed (fold) through the cache, which the taps of a window share.
namespace tern::kernels {

using namespace gpu;

namespace {

/// A window as a kernel takes it; indices of a launch count in 32 bits.
struct Axis {
  int taps, stride, padding, dilation, positions;
  explicit Axis(const WindowAxis& axis)
      : taps(static_cast<int>(axis.taps)),
        stride(static_cast<int>(axis.stride)),
        padding(static_cast<int>(axis.padding)),
        dilation(static_cast<int>(axis.dilation)),
        positions(static_cast<int>(axis.positions)) {}
};

template <class T>
struct Unfold {
  const T* x;
  T* columns;
  std::int64_t strides[4];  ///< of x: batch, channel, height, width
  int height, width;
  Axis y_axis, x_axis;
  Divider columns_of_row, rows, taps_of_row, taps, channels;  ///< positions and taps along x and y, then C
  std::uint32_t count;
};

template <class T>
__global__ void __launch_bounds__(block_size) unfold_images(__grid_constant__ const Unfold<T> a) {
  const std::uint32_t index = blockIdx.x * block_size + threadIdx.x;
  if (index >= a.count) return;
  // index = (((b C + c) kh + i) kw + j, oh, ow), taken apart from the last.
  const std::uint32_t row = a.columns_of_row.divide(index), ow = index - row * a.columns_of_row.divisor;
  const std::uint32_t tap = a.rows.divide(row), oh = row - tap * a.rows.divisor;
  const std::uint32_t tap_row = a.taps_of_row.divide(tap), j = tap - tap_row * a.taps_of_row.divisor;
  const std::uint32_t plane = a.taps.divide(tap_row), i = tap_row - plane * a.taps.divisor;
  const std::uint32_t b = a.channels.divide(plane), c = plane - b * a.channels.divisor;
  const int h = static_cast<int>(oh) * a.y_axis.stride + static_cast<int>(i) * a.y_axis.dilation - a.y_axis.padding;
  const int w = static_cast<int>(ow) * a.x_axis.stride + static_cast<int>(j) * a.x_axis.dilation - a.x_axis.padding;
  T value{};
  if (h >= 0 && h < a.height && w >= 0 && w < a.width)
    value = a.x[b * a.strides[0] + c * a.strides[1] + h * a.strides[2] + w * a.strides[3]];
  a.columns[index] = value;
}

template <class T>
struct Fold {
  const T* columns;
  T* x;
  Axis y_axis, x_axis;
  Divider width, height;
  std::uint32_t count;
};

template <class T>
__global__ void __launch_bounds__(block_size) fold_columns(__grid_constant__ const Fold<T> a) {
  const std::uint32_t index = blockIdx.x * block_size + threadIdx.x;
  if (index >= a.count) return;
  const std::uint32_t row = a.width.divide(index), w = index - row * a.width.divisor;
  const std::uint32_t plane = a.height.divide(row), h = row - plane * a.height.divisor;
  const std::int64_t positions = std::int64_t(a.y_axis.positions) * a.x_axis.positions;
  const T* from = a.columns + std::int64_t(plane) * a.y_axis.taps * a.x_axis.taps * positions;
  // The windows that see (h, w), tap by tap: a fixed order, so that sums are the same every time.
  computed_t<T> sum = 0;
  for (int i = 0; i < a.y_axis.taps; ++i) {
    const int above = static_cast<int>(h) + a.y_axis.padding - i * a.y_axis.dilation, oh = above / a.y_axis.stride;
    const bool in_y = above >= 0 && oh * a.y_axis.stride == above && oh < a.y_axis.positions;
    for (int j = 0; j < a.x_axis.taps; ++j, from += positions) {
      const int before = static_cast<int>(w) + a.x_axis.padding - j * a.x_axis.dilation, ow = before / a.x_axis.stride;
      if (in_y && before >= 0 && ow * a.x_axis.stride == before && ow < a.x_axis.positions)
        sum += convert<computed_t<T>>(from[std::int64_t(oh) * a.x_axis.positions + ow]);
    }
  }
  a.x[index] = convert<T>(sum);
}

/// Calls f(first image, number of images) for parts of a batch that have fewer than 2^31 elements, with `of_image` in each image.
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
  const std::int64_t channels = x.shape[1], of_image = columns.shape[1] * columns.shape[2];
  dispatch_floats(x.dtype, "unfold", [&]<class T>() {
    for_images("unfold", x.shape[0], of_image, [&](std::int64_t first, std::int64_t images) {
      const Unfold<T> arguments{x.as<const T>() + first * x.strides[0],
                                columns.as<T>() + first * of_image,
                                {x.strides[0], x.strides[1], x.strides[2], x.strides[3]},
                                static_cast<int>(x.shape[2]),
                                static_cast<int>(x.shape[3]),
                                Axis(window.y),
                                Axis(window.x),
                                Divider(window.x.positions),
                                Divider(window.y.positions),
                                Divider(window.x.taps),
                                Divider(window.y.taps),
                                Divider(channels),
                                static_cast<std::uint32_t>(images * of_image)};
      launch(unfold_images<T>, blocks_for(arguments.count), block_size, 0, columns.stream, arguments);
    });
  });
}

void fold(Cuda, const View& columns, const SlidingWindow& window, const View& x) {
  const std::int64_t of_image = x.shape[1] * x.shape[2] * x.shape[3], of_columns = columns.shape[1] * columns.shape[2];
  dispatch_floats(x.dtype, "fold", [&]<class T>() {
    for_images("fold", x.shape[0], of_image, [&](std::int64_t first, std::int64_t images) {
      const Fold<T> arguments{columns.as<const T>() + first * of_columns,
                              x.as<T>() + first * of_image,
                              Axis(window.y),
                              Axis(window.x),
                              Divider(x.shape[3]),
                              Divider(x.shape[2]),
                              static_cast<std::uint32_t>(images * of_image)};
      launch(fold_columns<T>, blocks_for(arguments.count), block_size, 0, x.stream, arguments);
    });
  });
}

}  // namespace tern::kernels
