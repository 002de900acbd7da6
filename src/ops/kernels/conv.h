#pragma once
#include "tensor/kernel.h"

namespace tern::kernels {

// Signals (B, L, D) of one floating dtype, with any strides: a unit stride along D or along L is fast. Taps w (D, K), contiguous, and bias
// (D), contiguous; sums are in f32, or f64 for f64. A signal is 0 outside of its range. A view without data is absent.

/// Depthwise convolution z[b, l, d] = sum over k of w[d, k] u[b, l - left + k, d] + bias[d], for l < y.shape[1]; y = z, or z sigmoid(z)
/// with `silu`.
struct DepthwiseConv1d {
  In u, w, bias;
  std::int64_t left = 0;
  bool silu = false;
  Out y;
  void run(Cpu) const;
  void run(Cuda) const;
};

/// Gradients from g, that of y, and dz = g y'(z), for which z is recomputed:
///   du[b, t, d] = sum over k of w[d, k] dz[b, t + left - k, d],
///   dw[d, k] = sum over b and l of dz[b, l, d] u[b, l - left + k, d], db[d] = sum over b and l of dz[b, l, d],
/// in an order that depends on the shapes alone (on the GPU, also on the device).
struct DepthwiseConv1dGrad {
  In u, w, bias;  ///< bias is read only with `silu`
  std::int64_t left = 0;
  bool silu = false;
  In g;
  Out du, dw, db;  ///< written where present; dw and db are contiguous
  void run(Cpu) const;
  void run(Cuda) const;
};

/// Long convolution y[b, t, c] = sum over k <= t of h[c, k] u[b, t - k, c] on the CPU, over views of one dtype, f32 or f64, with any
/// strides. Elsewhere it is composed of other ops.
struct LongConv {
  In u, h;
  Out y;
  void run(Cpu) const;
};
/// Its gradients from g, that of y; written where present, in an order that depends on the shapes alone.
struct LongConvGrad {
  In u, h, g;
  Out du, dh;
  void run(Cpu) const;
};

/// Window that slides over images: tap t at position p of an axis covers element p stride + t dilation - padding.
struct WindowAxis {
  std::int64_t taps, stride, padding, dilation, positions;
};
struct SlidingWindow {
  WindowAxis y, x;
};
/// im2col: columns[b, (c kh + i) kw + j, oh positions + ow] = the element of x[b, c] under tap (i, j) at position (oh, ow), 0 outside.
/// Floating; x (B, C, H, W) has any strides, columns have unit stride along positions and any other strides.
struct Unfold {
  In x;
  SlidingWindow window;
  Out columns;
  void run(Cpu) const;
  void run(Cuda) const;
};
/// col2im: x[b, c, h, w] = the sum of the elements of columns that Unfold copies from there, in an order that the window alone determines;
/// x contiguous, columns as there.
struct Fold {
  In columns;
  SlidingWindow window;
  Out x;
  void run(Cpu) const;
  void run(Cuda) const;
};

// Convolutions and pooling (ops/conv.h) on the CPU, over contiguous views of one dtype, f32 or f64. Elsewhere they are composed of
// unfold and other ops, or use the CUDA kernels below.

/// Convolution whose channels are divided into `groups` groups, each convolved by itself.
struct Convolution {
  SlidingWindow window;
  std::int64_t groups;
};
/// y (B, O, oh, ow) = x (B, C, H, W), cross-correlated with weight (O, C / groups, kh, kw), plus bias (O), which may have no data. Each
/// element is summed in an order that depends on the shapes alone.
struct Convolve {
  In x, weight, bias;
  Convolution of;
  Out y;
  void run(Cpu) const;
};
/// Gradients of x, weight and bias from g, that of y: dx is written, dw and db are written or added to; each may have no data.
struct ConvolveGrad {
  In x, weight, g;
  Convolution of;
  Out dx;
  InOut dw;
  Write write_dw;
  InOut db;
  Write write_db;
  void run(Cpu) const;
};

// Kernels that only CUDA has, queried through cuda_has.

/// True if a GPU computes the convolution as an implicit GEMM, whose windows are never written to memory: on Hopper, 16-bit floats, or
/// float32 with matmul precision tf32; more than one tap, one group, at least 16 channels. x and weight with any strides.
bool has_implicit_convolution(Cuda, const View& x, const View& weight, const Convolution& of);
/// As Convolve; y is contiguous. Sums are in float32 and rounded once, with the bias.
struct ImplicitConvolve {
  In x, weight, bias;
  Convolution of;
  Out y;
  void run(Cuda) const;
};
/// The same for dx from g: g's channels take the place of x's, and strides are 1.
bool has_implicit_convolution_grad(Cuda, const View& g, const View& weight, const Convolution& of, const View& dx);
struct ImplicitConvolveGrad {
  In g, weight;
  Convolution of;
  Out dx;
  void run(Cuda) const;
};

/// y[b, c, oh, ow] = the largest element of x[b, c] in the window at (oh, ow), whose dilation is 1; NaN if one is NaN.
struct MaxPool {
  In x;
  SlidingWindow window;
  Out y;
  void run(Cpu) const;
};
/// dx from g, the gradient of y: the gradient of a window goes to its elements that equal y, which share it.
struct MaxPoolGrad {
  In x, y, g;
  SlidingWindow window;
  Out dx;
  void run(Cpu) const;
};

}  // namespace tern::kernels
