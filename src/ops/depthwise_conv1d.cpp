#include <fmt/format.h>

#include "ops/conv.h"
#include "ops/factory.h"
#include "ops/kernels/conv.h"
#include "ops/op.h"
#include "ops/pointwise.h"
#include "ops/view.h"

namespace tern {

namespace {

/// Padding and activation: the options that remain once u is (B, L, D).
struct Window {
  std::int64_t left, right;
  bool silu;

  std::int64_t outputs(std::int64_t length, std::int64_t taps) const { return length + left + right - taps + 1; }
};

void check_operands(const char* op, const Tensor& u, const Tensor& w, const Tensor& bias) {
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
                         detail::shape_or_none(bias)));
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

/// Convolution of u (B, L, D).
struct Convolved {
  static constexpr Op op{.name = "depthwise_conv1d"};
  Window window;

  struct Kept {
    Tensor u, w, bias;
  };
  Tensor plain(const Tensor& u, const Tensor& w, const Tensor& bias) const {
    const Tensor z = shifted_sums(widened(u), widened(w), widened(bias), window);
    return cast(window.silu ? silu(z) : z, u.dtype());
  }
  Result<Tensor, Kept> forward(const Tensor& u, const Tensor& taps, const Tensor& shift) const {
    const Tensor w = contiguous(taps), bias = detail::contiguous_or_none(shift);
    const Tensor y = empty_in_order_of(u, window.outputs(u.size(1), w.size(1)));
    const backend::KernelScope observed(nullptr);
    backend::count_flops(2 * static_cast<double>(y.numel()) * static_cast<double>(w.size(1)), false);
    launch(u.device(), kernels::DepthwiseConv1d{.u = u, .w = w, .bias = view_of(bias), .left = window.left, .silu = window.silu, .y = y});
    return {y, {u, w, bias}};
  }
  Tensors backward(const Backward& call, const Kept& kept) const {
    const auto& [u, w, bias] = kept;
    if (context().grad) return vjp(call, {u, w, bias}, [&](const Tensors& in) -> Tensors { return {plain(in[0], in[1], in[2])}; });
    const auto gradient = [&](std::size_t input, const Shape& shape) {
      return call.needs(input) ? empty(shape, kept.u.dtype(), kept.u.device()) : Tensor();
    };
    const Tensor g = in_order_of(u, call.grad()), du = call.needs(0) ? empty_in_order_of(u, u.size(1)) : Tensor(),
                 dw = gradient(1, w.shape()), dbias = gradient(2, {w.size(0)});
    launch(u.device(), kernels::DepthwiseConv1dGrad{.u = u,
                                                    .w = w,
                                                    .bias = view_of(bias),
                                                    .left = window.left,
                                                    .silu = window.silu,
                                                    .g = g,
                                                    .du = view_of(du),
                                                    .dw = view_of(dw),
                                                    .db = view_of(dbias)});
    return {du, dw, dbias};
  }
};

/// Calls f(u (B, L, D)), with u and the result converted to the layout of the options.
template <class F>
Tensor in_layout(const Tensor& u, const DepthwiseConvOptions& options, F f) {
  return options.channels_first ? transpose(f(transpose(u, 1, 2)), 1, 2) : f(u);
}

struct DepthwiseConv1d {
  static constexpr Op op{.name = "depthwise_conv1d", .autocast = CastTo::lower};
  DepthwiseConvOptions options;

  Tensor forward(const Tensor& u, const Tensor& w, const Tensor& bias) const {
    const Window window = checked_window(op.name, u, w, bias, options);
    return in_layout(u, options, [&](const Tensor& signal) { return call(Convolved{window}, signal, w, bias); });
  }
};

struct DepthwiseConv1dStep {
  static constexpr Op op{.name = "depthwise_conv1d_step", .autocast = CastTo::lower};
  bool silu;

  Tensors forward(const Tensor& u, const Tensor& w, const Tensor& bias, const Tensor& state) const {
    check_operands(op.name, u, w, bias);
    check_operands(op.name, u, state, {});
    if (u.dims() != 2 || w.dims() != 2 || w.size(0) != u.size(1) || w.size(1) < 1 ||
        state.shape() != Shape{u.size(0), w.size(1) - 1, u.size(1)} || (bias.defined() && bias.shape() != Shape{w.size(0)}))
      fail(op.name, fmt::format("expected state (B, K - 1, D), u (B, D), w (D, K) with K >= 1 and bias (D) but got {}, {}, {} and {}",
                                to_string(state.shape()), to_string(u.shape()), to_string(w.shape()), detail::shape_or_none(bias)));
    const Tensor window = cat({state, unsqueeze(u, 1)}, 1);
    return {squeeze(call(Convolved{{0, 0, silu}}, window, w, bias), 1), slice(window, 1, 1)};
  }
};

}  // namespace

Tensor depthwise_conv1d(const Tensor& u, const Tensor& w, const Tensor& bias, const DepthwiseConvOptions& options) {
  return call(DepthwiseConv1d{options}, u, w, bias);
}

ConvStep depthwise_conv1d_step(const Tensor& state, const Tensor& u, const Tensor& w, const Tensor& bias, bool silu) {
  const Tensors results = call(DepthwiseConv1dStep{silu}, u, w, bias, state);
  return {results[0], results[1]};
}

}  // namespace tern
