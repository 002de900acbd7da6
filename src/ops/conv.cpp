#include "ops/conv.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "ops/factory.h"
#include "ops/kernels/conv.h"
#include "ops/kernels/copy.h"
#include "ops/kernels/matmul.h"
#include "ops/matmul.h"
#include "ops/op.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"

namespace tern {

namespace {

/// Window that slides along an axis of `size` elements with `padding` more at both ends; nothing if a number is out of range or the window
/// does not fit. Of the result the kernels may add up any terms: a stride or a dilation of which no second step is taken is shortened.
/// Throws Error that names `op` for sizes beyond 2^61.
std::optional<kernels::WindowAxis> window_axis(const char* op, std::int64_t size, std::int64_t taps, std::int64_t stride,
                                               std::int64_t padding, std::int64_t dilation) {
  if (taps < 1 || stride < 1 || padding < 0 || dilation < 1) return std::nullopt;
  const std::int64_t padded = checked_add(op, size, checked_mul(op, 2, padding)), most = std::int64_t(1) << 61;
  if (padded > most) fail(op, "expected at most 2^61 elements with the padding but got " + std::to_string(padded));
  const std::int64_t rest = padded - checked_mul(op, dilation, taps - 1) - 1;
  if (rest < 0) return std::nullopt;
  return kernels::WindowAxis{taps, std::min(stride, padded), padding, taps == 1 ? 1 : dilation, rest / stride + 1};
}

kernels::SlidingWindow sliding_window(const char* op, const UnfoldOptions& options, std::int64_t height, std::int64_t width) {
  const auto axis = [&](std::size_t d, std::int64_t size) {
    const std::int64_t taps = options.kernel[d], stride = options.stride[d], padding = options.padding[d], dilation = options.dilation[d];
    if (taps < 1 || stride < 1 || dilation < 1 || padding < 0)
      fail(op, fmt::format("expected kernel, stride and dilation of at least 1 and padding of at least 0 but got {}, {}, {} and {}", taps,
                           stride, dilation, padding));
    const auto window = window_axis(op, size, taps, stride, padding, dilation);
    if (!window || size + 2 * padding > std::int64_t(1) << 30)
      fail(op, fmt::format("expected a window of {} elements, {} apart, that fits into {} + 2 * {}, at most 2^30", taps, dilation, size,
                           padding));
    return *window;
  };
  return {axis(0, height), axis(1, width)};
}

/// The window as the options of unfold and fold.
UnfoldOptions unfold_options(const kernels::SlidingWindow& window) {
  const kernels::WindowAxis &y = window.y, &x = window.x;
  return {
      .kernel = {y.taps, x.taps}, .stride = {y.stride, x.stride}, .padding = {y.padding, x.padding}, .dilation = {y.dilation, x.dilation}};
}

struct Unfold {
  static constexpr Op op{.name = "unfold", .takes = Takes::floating};
  UnfoldOptions options;

  struct Kept {
    std::int64_t height, width;
  };
  Result<Tensor, Kept> forward(const Tensor& x) const {
    if (x.dims() != 4) fail(op.name, fmt::format("expected x (B, C, H, W) but got {}", to_string(x.shape())));
    const kernels::SlidingWindow window = sliding_window(op.name, options, x.size(2), x.size(3));
    const std::int64_t depth = checked_mul(op.name, x.size(1), window.y.taps * window.x.taps);
    const Tensor columns = empty({x.size(0), depth, window.y.positions * window.x.positions}, x.dtype(), x.device());
    launch(x.device(), kernels::Unfold{x, window, columns});
    return {columns, {x.size(2), x.size(3)}};
  }
  Tensors backward(const Backward& call, const Kept& image) const { return {fold(call.grad(), image.height, image.width, options)}; }
};

struct Fold {
  static constexpr Op op{.name = "fold", .takes = Takes::floating};
  std::int64_t height, width;
  UnfoldOptions options;

  Result<Tensor> forward(const Tensor& given) const {
    if (height < 0 || width < 0) fail(op.name, fmt::format("expected a height and a width of at least 0 but got {} and {}", height, width));
    const kernels::SlidingWindow window = sliding_window(op.name, options, height, width);
    const std::int64_t taps = window.y.taps * window.x.taps, positions = window.y.positions * window.x.positions;
    if (given.dims() != 3 || given.size(1) % taps != 0 || given.size(2) != positions)
      fail(op.name, fmt::format("expected columns (B, C * {}, {}) but got {}", taps, positions, to_string(given.shape())));
    const Tensor columns = contiguous(given),
                 x = empty({given.size(0), given.size(1) / taps, height, width}, given.dtype(), given.device());
    launch(x.device(), kernels::Fold{columns, window, x});
    return {x};
  }
  Tensors backward(const Backward& call) const { return {unfold(call.grad(), options)}; }
};

}  // namespace

Tensor unfold(const Tensor& x, const UnfoldOptions& options) { return call(Unfold{options}, x); }
Tensor fold(const Tensor& columns, std::int64_t height, std::int64_t width, const UnfoldOptions& options) {
  return call(Fold{height, width, options}, columns);
}

// Note [Columns]
// The columns of n images are joined into one matrix, C kh kw rows of n oh ow positions. Then a convolution is one product, and so are the
// gradients of the columns and of the weights, whose depth is all of these positions: there is no product for each image, and no sum over
// the images' gradients of the weights. The rows begin at multiples of 16 bytes, as fast products of 16-bit floats require: rows of the 49
// positions of one 7 x 7 image do not, those of 32 images do. The result of such a product, (O, n, oh ow), is transposed to (n, O, oh ow)
// by a copy that also adds the bias. For images with many positions, whose rows are aligned too, a product for each image is as fast and
// writes y in place.

namespace {

/// Note [Column bytes]
/// Bytes of columns at a time. About the L2 cache of a large GPU (H100: 50 MB), so that a product finds most of its columns in the cache,
/// and enough that the product has more tiles than the GPU has multiprocessors: for ResNet-18's 3 x 3 convolutions of 64 channels at 56 x
/// 56 in float32 these are 9 images, or 28224 positions. At least one image.
constexpr std::int64_t column_bytes = std::int64_t{64} << 20;

Shape result_shape(const Tensor& x, std::int64_t channels, const kernels::SlidingWindow& window) {
  return {x.size(0), channels, window.y.positions, window.x.positions};
}

/// Sizes of a convolution as matrix products, and the memory for the columns of a chunk of images.
class Columns {
 public:
  Columns(const Tensor& x, const Tensor& w, const kernels::Convolution& of, std::int64_t bytes)
      : of_(of),
        batch_(x.size(0)),
        groups_(of.groups),
        outputs_(w.size(0) / of.groups),
        depth_(w.size(1) * w.size(2) * w.size(3)),
        positions_(of.window.y.positions * of.window.x.positions),
        element_(static_cast<std::int64_t>(size_of(x.dtype()))),
        like_(x) {
    const std::int64_t of_image = std::max<std::int64_t>(groups_ * depth_ * positions_ * element_, 1);
    const std::int64_t most = std::clamp<std::int64_t>(bytes / of_image, 1, std::max<std::int64_t>(batch_, 1));
    const std::int64_t runs = (batch_ + most - 1) / most;
    step_ = runs == 0 ? 1 : (batch_ + runs - 1) / runs;  // chunks of equal length, except the last
  }

  /// Calls f(first image, number of images) for each chunk of the batch; calls it once with no images if the batch is empty.
  template <class F>
  void for_runs(F f) const {
    for (std::int64_t first = 0; first == 0 || first < batch_; first += step_) f(first, std::min(step_, batch_ - first));
  }

  /// True if the columns of an image are the image itself.
  bool is_image(const Tensor& x) const {
    const auto is_unit = [](const kernels::WindowAxis& a) { return a.taps == 1 && a.stride == 1 && a.padding == 0; };
    return is_unit(of_.window.y) && is_unit(of_.window.x) && x.is_contiguous();
  }
  /// True for one product per image, see Note [Columns].
  bool is_by_image() const { return groups_ == 1 && positions_ >= 512 && positions_ * element_ % alignment == 0; }

  /// New memory for `rows` rows of n oh ow positions.
  Tensor memory(std::int64_t rows) const { return empty({rows, row()}, like_.dtype(), like_.device()); }
  Tensor memory() const { return memory(groups_ * depth_); }
  /// Memory of (groups r) rows as (groups, r, n oh ow), for products of n images.
  Tensor by_group(const Tensor& memory, std::int64_t n) const {
    const std::int64_t rows = memory.size(0) / groups_;
    return memory.window({groups_, rows, n * positions_}, {rows * row(), row(), 1}, 0);
  }
  /// The same as (n, rows, oh ow).
  Tensor by_image(const Tensor& memory, std::int64_t n) const {
    return memory.window({n, memory.size(0), positions_}, {positions_, row(), 1}, 0);
  }
  /// Images first .. first + n - 1 of a contiguous tensor (B, channels, ...), as (n, channels, elements of a channel).
  static Tensor images(const Tensor& x, std::int64_t first, std::int64_t n) {
    const Tensor part = slice(x, 0, first, first + n);
    return reshape(part, {n, x.size(1), x.size(2) * x.size(3)});
  }
  /// The weights or their gradient, contiguous, as (groups, O / groups, C / groups kh kw).
  Tensor weights(const Tensor& w) const { return reshape(w, {groups_, outputs_, depth_}); }
  /// The weights as (n, O, C kh kw), for products by image.
  Tensor repeated(const Tensor& w, std::int64_t n) const { return expand(weights(w), {n, outputs_, depth_}); }

  const kernels::SlidingWindow& window() const { return of_.window; }
  std::int64_t channels() const { return groups_ * outputs_; }
  std::int64_t batch() const { return batch_; }

 private:
  static constexpr std::int64_t alignment = 16;  ///< bytes
  std::int64_t row() const {
    const std::int64_t step = alignment / element_;
    return (step_ * positions_ + step - 1) / step * step;
  }

  kernels::Convolution of_;
  std::int64_t batch_, groups_, outputs_, depth_, positions_, element_, step_ = 1;
  Tensor like_;
};

void product(const Tensor& a, const Tensor& b, const Tensor& c, Write write = Write::overwrite) {
  launch(c.device(), kernels::Matmul{a, b, c, 1, write});
}

/// to = from, plus the bias of each channel if there is one; (n, O, positions).
void write_biased(const Tensor& from, const Tensor& bias, const Tensor& to) {
  if (!bias.defined()) return launch(to.device(), kernels::Copy{from, to});
  launch(to.device(), kernels::Binary{functors::Add{}, from, expand(reshape(bias, {bias.size(0), 1}), to.shape()).view(), to});
}

void unfold_into(const Columns& columns, const Tensor& x, std::int64_t first, std::int64_t n, const Tensor& memory) {
  const Tensor images = slice(x, 0, first, first + n), to = columns.by_image(memory, n);
  launch(x.device(), kernels::Unfold{images, columns.window(), to});
}

/// Writes the convolution to y, contiguous.
void convolve(const Columns& columns, const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& y) {
  if (columns.is_image(x) && columns.is_by_image()) {
    const Tensor all = Columns::images(y, 0, columns.batch());
    product(columns.repeated(w, columns.batch()), Columns::images(x, 0, columns.batch()), all);
    if (bias.defined()) write_biased(all, bias, all);
    return;
  }
  const Tensor memory = columns.memory(), transposed = columns.is_by_image() ? Tensor() : columns.memory(columns.channels());
  columns.for_runs([&](std::int64_t first, std::int64_t n) {
    const Tensor part = Columns::images(y, first, n);
    unfold_into(columns, x, first, n, memory);
    if (!transposed.defined()) return product(columns.repeated(w, n), columns.by_image(memory, n), part);
    product(columns.weights(w), columns.by_group(memory, n), columns.by_group(transposed, n));
    write_biased(columns.by_image(transposed, n), bias, part);
  });
  if (!transposed.defined() && bias.defined()) {
    const Tensor all = Columns::images(y, 0, columns.batch());
    write_biased(all, bias, all);
  }
}

/// Writes the gradients of x and of the weights, contiguous, where dx and dw are targets, from g, the contiguous gradient of y.
void gradients(const Columns& columns, const Tensor& x, const Tensor& w, const Tensor& g, const Tensor& dx, const GradientTarget& dw) {
  const bool is_by_image = columns.is_image(x) && columns.is_by_image();
  if (dx.defined() && is_by_image)
    product(transpose(columns.repeated(w, columns.batch()), 1, 2), Columns::images(g, 0, columns.batch()),
            Columns::images(dx, 0, columns.batch()));
  const bool folds = dx.defined() && !is_by_image;
  if (!folds && !dw) return;
  const Tensor memory = columns.memory(), transposed = columns.memory(columns.channels());
  columns.for_runs([&](std::int64_t first, std::int64_t n) {
    const Tensor g_by_group = columns.by_group(transposed, n), by_group = columns.by_group(memory, n);
    write_biased(Columns::images(g, first, n), {}, columns.by_image(transposed, n));
    if (dw) {
      unfold_into(columns, x, first, n, memory);
      product(g_by_group, transpose(by_group, 1, 2), columns.weights(dw.gradient), first == 0 ? dw.write : Write::accumulate);
    }
    if (!folds) return;
    product(transpose(columns.weights(w), 1, 2), g_by_group, by_group);
    const Tensor from = columns.by_image(memory, n), to = slice(dx, 0, first, first + n);
    launch(dx.device(), kernels::Fold{from, columns.window(), to});
  });
}

/// y = x cross-correlated with the weights, plus the bias, in ops: for gradients that are to be differentiated again.
Tensor unfolded_convolution(const Tensor& x, const Tensor& w, const Tensor& bias, const kernels::Convolution& of) {
  const std::int64_t depth = w.size(1) * w.size(2) * w.size(3), positions = of.window.y.positions * of.window.x.positions;
  const Tensor columns = reshape(unfold(x, unfold_options(of.window)), {x.size(0), of.groups, depth, positions});
  const Tensor y = matmul(reshape(w, {of.groups, w.size(0) / of.groups, depth}), columns);
  const Tensor image = reshape(y, result_shape(x, w.size(0), of.window));
  return bias.defined() ? image + reshape(bias, {w.size(0), 1, 1}) : image;
}

/// How a convolution is computed.
enum class Way : std::uint8_t {
  direct,    ///< by the CPU's kernels
  implicit,  ///< on a GPU, by an implicit GEMM; backward chooses separately
  columns,   ///< on any device, by Note [Columns]
};

/// Convolution of operands that have been checked. Gradients are summed in an order that depends on the shapes alone.
struct Convolved {
  Op op;
  kernels::Convolution of;
  Way way;
  std::int64_t bytes;  ///< of columns at a time

  struct Kept {
    Tensor x, w, bias;
  };
  Result<Tensor, Kept> forward(const Tensor& images, const Tensor& weight, const Tensor& shift) const {
    const Tensor x = way == Way::direct ? contiguous(images) : images, w = contiguous(weight);
    const Tensor bias = detail::contiguous_or_none(shift);
    if (way == Way::columns)
      for (const auto& [size, padding] : {std::pair{x.size(2), of.window.y.padding}, {x.size(3), of.window.x.padding}})
        if (size + 2 * padding > std::int64_t(1) << 30)
          fail(op.name,
               fmt::format("expected images of at most 2^30 rows and columns, padding included, but got {}", to_string(x.shape())));
    const Tensors results = detail::costly([&]() -> Tensors {
      const NoGrad unrecorded;
      const Tensor y = empty(result_shape(x, w.size(0), of.window), x.dtype(), x.device());
      const View add = view_of(bias);
      if (way == Way::direct) launch(Cpu{}, kernels::Convolve{x, w, add, of, y});
      else if (way == Way::columns) convolve(Columns(x, w, of, bytes), x, w, bias, y);
      else launch(Cuda{}, kernels::ImplicitConvolve{x, w, add, of, y});
      return {y};
    });
    return {results[0], {x, w, bias}};
  }
  Tensors backward(const Backward& call, const Kept& kept) const {
    const auto& [x, w, bias] = kept;
    if (context().grad)
      return vjp(call, {x, w, bias}, [&](const Tensors& in) -> Tensors { return {unfolded_convolution(in[0], in[1], in[2], of)}; });
    const Tensor g = contiguous(call.grad()), dx = call.needs(0) ? empty(x.shape(), x.dtype(), x.device()) : Tensor();
    const GradientTarget dw = call.sink(1, w.shape(), g);
    if (way == Way::direct) {
      const GradientTarget db = call.sink(2, {w.size(0)}, g);
      launch(Cpu{}, kernels::ConvolveGrad{kept.x, kept.w, g, of, view_of(dx), dw.view(), dw.write, db.view(), db.write});
      return {dx, dw.result(), db.result()};
    }
    const bool is_implicit = way == Way::implicit && dx.defined() && cuda_has(x.device(), [&](auto dev) {
                               return kernels::has_implicit_convolution_grad(dev, g.view(), kept.w.view(), of, dx.view());
                             });
    if (is_implicit) launch(Cuda{}, kernels::ImplicitConvolveGrad{g, kept.w, of, dx});
    gradients(Columns(x, w, of, bytes), x, w, g, is_implicit ? Tensor() : dx, dw);
    return {dx, dw.result(), call.needs(2) ? sum(g, {0, 2, 3}) : Tensor()};
  }
};

/// conv2d, and conv1d as that of images of one row.
struct Conv {
  Op op;
  ConvOptions options;
  bool is_signal = false;
  std::int64_t bytes = column_bytes;  ///< of columns at a time

  Tensor plain(const Tensor& x, const Tensor& weight, const Tensor& bias) const { return compute(x, weight, bias, true); }
  Tensor forward(const Tensor& x, const Tensor& weight, const Tensor& bias) const { return compute(x, weight, bias, false); }

 private:
  Tensor compute(const Tensor& given, const Tensor& weight, const Tensor& bias, bool by_columns) const {
    if (is_signal && (given.dims() != 3 || weight.dims() != 3))
      fail(op.name, fmt::format("expected signals (B, C, L) and weights (O, C / groups, k) but got {} and {}", to_string(given.shape()),
                                to_string(weight.shape())));
    if (!is_signal && (given.dims() != 4 || weight.dims() != 4))
      fail(op.name, fmt::format("expected images (B, C, H, W) and weights (O, C / groups, kh, kw) but got {} and {}",
                                to_string(given.shape()), to_string(weight.shape())));
    const Tensor x = is_signal ? unsqueeze(given, 2) : given, w = is_signal ? unsqueeze(weight, 2) : weight;
    const kernels::Convolution of = checked(x, w, bias, given.shape(), weight.shape());
    const auto has = [&](auto dev) { return kernels::has_implicit_convolution(dev, x.view(), w.view(), of); };
    const Way way = by_columns                           ? Way::columns
                    : x.device().type == DeviceType::cpu ? Way::direct
                    : cuda_has(x.device(), has)          ? Way::implicit
                                                         : Way::columns;
    const Convolved f{{.name = op.name, .tangent = Tangent::product}, of, way, bytes};
    const Tensor y =
        way == Way::direct ? cast(call(f, detail::widened(x), detail::widened(w), detail::widened(bias)), x.dtype()) : call(f, x, w, bias);
    return is_signal ? squeeze(y, 2) : y;
  }
  /// Checks the operands, whose shapes errors show as they were given, and returns the geometry.
  kernels::Convolution checked(const Tensor& x, const Tensor& w, const Tensor& bias, const Shape& shape_of_x,
                               const Shape& shape_of_w) const {
    const std::int64_t groups = options.groups;
    if (groups < 1 || x.size(1) != checked_mul(op.name, w.size(1), groups) || w.size(0) % groups != 0)
      fail(op.name, fmt::format("expected weights (O, C / groups, ...) with {} channels in {} groups but got {} for {}", x.size(1), groups,
                                to_string(shape_of_w), to_string(shape_of_x)));
    if (bias.defined() && bias.shape() != Shape{w.size(0)})
      fail(op.name, fmt::format("expected a bias ({},) but got {}", w.size(0), to_string(bias.shape())));
    for (const Tensor* other : {&w, &bias})
      if (other->defined() && (x.dtype() != other->dtype() || !is_floating(x.dtype())))
        fail(op.name, fmt::format("expected operands of one floating dtype but got {} and {}", name(x.dtype()), name(other->dtype())));
    const auto axis = [&](int i) {
      const auto d = static_cast<std::size_t>(i);
      const auto made = window_axis(op.name, x.size(2 + i), w.size(2 + i), options.stride[d], options.padding[d], options.dilation[d]);
      if (!made)
        fail(op.name, fmt::format("expected a kernel that fits into the padded input, and a stride and dilation >= 1, but got {} for {}",
                                  to_string(shape_of_w), to_string(shape_of_x)));
      return *made;
    };
    return {{axis(0), axis(1)}, groups};
  }
};

}  // namespace

Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvOptions& options) {
  return call(Conv{{.name = "conv2d", .autocast = CastTo::lower}, options}, x, weight, bias);
}

Tensor detail::conv2d_by_columns(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvOptions& options,
                                 std::int64_t bytes) {
  return Conv{{.name = "conv2d"}, options, false, bytes}.plain(x, weight, bias);
}

Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv1dOptions& o) {
  const ConvOptions options{.stride = {1, o.stride}, .padding = {0, o.padding}, .dilation = {1, o.dilation}, .groups = o.groups};
  return call(Conv{{.name = "conv1d", .autocast = CastTo::lower}, options, true}, x, weight, bias);
}

namespace {

/// Checks a pooling and returns its windows.
kernels::SlidingWindow checked_pool(const char* op, const Tensor& x, const PoolOptions& o) {
  if (x.dims() != 4) fail(op, fmt::format("expected images (B, C, H, W) but got {}", to_string(x.shape())));
  detail::check_floating(op, x);
  const auto axis = [&](int i) {
    const auto d = static_cast<std::size_t>(i);
    const std::int64_t stride = o.stride[d] == 0 ? o.kernel[d] : o.stride[d];
    const auto made = window_axis(op, x.size(2 + i), o.kernel[d], stride, o.padding[d], 1);
    if (!made || o.padding[d] > o.kernel[d] / 2)
      fail(op, fmt::format("expected a kernel that fits into the padded images {}, and padding of at most half of it, but got {} and {}",
                           to_string(x.shape()), o.kernel[d], o.padding[d]));
    return *made;
  };
  return {axis(0), axis(1)};
}

/// Windows (B, C, kh kw, oh ow) of images that are padded with a value.
Tensor pooled(const Tensor& x, kernels::SlidingWindow window, double padding) {
  Tensor padded = x;
  int dim = 2;
  if (padding != 0)  // unfold itself pads with 0
    for (kernels::WindowAxis* axis : {&window.y, &window.x}) {
      if (axis->padding > 0) padded = pad(padded, dim, axis->padding, axis->padding, padding);
      axis->padding = 0;
      ++dim;
    }
  return reshape(unfold(padded, unfold_options(window)),
                 {x.size(0), x.size(1), window.y.taps * window.x.taps, window.y.positions * window.x.positions});
}

struct MaxPool {
  static constexpr Op op{.name = "max_pool2d"};
  kernels::SlidingWindow window;

  struct Kept {
    Tensor x, y;
  };
  Tensor plain(const Tensor& x) const {
    return reshape(max(pooled(x, window, -std::numeric_limits<double>::infinity()), 2), result_shape(x, x.size(1), window));
  }
  Result<Tensor, Kept> forward(const Tensor& images) const {
    const Tensor x = contiguous(images), y = empty(result_shape(x, x.size(1), window), x.dtype(), x.device());
    launch(Cpu{}, kernels::MaxPool{x, window, y});
    return {y, {x, y}};
  }
  Tensors backward(const Backward& call, const Kept& kept) const {
    if (context().grad) return vjp(call, {kept.x}, [&](const Tensors& in) -> Tensors { return {plain(in[0])}; });
    const Tensor g = contiguous(call.grad()), dx = empty_like(kept.x);
    launch(Cpu{}, kernels::MaxPoolGrad{kept.x, kept.y, g, window, dx});
    return {dx};
  }
};

}  // namespace

Tensor max_pool2d(const Tensor& x, const PoolOptions& options) {
  const MaxPool f{checked_pool("max_pool2d", x, options)};
  return x.device().type == DeviceType::cpu ? cast(call(f, detail::widened(x)), x.dtype()) : f.plain(x);
}

Tensor avg_pool2d(const Tensor& x, const PoolOptions& options) {
  const kernels::SlidingWindow window = checked_pool("avg_pool2d", x, options);
  return reshape(mean(pooled(x, window, 0), 2), result_shape(x, x.size(1), window));
}

}  // namespace tern
