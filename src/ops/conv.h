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
/// for f64). Forward and backward read and write each element once. Throws Error if shapes, dtypes or devices do not fit.
Tensor depthwise_conv1d(const Tensor& u, const Tensor& w, const Tensor& bias = {}, const DepthwiseConvOptions& options = {});
/// depthwise_conv1d as a sum of K shifted products, composed of other ops: the reference.
Tensor composed_depthwise_conv1d(const Tensor& u, const Tensor& w, const Tensor& bias = {}, const DepthwiseConvOptions& options = {});

/// One position of a causal convolution.
struct ConvStep {
  Tensor y;      ///< (B, D), the output at the new position
  Tensor state;  ///< (B, K - 1, D), the input of the next step
};
/// Decoding step of a causal convolution: u (B, D) follows the K - 1 positions in state (B, K - 1, D), which is zeros at the start.
ConvStep depthwise_conv1d_step(const Tensor& state, const Tensor& u, const Tensor& w, const Tensor& bias = {}, bool silu = false);

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

}  // namespace tern
