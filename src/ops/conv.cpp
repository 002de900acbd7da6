#include "ops/conv.h"

#include <fmt/format.h>

#include "autodiff/vjp.h"
#include "ops/copy.h"
#include "ops/detail/autocast.h"
#include "ops/detail/window_axis.h"
#include "ops/join.h"
#include "ops/kernels/conv.h"
#include "ops/op.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "tensor/checked.h"
#include "tensor/view_of.h"

namespace tern {

namespace {

/// Padding and activation: the options that remain once u is (B, L, D).
struct Window {
  std::int64_t left, right;
  bool silu;

  std::int64_t outputs(std::int64_t length, std::int64_t taps) const { return length + left + right - taps + 1; }
};

void check_operands(const char* op, const Tensor& u, const Tensor& w, const Tensor& bias) {
  check_one_device(op, {&u, &w, &bias});
  detail::check_floating(op, u);
  for (const Tensor* parameter : {&w, &bias})
    if (parameter->defined() && parameter->dtype() != u.dtype())
      fail(op, fmt::format("expected w and bias of u's dtype {} but got {}", name(u.dtype()), name(parameter->dtype())));
}

Window checked_window(const char* op, const Tensor& u, const Tensor& w, const Tensor& bias, const DepthwiseConvOptions& options) {
  check_operands(op, u, w, bias);
  const int channel_dim = options.channels_first ? 1 : 2;
  if (u.dims() != 3 || w.dims() != 2 || w.size(0) != u.size(channel_dim) || w.size(1) < 1 ||
      (bias.defined() && bias.shape() != Shape{w.size(0)}))
    fail(op, fmt::format("expected u {}, w (D, K) with K >= 1 and bias (D) but got {}, {} and {}",
                         options.channels_first ? "(B, D, L)" : "(B, L, D)", to_string(u.shape()), to_string(w.shape()),
                         bias.defined() ? to_string(bias.shape()) : "none"));
  const std::int64_t taps = w.size(1), length = u.size(3 - channel_dim);
  Window window{options.left, options.right, options.silu};
  if (options.padding == ConvPadding::causal) window.left = taps - 1, window.right = 0;
  if (options.padding == ConvPadding::same) window.left = taps / 2, window.right = taps - 1 - taps / 2;
  // The padded signal is a tensor of the composition, so its length is checked first.
  if (window.left >= 0 && window.right >= 0) checked_add(op, checked_add(op, length, window.left), window.right);
  if (window.left < 0 || window.right < 0 || window.outputs(length, taps) < 0)
    fail(op, fmt::format("expected padding of at least 0, and K - 1 = {} positions with it, but got ({}, {}) round {}", taps - 1,
                         window.left, window.right, length));
  return window;
}

/// True if positions, not channels, are adjacent in memory.
bool is_channels_first(const Tensor& u) { return u.strides()[1] == 1 && (u.strides()[2] != 1 || u.size(2) == 1); }

/// New memory for (B, `length`, D), with the dimensions in the memory order of u's.
Tensor empty_in_order_of(const Tensor& u, std::int64_t length) {
  const NoGrad unrecorded;
  if (is_channels_first(u)) return transpose(empty({u.size(0), u.size(2), length}, u.dtype(), u.device()), 1, 2);
  return empty({u.size(0), length, u.size(2)}, u.dtype(), u.device());
}

/// Returns g, or a copy if the kernel could not read its layout together with u's.
Tensor in_order_of(const Tensor& u, const Tensor& g) {
  if (g.strides()[is_channels_first(u) ? 1 : 2] == 1) return g;
  const Tensor copy = empty_in_order_of(u, g.size(1));
  return copy_(copy, g);
}

// The composition. Sums of 16-bit elements are in f32, as in the kernels.

using detail::widened;

/// Positions start .. start + count of x (B, L, D).
Tensor positions(const Tensor& x, std::int64_t start, std::int64_t count) { return slice(x, 1, start, start + count); }

/// Sums before SiLU, of widened operands.
Tensor shifted_sums(const Tensor& u, const Tensor& w, const Tensor& bias, const Window& window) {
  const std::int64_t taps = w.size(1), count = window.outputs(u.size(1), taps);
  const Tensor padded = pad(u, 1, window.left, window.right);
  Tensor z = positions(padded, 0, count) * select(w, 1, 0);
  for (std::int64_t k = 1; k < taps; ++k) z = z + positions(padded, k, count) * select(w, 1, k);
  return bias.defined() ? z + bias : z;
}

Tensor composed(const Tensor& u, const Tensor& w, const Tensor& bias, const Window& window) {
  const Tensor z = shifted_sums(widened(u), widened(w), widened(bias), window);
  return cast(window.silu ? silu(z) : z, u.dtype());
}

/// Gradients of u, w and bias that the call needs, by the kernel.
Tensors kernel_gradients(const Backward& call, const Window& window) {
  const Tensor u = call.saved(0), w = call.saved(1), g = in_order_of(u, call.grad());
  const auto parameter = [&](std::size_t input, const Shape& shape) {
    return call.needs(input) ? empty(shape, u.dtype(), u.device()) : Tensor();
  };
  const Tensor du = call.needs(0) ? empty_in_order_of(u, u.size(1)) : Tensor(), dw = parameter(1, w.shape()),
               dbias = parameter(2, {w.size(0)});
  on(u.device(), [&](auto dev) {
    kernels::depthwise_conv1d_grad(dev, {.u = u.view(),
                                         .w = w.view(),
                                         .bias = view_of(call.saved(2)),
                                         .left = window.left,
                                         .silu = window.silu,
                                         .g = g.view(),
                                         .du = view_of(du),
                                         .dw = view_of(dw),
                                         .db = view_of(dbias)});
  });
  return {du, dw, dbias};
}

/// Convolution of u (B, L, D), by the kernel.
Tensor convolved(const Tensor& u, const Tensor& w_, const Tensor& bias_, const Window& window) {
  const Tensor w = contiguous(w_), bias = bias_.defined() ? contiguous(bias_) : bias_;
  const Tensor y = empty_in_order_of(u, window.outputs(u.size(1), w.size(1)));
  on(u.device(), [&](auto dev) {
    kernels::depthwise_conv1d(
        dev, {.u = u.view(), .w = w.view(), .bias = view_of(bias), .left = window.left, .silu = window.silu, .y = y.view()});
  });
  return record("depthwise_conv1d", y, {u, w, bias}, {u, w, bias}, [window](const Backward& call) -> Tensors {
    if (!context().grad) return kernel_gradients(call, window);
    return vjp(call, {call.saved(0), call.saved(1), call.saved(2)},
               [&](const Tensors& in) -> Tensors { return {composed(in[0], in[1], in[2], window)}; });
  });
}

/// Calls f(u (B, L, D)), with u and the result converted to the layout of the options.
template <class F>
Tensor in_layout(const Tensor& u, const DepthwiseConvOptions& options, F f) {
  return options.channels_first ? transpose(f(transpose(u, 1, 2)), 1, 2) : f(u);
}

}  // namespace

Tensor depthwise_conv1d(const Tensor& u_, const Tensor& w_, const Tensor& bias_, const DepthwiseConvOptions& options) {
  constexpr const char* op = "depthwise_conv1d";
  const Tensor u = detail::autocast(op, u_), w = detail::autocast(op, w_), bias = detail::autocast(op, bias_);
  const Window window = checked_window(op, u, w, bias, options);
  return in_layout(u, options, [&](const Tensor& signal) { return convolved(signal, w, bias, window); });
}

Tensor composed_depthwise_conv1d(const Tensor& u, const Tensor& w, const Tensor& bias, const DepthwiseConvOptions& options) {
  const Window window = checked_window("composed_depthwise_conv1d", u, w, bias, options);
  return in_layout(u, options, [&](const Tensor& signal) { return composed(signal, w, bias, window); });
}

ConvStep depthwise_conv1d_step(const Tensor& state_, const Tensor& u_, const Tensor& w_, const Tensor& bias_, bool silu) {
  constexpr const char* op = "depthwise_conv1d_step";
  const auto operand = [](const Tensor& x) { return detail::autocast("depthwise_conv1d", x); };
  const Tensor state = operand(state_), u = operand(u_), w = operand(w_), bias = operand(bias_);
  check_operands(op, u, w, bias);
  check_operands(op, u, state, {});
  if (u.dims() != 2 || w.dims() != 2 || w.size(0) != u.size(1) || w.size(1) < 1 ||
      state.shape() != Shape{u.size(0), w.size(1) - 1, u.size(1)} || (bias.defined() && bias.shape() != Shape{w.size(0)}))
    fail(op, fmt::format("expected state (B, K - 1, D), u (B, D), w (D, K) with K >= 1 and bias (D) but got {}, {}, {} and {}",
                         to_string(state.shape()), to_string(u.shape()), to_string(w.shape()),
                         bias.defined() ? to_string(bias.shape()) : "none"));
  const Tensor window = cat({state, unsqueeze(u, 1)}, 1);
  return {squeeze(convolved(window, w, bias, {0, 0, silu}), 1), slice(window, 1, 1)};
}

static kernels::SlidingWindow sliding_window(const char* op, const UnfoldOptions& options, std::int64_t height, std::int64_t width) {
  const auto axis = [&](std::size_t d, std::int64_t size) {
    const std::int64_t taps = options.kernel[d], stride = options.stride[d], padding = options.padding[d], dilation = options.dilation[d];
    if (taps < 1 || stride < 1 || dilation < 1 || padding < 0)
      fail(op, fmt::format("expected kernel, stride and dilation of at least 1 and padding of at least 0 but got {}, {}, {} and {}", taps,
                           stride, dilation, padding));
    const auto window = detail::window_axis(op, size, taps, stride, padding, dilation);
    if (!window || size + 2 * padding > std::int64_t(1) << 30)
      fail(op, fmt::format("expected a window of {} elements, {} apart, that fits into {} + 2 * {}, at most 2^30", taps, dilation, size,
                           padding));
    return *window;
  };
  return {axis(0, height), axis(1, width)};
}

Tensor unfold(const Tensor& x, const UnfoldOptions& options) {
  detail::check_floating("unfold", x);
  if (x.dims() != 4) fail("unfold", fmt::format("expected x (B, C, H, W) but got {}", to_string(x.shape())));
  const kernels::SlidingWindow window = sliding_window("unfold", options, x.size(2), x.size(3));
  const Shape shape = {x.size(0), checked_mul("unfold", x.size(1), window.y.taps * window.x.taps), window.y.positions * window.x.positions};
  Tensor columns = empty(shape, x.dtype(), x.device());
  on(x.device(), [&](auto dev) { kernels::unfold(dev, x.view(), window, columns.view()); });
  return record("unfold", columns, {x}, {}, [options, height = x.size(2), width = x.size(3)](const Backward& call) -> Tensors {
    return {fold(call.grad(), height, width, options)};
  });
}

Tensor fold(const Tensor& columns_, std::int64_t height, std::int64_t width, const UnfoldOptions& options) {
  detail::check_floating("fold", columns_);
  if (height < 0 || width < 0) fail("fold", fmt::format("expected a height and a width of at least 0 but got {} and {}", height, width));
  const kernels::SlidingWindow window = sliding_window("fold", options, height, width);
  const std::int64_t taps = window.y.taps * window.x.taps, positions = window.y.positions * window.x.positions;
  if (columns_.dims() != 3 || columns_.size(1) % taps != 0 || columns_.size(2) != positions)
    fail("fold", fmt::format("expected columns (B, C * {}, {}) but got {}", taps, positions, to_string(columns_.shape())));
  const Tensor columns = contiguous(columns_);
  Tensor x = empty({columns.size(0), columns.size(1) / taps, height, width}, columns.dtype(), columns.device());
  on(x.device(), [&](auto dev) { kernels::fold(dev, columns.view(), window, x.view()); });
  return record("fold", x, {columns}, {}, [options](const Backward& call) -> Tensors { return {unfold(call.grad(), options)}; });
}

}  // namespace tern
