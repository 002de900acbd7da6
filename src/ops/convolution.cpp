#include "ops/kernels/convolution.h"

#include <fmt/format.h>

#include <limits>

#include "autodiff/vjp.h"
#include "ops/conv.h"
#include "ops/copy.h"
#include "ops/detail/autocast.h"
#include "ops/detail/column_convolution.h"
#include "ops/detail/implicit_convolution.h"
#include "ops/detail/window_axis.h"
#include "ops/join.h"
#include "ops/op.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "tensor/view_of.h"

namespace tern {

namespace {

/// Checks a convolution, with the caller's name and shapes in errors, and returns its geometry. A signal is an image of one row.
kernels::Convolution checked(const char* op, const Tensor& x, const Tensor& w, const Tensor& bias, const ConvOptions& o, bool is_signal) {
  const std::int64_t groups = o.groups;
  const auto shown = [&](const Tensor& t) { return to_string(is_signal ? squeeze(t, 2).shape() : t.shape()); };
  if (groups < 1 || x.size(1) != checked_mul(op, w.size(1), groups) || w.size(0) % groups != 0)
    fail(op, fmt::format("expected weights (O, C / groups, ...) with {} channels in {} groups but got {} for {}", x.size(1), groups,
                         shown(w), shown(x)));
  if (bias.defined() && bias.shape() != Shape{w.size(0)})
    fail(op, fmt::format("expected a bias ({},) but got {}", w.size(0), to_string(bias.shape())));
  for (const Tensor* other : {&w, &bias})
    if (other->defined() && (x.dtype() != other->dtype() || !is_floating(x.dtype())))
      fail(op, fmt::format("expected operands of one floating dtype but got {} and {}", name(x.dtype()), name(other->dtype())));
  kernels::WindowAxis axes[2];
  for (int i = 0; i < 2; ++i) {
    const auto d = static_cast<std::size_t>(i);
    const auto axis = detail::window_axis(op, x.size(2 + i), w.size(2 + i), o.stride[d], o.padding[d], o.dilation[d]);
    if (!axis)
      fail(op, fmt::format("expected a kernel that fits into the padded input, and a stride and dilation >= 1, but got {} for {}", shown(w),
                           shown(x)));
    axes[i] = *axis;
  }
  return {{axes[0], axes[1]}, groups};
}

Shape result_shape(const Tensor& x, std::int64_t channels, const kernels::SlidingWindow& window) {
  return {x.size(0), channels, window.y.positions, window.x.positions};
}

/// Convolution by the CPU's kernels.
Tensor direct(const char* op, const Tensor& x_, const Tensor& w_, const Tensor& bias_, const kernels::Convolution& of) {
  const Tensor x = contiguous(x_), w = contiguous(w_), bias = bias_.defined() ? contiguous(bias_) : bias_;
  const auto product = [&]() -> Tensors {
    const Tensor y = empty(result_shape(x, w.size(0), of.window), x.dtype(), x.device());
    detail::on_cpu([&](auto dev) { kernels::convolution(dev, x.view(), w.view(), view_of(bias), of, y.view()); });
    return {y};
  };
  return record(
      op, detail::costly(product)[0], {x, w, bias}, {x, w, bias},
      Product{[&](const Tensors& in) -> Tensors { return {direct(op, in[0], in[1], in[2], of)}; }}, [of](const Backward& call) -> Tensors {
        const Tensor in = call.saved(0), weight = call.saved(1);
        if (context().grad)
          return vjp(call, {in, weight, call.saved(2)},
                     [&of](const Tensors& t) -> Tensors { return {detail::unfolded_convolution(t[0], t[1], t[2], of)}; });
        const Tensor g = contiguous(call.grad()), dx = call.needs(0) ? empty_like(in) : Tensor();
        const GradientTarget dw = call.sink(1, weight.shape(), g), db = call.sink(2, {weight.size(0)}, g);
        detail::on_cpu([&](auto dev) {
          kernels::convolution_grad(dev, in.view(), weight.view(), g.view(), of, view_of(dx), dw.view(), dw.write, db.view(), db.write);
        });
        return {dx, dw.result(), db.result()};
      });
}

Tensor convolved(const char* op, const Tensor& x_, const Tensor& w_, const Tensor& bias_, const ConvOptions& options, bool is_signal) {
  const Tensor x = detail::autocast(op, x_), w = detail::autocast(op, w_), bias = detail::autocast(op, bias_);
  const kernels::Convolution of = checked(op, x, w, bias, options, is_signal);
  if (x.device().type != DeviceType::cpu) return detail::implicit_convolution(op, x, w, bias, of);
  return cast(direct(op, detail::widened(x), detail::widened(w), detail::widened(bias), of), x.dtype());
}

void check_images(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  check_one_device(op, {&x, &weight, &bias});
  if (x.dims() != 4 || weight.dims() != 4)
    fail(op, fmt::format("expected images (B, C, H, W) and weights (O, C / groups, kh, kw) but got {} and {}", to_string(x.shape()),
                         to_string(weight.shape())));
}

}  // namespace

Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvOptions& options) {
  check_images("conv2d", x, weight, bias);
  return convolved("conv2d", x, weight, bias, options, false);
}

Tensor composed_conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvOptions& options) {
  constexpr const char* op = "composed_conv2d";
  check_images(op, x, weight, bias);
  return detail::column_convolution(op, x, weight, bias, checked(op, x, weight, bias, options, false));
}

Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv1dOptions& o) {
  check_one_device("conv1d", {&x, &weight, &bias});
  if (x.dims() != 3 || weight.dims() != 3)
    fail("conv1d", fmt::format("expected signals (B, C, L) and weights (O, C / groups, k) but got {} and {}", to_string(x.shape()),
                               to_string(weight.shape())));
  const ConvOptions options{.stride = {1, o.stride}, .padding = {0, o.padding}, .dilation = {1, o.dilation}, .groups = o.groups};
  return squeeze(convolved("conv1d", unsqueeze(x, 2), unsqueeze(weight, 2), bias, options, true), 2);
}

namespace {

/// Checks a pooling and returns its windows.
kernels::SlidingWindow checked_pool(const char* op, const Tensor& x, const PoolOptions& o) {
  if (x.dims() != 4) fail(op, fmt::format("expected images (B, C, H, W) but got {}", to_string(x.shape())));
  detail::check_floating(op, x);
  kernels::WindowAxis axes[2];
  for (int i = 0; i < 2; ++i) {
    const auto d = static_cast<std::size_t>(i);
    const std::int64_t stride = o.stride[d] == 0 ? o.kernel[d] : o.stride[d];
    const auto axis = detail::window_axis(op, x.size(2 + i), o.kernel[d], stride, o.padding[d], 1);
    if (!axis || o.padding[d] > o.kernel[d] / 2)
      fail(op, fmt::format("expected a kernel that fits into the padded images {}, and padding of at most half of it, but got {} and {}",
                           to_string(x.shape()), o.kernel[d], o.padding[d]));
    axes[i] = *axis;
  }
  return {axes[0], axes[1]};
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
  return reshape(unfold(padded, detail::unfold_options(window)),
                 {x.size(0), x.size(1), window.y.taps * window.x.taps, window.y.positions * window.x.positions});
}

Tensor composed_max(const Tensor& x, const kernels::SlidingWindow& window) {
  return reshape(max(pooled(x, window, -std::numeric_limits<double>::infinity()), 2), result_shape(x, x.size(1), window));
}

Tensor direct_max(const Tensor& x_, const kernels::SlidingWindow& window) {
  const Tensor x = contiguous(x_), y = empty(result_shape(x, x.size(1), window), x.dtype(), x.device());
  detail::on_cpu([&](auto dev) { kernels::max_pool(dev, x.view(), window, y.view()); });
  return record("max_pool2d", y, {x}, {x, y}, [window](const Backward& call) -> Tensors {
    const Tensor in = call.saved(0), top = call.saved(1);
    if (context().grad) return vjp(call, {in}, [&window](const Tensors& t) -> Tensors { return {composed_max(t[0], window)}; });
    const Tensor g = contiguous(call.grad()), dx = empty_like(in);
    detail::on_cpu([&](auto dev) { kernels::max_pool_grad(dev, in.view(), top.view(), g.view(), window, dx.view()); });
    return {dx};
  });
}

}  // namespace

Tensor max_pool2d(const Tensor& x, const PoolOptions& options) {
  const kernels::SlidingWindow window = checked_pool("max_pool2d", x, options);
  if (x.device().type != DeviceType::cpu) return composed_max(x, window);
  return cast(direct_max(detail::widened(x), window), x.dtype());
}

Tensor composed_max_pool2d(const Tensor& x, const PoolOptions& options) {
  return composed_max(x, checked_pool("composed_max_pool2d", x, options));
}

Tensor avg_pool2d(const Tensor& x, const PoolOptions& options) {
  const kernels::SlidingWindow window = checked_pool("avg_pool2d", x, options);
  return reshape(mean(pooled(x, window, 0), 2), result_shape(x, x.size(1), window));
}

Tensor upsample_nearest(const Tensor& x, std::int64_t factor) {
  if (x.dims() < 2) fail("upsample_nearest", fmt::format("expected images (..., H, W) but got {}", to_string(x.shape())));
  if (factor < 1) fail("upsample_nearest", fmt::format("expected a factor >= 1 but got {}", factor));
  return repeat(repeat(x, factor, -2), factor, -1);
}

}  // namespace tern
