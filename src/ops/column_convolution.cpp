#include "ops/detail/column_convolution.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "autodiff/vjp.h"
#include "ops/copy.h"
#include "ops/kernels/copy.h"
#include "ops/kernels/matmul.h"
#include "ops/matmul.h"
#include "ops/op.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"

// Note [Columns]
// The columns of n images are joined into one matrix, C kh kw rows of n oh ow positions. Then a convolution is one product, and so are the
// gradients of the columns and of the weights, whose depth is all of these positions: there is no product for each image, and no sum over
// the images' gradients of the weights. The rows begin at multiples of 16 bytes, as fast products of 16-bit floats require: rows of the 49
// positions of one 7 x 7 image do not, those of 32 images do. The result of such a product, (O, n, oh ow), is transposed to (n, O, oh ow)
// by a copy that also adds the bias. For images with many positions, whose rows are aligned too, a product for each image is as fast and
// writes y in place.
namespace tern::detail {

namespace {

Shape result_shape(const Tensor& x, const Tensor& w, const kernels::Convolution& of) {
  return {x.size(0), w.size(0), of.window.y.positions, of.window.x.positions};
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
  on(c.device(), [&](auto dev) { kernels::matmul(dev, a.view(), b.view(), c.view(), 1, write); });
}

/// to = from, plus the bias of each channel if there is one; (n, O, positions).
void write_biased(const Tensor& from, const Tensor& bias, const Tensor& to) {
  on(to.device(), [&](auto dev) {
    if (!bias.defined()) return kernels::copy(dev, from.view(), to.view());
    kernels::binary(dev, functors::Add{}, from.view(), expand(reshape(bias, {bias.size(0), 1}), to.shape()).view(), to.view());
  });
}

void unfold_into(const Columns& columns, const Tensor& x, std::int64_t first, std::int64_t n, const Tensor& memory) {
  const Tensor images = slice(x, 0, first, first + n), to = columns.by_image(memory, n);
  on(x.device(), [&](auto dev) { kernels::unfold(dev, images.view(), columns.window(), to.view()); });
}

Tensor forward(const Columns& columns, const Tensor& x, const Tensor& w, const Tensor& bias, const Shape& shape) {
  const NoGrad unrecorded;
  const Tensor y = empty(shape, x.dtype(), x.device());
  if (columns.is_image(x) && columns.is_by_image()) {
    const Tensor all = Columns::images(y, 0, columns.batch());
    product(columns.repeated(w, columns.batch()), Columns::images(x, 0, columns.batch()), all);
    if (bias.defined()) write_biased(all, bias, all);
    return y;
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
  return y;
}

/// Gradients of x, if wants_x, and of the weights, if dw is a target.
Tensor gradients(const Columns& columns, const Tensor& x, const Tensor& w, const Tensor& g, bool wants_x, const GradientTarget& dw) {
  const NoGrad unrecorded;
  const Tensor dx = wants_x ? empty(x.shape(), x.dtype(), x.device()) : Tensor();
  const bool is_by_image = columns.is_image(x) && columns.is_by_image();
  if (wants_x && is_by_image)
    product(transpose(columns.repeated(w, columns.batch()), 1, 2), Columns::images(g, 0, columns.batch()),
            Columns::images(dx, 0, columns.batch()));
  const bool folds = wants_x && !is_by_image;
  if (!folds && !dw) return dx;
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
    on(dx.device(), [&](auto dev) { kernels::fold(dev, from.view(), columns.window(), to.view()); });
  });
  return dx;
}

}  // namespace

UnfoldOptions unfold_options(const kernels::SlidingWindow& window) {
  const kernels::WindowAxis &y = window.y, &x = window.x;
  return {
      .kernel = {y.taps, x.taps}, .stride = {y.stride, x.stride}, .padding = {y.padding, x.padding}, .dilation = {y.dilation, x.dilation}};
}

Tensor unfolded_convolution(const Tensor& x, const Tensor& w, const Tensor& bias, const kernels::Convolution& of) {
  const std::int64_t depth = w.size(1) * w.size(2) * w.size(3), positions = of.window.y.positions * of.window.x.positions;
  const Tensor columns = reshape(unfold(x, unfold_options(of.window)), {x.size(0), of.groups, depth, positions});
  const Tensor y = matmul(reshape(w, {of.groups, w.size(0) / of.groups, depth}), columns);
  const Tensor image = reshape(y, result_shape(x, w, of));
  return bias.defined() ? image + reshape(bias, {w.size(0), 1, 1}) : image;
}

Tensor column_gradients(const Tensor& x, const Tensor& w, const Tensor& g, const kernels::Convolution& of, bool wants_x,
                        const GradientTarget& dw, std::int64_t bytes) {
  return gradients(Columns(x, w, of, bytes), x, w, g, wants_x, dw);
}

Tensor column_convolution(const char* op, const Tensor& x, const Tensor& w_, const Tensor& bias, const kernels::Convolution& of,
                          std::int64_t bytes) {
  for (const auto& [size, padding] : {std::pair{x.size(2), of.window.y.padding}, {x.size(3), of.window.x.padding}})
    if (size + 2 * padding > std::int64_t(1) << 30)
      fail(op, fmt::format("expected images of at most 2^30 rows and columns, padding included, but got {}", to_string(x.shape())));
  const Tensor w = contiguous(w_);
  const auto result = [&]() -> Tensors { return {forward(Columns(x, w, of, bytes), x, w, bias, result_shape(x, w, of))}; };
  return record(op, costly(result)[0], {x, w, bias}, {x, w, bias},
                Product{[&](const Tensors& in) -> Tensors { return {column_convolution(op, in[0], in[1], in[2], of, bytes)}; }},
                [of, bytes](const Backward& call) -> Tensors {
                  const Tensor in = call.saved(0), weight = call.saved(1);
                  if (context().grad)
                    return vjp(call, {in, weight, call.saved(2)},
                               [&of](const Tensors& t) -> Tensors { return {unfolded_convolution(t[0], t[1], t[2], of)}; });
                  const Tensor g = contiguous(call.grad());
                  const GradientTarget dw = call.sink(1, weight.shape(), g);
                  const Tensor dx = column_gradients(in, weight, g, of, call.needs(0), dw, bytes);
                  return {dx, dw.result(), call.needs(2) ? sum(g, {0, 2, 3}) : Tensor()};
                });
}

}  // namespace tern::detail
