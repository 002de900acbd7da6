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

// Convolutions and pooling (ops/conv.h) on the CPU, over contiguous views of one dtype, f32 or f64. Elsewhere they are composed of
// unfold and other ops, or use the CUDA kernels below.

/// Convolution whose channels are divided into `groups` groups, each convolved by itself.
struct Convolution {
  SlidingWindow window;
  std::int64_t groups;
};
/// y (B, O, oh, ow) = x (B, C, H, W), cross-correlated with weight (O, C / groups, kh, kw), plus bias (O), which may have no data. Each
/// element is summed in an order that depends on the shapes alone.
void convolution(Cpu, const View& x, const View& weight, const View& bias, const Convolution& of, const View& y);
/// Gradients of x, weight and bias from g, that of y: dx is written, dw and db are written or added to; each may have no data.
void convolution_grad(Cpu, const View& x, const View& weight, const View& g, const Convolution& of, const View& dx, const View& dw,
                      Write write_dw, const View& db, Write write_db);

// Kernels that only CUDA has: called through on_cuda, queried through cuda_has.

/// True if a GPU computes the convolution as an implicit GEMM, whose windows are never written to memory: on Hopper, 16-bit floats, or
/// float32 with matmul precision tf32; more than one tap, one group, at least 16 channels. x and weight with any strides.
bool has_implicit_convolution(Cuda, const View& x, const View& weight, const Convolution& of);
/// As convolution; y is contiguous. Sums are in float32 and rounded once, with the bias.
void implicit_convolution(Cuda, const View& x, const View& weight, const View& bias, const Convolution& of, const View& y);
/// The same for dx from g: g's channels take the place of x's, and strides are 1.
bool has_implicit_convolution_grad(Cuda, const View& g, const View& weight, const Convolution& of, const View& dx);
void implicit_convolution_grad(Cuda, const View& g, const View& weight, const Convolution& of, const View& dx);

/// y[b, c, oh, ow] = the largest element of x[b, c] in the window at (oh, ow), whose dilation is 1; NaN if one is NaN.
void max_pool(Cpu, const View& x, const SlidingWindow& window, const View& y);
/// dx from g, the gradient of y: the gradient of a window goes to its elements that equal y, which share it.
void max_pool_grad(Cpu, const View& x, const View& y, const View& g, const SlidingWindow& window, const View& dx);

}  // namespace tern::kernels
