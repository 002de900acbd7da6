#pragma once
#include <array>

#include "tensor/tensor.h"

namespace tern {

/// Zero padding of a signal for a convolution with K taps.
enum class ConvPadding : std::uint8_t {
  causal,  ///< K - 1 on the left: y[l] sees u[l - K + 1 .. l]
  same,    ///< K / 2 on the left, K - 1 - K / 2 on the right
  given,   ///< DepthwiseConvOptions::left and right
};
/// Options of depthwise_conv1d.
struct DepthwiseConvOptions {
  ConvPadding padding = ConvPadding::causal;  ///< zeros beside the signal
  std::int64_t left = 0;                      ///< zeros before it, with ConvPadding::given
  std::int64_t right = 0;                     ///< zeros after it, with ConvPadding::given
  bool channels_first = false;                ///< u and y are (B, D, L), not (B, L, D)
  bool silu = false;                          ///< y = z sigmoid(z) of the sums z
};

/// Depthwise convolution, y[b, l, d] = sum over k of w[d, k] u[b, l - left + k, d] + bias[d]: u (B, L, D), one row of taps w (D, K) for
/// each channel, bias (D) or undefined -> (B, L + left + right - K + 1, D), with u's order of dimensions in memory. Sums are in f32 (f64
/// for f64). Forward and backward read and write each element once; in a PlainKernels scope it is a sum of K shifted products. Throws Error
/// if shapes, dtypes or devices do not fit.
Tensor depthwise_conv1d(const Tensor& u, const Tensor& w, const Tensor& bias = {}, const DepthwiseConvOptions& options = {});

/// One position of a causal convolution.
struct ConvStep {
  Tensor y;      ///< (B, D), the output at the new position
  Tensor state;  ///< (B, K - 1, D), the input of the next step
};
/// Decoding step of a causal convolution: u (B, D) follows the K - 1 positions in state (B, K - 1, D), which is zeros at the start.
ConvStep depthwise_conv1d_step(const Tensor& state, const Tensor& u, const Tensor& w, const Tensor& bias = {}, bool silu = false);

/// Long causal convolution, y[b, t, c] = sum over k <= t of h[c, k] u[b, t - k, c]: u (B, T, C), filters h (C, K), of which tap k is for
/// the position k before -> (B, T, C), of u's dtype; computed in f32, or in f64 if u is f64. Time T log T, by Fourier transforms of the
/// next power of two from T + K - 1 on: for filters about as long as the signal, where depthwise_conv1d takes T K. On the CPU, transforms
/// of two rows at once, in memory for as many positions of a few channels a thread; on a GPU, and in a PlainKernels scope, products with
/// matrices of about that length's root, or where T <= 512 and T <= 2 B with a matrix (T, T) of each filter. Rounding, NaN and infinity
/// reach earlier positions. Throws Error for shapes that do not fit.
Tensor long_conv(const Tensor& u, const Tensor& h);

/// Sliding window over an image: kernel[0] x kernel[1] elements, `dilation` apart, moved in steps of `stride`; the image is padded with
/// `padding` zeros on each side. Each is (height, width).
struct UnfoldOptions {
  std::array<std::int64_t, 2> kernel;             ///< size of the window
  std::array<std::int64_t, 2> stride = {1, 1};    ///< distance of consecutive windows, in elements of x
  std::array<std::int64_t, 2> padding = {0, 0};   ///< rows and columns of zeros on each side
  std::array<std::int64_t, 2> dilation = {1, 1};  ///< distance of neighbours within a window, in elements of x
};
/// im2col: the windows of images x (B, C, H, W) as columns (B, C kh kw, oh ow), in the order of torch.nn.functional.unfold. A convolution
/// with w (O, C, kh, kw) is matmul(reshape(w, {O, C kh kw}), columns); pooling is a reduction of reshape(columns, {B, C, kh kw, oh ow}).
/// Throws Error unless the window fits into the padded image.
Tensor unfold(const Tensor& x, const UnfoldOptions& options);
/// col2im, the adjoint of unfold: each element of the image (B, C, height, width) is the sum of the elements of columns (B, C kh kw, oh ow)
/// that unfold copies from it. Sums are in f32 (f64 for f64) and in a fixed order.
Tensor fold(const Tensor& columns, std::int64_t height, std::int64_t width, const UnfoldOptions& options);

// Convolutions and pooling of images (B, C, H, W) and signals (B, C, L). Sizes of images are (height, width). All throw Error that names
// the shapes where they do not fit.
//
// On the CPU, convolutions and max_pool2d read the windows in place, and 16-bit floats are computed in float32.
//
// On a GPU, and in a PlainKernels scope, the windows are written as columns (im2col), for as many images at a time as make 64 MiB, and a
// convolution is a matrix product with them; backward keeps only the operands. In 16 bits, the weights' gradient is rounded once for each
// such chunk of images, and the images' gradient once for each window, before they are added.
//
// On a Hopper GPU, convolutions of 16-bit floats, or of float32 with matmul precision tf32, with at least 16 channels, more than one tap
// and one group, are implicit GEMMs: forward needs no columns, nor does the images' gradient with strides of 1, and results are rounded
// once. Pooling reduces the columns of all images at once.

/// Options of conv2d, (height, width) each.
struct ConvOptions {
  std::array<std::int64_t, 2> stride = {1, 1};    ///< distance of consecutive windows, in elements of x
  std::array<std::int64_t, 2> padding = {0, 0};   ///< rows and columns of zeros on each side
  std::array<std::int64_t, 2> dilation = {1, 1};  ///< distance of neighbours within a window, in elements of x
  std::int64_t groups = 1;                        ///< groups of channels, each convolved by itself
};
/// y[b, o] = sum over c of x[b, c] cross-correlated with weight[o, c], plus bias[o]: x (B, C, H, W), weight (O, C / groups, kh, kw), bias
/// (O) or undefined -> (B, O, oh, ow) with oh = (H + 2 padding - dilation (kh - 1) - 1) / stride + 1.
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, const ConvOptions& options = {});

namespace detail {
/// conv2d by columns, with at most `bytes` of columns in memory at a time, or those of one image.
Tensor conv2d_by_columns(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvOptions& options, std::int64_t bytes);
}  // namespace detail

/// Options of conv1d.
struct Conv1dOptions {
  std::int64_t stride = 1;    ///< distance of consecutive windows, in elements of x
  std::int64_t padding = 0;   ///< zeros on both sides
  std::int64_t dilation = 1;  ///< distance of neighbours within a window, in elements of x
  std::int64_t groups = 1;    ///< groups of channels, each convolved by itself
};
/// conv2d of signals: x (B, C, L), weight (O, C / groups, k), bias (O) or undefined -> (B, O, ol).
Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, const Conv1dOptions& options = {});

/// Options of conv_transpose2d, (height, width) each. Those of conv2d, of which it is the transpose.
struct ConvTransposeOptions {
  std::array<std::int64_t, 2> stride = {1, 1};          ///< distance of the windows of consecutive elements of x, in elements of y
  std::array<std::int64_t, 2> padding = {0, 0};         ///< rows and columns that are removed on each side of y
  std::array<std::int64_t, 2> output_padding = {0, 0};  ///< rows and columns added at the end of y, fewer than the stride
  std::array<std::int64_t, 2> dilation = {1, 1};        ///< distance of neighbours within a window, in elements of y
  std::int64_t groups = 1;                              ///< groups of channels, each convolved by itself
};
/// Transposed convolution, the gradient of conv2d with respect to its images: each element of x (B, C, H, W) adds a multiple of the weights
/// (C, O / groups, kh, kw) to a window of y (B, O, oh, ow), with oh = (H - 1) stride - 2 padding + dilation (kh - 1) + output_padding + 1;
/// bias (O) or undefined is added. A product of matrices, and fold of its columns, which take kh kw times the memory of x with O channels.
Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, const ConvTransposeOptions& options = {});

/// Options of max_pool2d and avg_pool2d.
struct PoolOptions {
  std::array<std::int64_t, 2> kernel;            ///< size of the window
  std::array<std::int64_t, 2> stride = {0, 0};   ///< distance of consecutive windows; 0: the size of the kernel
  std::array<std::int64_t, 2> padding = {0, 0};  ///< rows and columns on each side; at most half of the kernel
};
/// Largest element of each window: x (B, C, H, W) -> (B, C, oh, ow). The gradient goes to that element; equal ones share it.
Tensor max_pool2d(const Tensor& x, const PoolOptions& options);
/// Mean of each window, the zeros of the padding included: x (B, C, H, W) -> (B, C, oh, ow).
Tensor avg_pool2d(const Tensor& x, const PoolOptions& options);
/// @{
/// Mean or largest element of each of oh x ow windows that cover the image: x (B, C, H, W), size {oh, ow} -> (B, C, oh, ow). Row i of the
/// result sees rows floor(i H / oh) up to, not including, ceil((i + 1) H / oh). Where oh and ow divide H and W this is avg_pool2d or
/// max_pool2d; otherwise a reduction for each row and each column of the result. Throw Error for a size below 1.
Tensor adaptive_avg_pool2d(const Tensor& x, const std::array<std::int64_t, 2>& size);
Tensor adaptive_max_pool2d(const Tensor& x, const std::array<std::int64_t, 2>& size);
/// @}
/// Bilinear interpolation of x (..., H, W) to size {oh, ow}, larger or smaller, without a filter against aliasing. Pixels are squares, and
/// element i of the result is at (i + 1/2) H / oh - 1/2 of x; with align_corners they are points, and the first and last elements of both
/// coincide. Throws Error for a size below 1.
Tensor upsample_bilinear(const Tensor& x, const std::array<std::int64_t, 2>& size, bool align_corners = false);
/// Repeats each pixel of x (..., H, W) factor x factor times. Throws Error unless factor >= 1.
Tensor upsample_nearest(const Tensor& x, std::int64_t factor);

}  // namespace tern
