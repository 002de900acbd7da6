#pragma once
#include "tensor/view.h"

namespace tern::kernels {

// Signals (B, L, D) of one floating dtype, with any strides: a unit stride along D or along L is fast. Taps w (D, K), contiguous, and bias
// (D), contiguous; sums are in f32, or f64 for f64. A signal is 0 outside of its range. A view without data is absent.

/// Depthwise convolution z[b, l, d] = sum over k of w[d, k] u[b, l - left + k, d] + bias[d], for l < y.shape[1]; y = z, or z sigmoid(z)
/// with `silu`.
struct DepthwiseConv1dArguments {
  View u, w, bias;
  std::int64_t left = 0;
  bool silu = false;
  View y;  ///< written
};
void depthwise_conv1d(Cpu, const DepthwiseConv1dArguments& arguments);
void depthwise_conv1d(Cuda, const DepthwiseConv1dArguments& arguments);

/// Gradients from g, that of y, and dz = g y'(z), for which z is recomputed:
///   du[b, t, d] = sum over k of w[d, k] dz[b, t + left - k, d],
///   dw[d, k] = sum over b and l of dz[b, l, d] u[b, l - left + k, d], db[d] = sum over b and l of dz[b, l, d],
/// in an order that depends on the shapes alone (on the GPU, also on the device).
struct DepthwiseConv1dGradArguments {
  View u, w, bias;  ///< bias is read only with `silu`
  std::int64_t left = 0;
  bool silu = false;
  View g;
  View du, dw, db;  ///< written where present; dw and db are contiguous
};
void depthwise_conv1d_grad(Cpu, const DepthwiseConv1dGradArguments& arguments);
void depthwise_conv1d_grad(Cuda, const DepthwiseConv1dGradArguments& arguments);

/// Window that slides over images: tap t at position p of an axis covers element p stride + t dilation - padding.
struct WindowAxis {
  std::int64_t taps, stride, padding, dilation, positions;
};
struct SlidingWindow {
  WindowAxis y, x;
};
/// im2col: columns[b, (c kh + i) kw + j, oh positions + ow] = the element of x[b, c] under tap (i, j) at position (oh, ow), 0 outside.
/// Floating; x (B, C, H, W) has any strides, columns have unit stride along positions and any other strides.
void unfold(Cpu, const View& x, const SlidingWindow& window, const View& columns);
void unfold(Cuda, const View& x, const SlidingWindow& window, const View& columns);
/// col2im: x[b, c, h, w] = the sum of the elements of columns that unfold copies from there, in an order that the window alone determines;
/// x contiguous, columns as for unfold.
void fold(Cpu, const View& columns, const SlidingWindow& window, const View& x);
void fold(Cuda, const View& columns, const SlidingWindow& window, const View& x);

}  // namespace tern::kernels
