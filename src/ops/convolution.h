#pragma once
#include "ops/conv.h"

namespace tern {

/// @file
/// Convolutions and pooling of images (B, C, H, W) and signals (B, C, L). On the CPU convolutions and max_pool2d read the windows where
/// they lie, and 16-bit floats are computed in float32. Elsewhere the windows are written as columns, of as many images at a time as make
/// 64 MiB, and a convolution is a matrix product of these, for which nothing is kept but its operands; in 16 bits the gradient of weights
/// is rounded for each such run of images and that of the images for each window, before they are added. On a Hopper GPU convolutions of
/// 16-bit floats, or of float32 in the mode tf32, with at least 16 channels, more than one tap and one group need no columns forward, and
/// with strides of 1 none for the gradient of the images; their results are rounded once. Pooling reduces columns, of all
/// images at once. Sizes of images are (height, width). Throw Error that names the shapes where they do not fit.

/// Options of conv2d, (height, width) each.
struct ConvOptions {
  std::array<std::int64_t, 2> stride = {1, 1};    ///< from one window to the next
  std::array<std::int64_t, 2> padding = {0, 0};   ///< rows and columns of zeros on both sides
  std::array<std::int64_t, 2> dilation = {1, 1};  ///< from one element of a window to the next
  std::int64_t groups = 1;                        ///< runs of channels that do not see each other
};
/// y[b, o] = sum over c of x[b, c] cross-correlated with weight[o, c], plus bias[o]: x (B, C, H, W), weight (O, C / groups, kh, kw), bias
/// (O) or undefined -> (B, O, oh, ow) with oh = (H + 2 padding - dilation (kh - 1) - 1) / stride + 1.
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, const ConvOptions& options = {});

/// The same by columns and products on every device: what the kernels are tested against.
Tensor composed_conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, const ConvOptions& options = {});

/// Options of conv1d.
struct Conv1dOptions {
  std::int64_t stride = 1;    ///< from one window to the next
  std::int64_t padding = 0;   ///< zeros on both sides
  std::int64_t dilation = 1;  ///< from one element of a window to the next
  std::int64_t groups = 1;    ///< runs of channels that do not see each other
};
/// The same of signals: x (B, C, L), weight (O, C / groups, k) -> (B, O, ol).
Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, const Conv1dOptions& options = {});

/// Options of max_pool2d and avg_pool2d.
struct PoolOptions {
  std::array<std::int64_t, 2> kernel;            ///< elements of a window
  std::array<std::int64_t, 2> stride = {0, 0};   ///< 0: as large as the kernel
  std::array<std::int64_t, 2> padding = {0, 0};  ///< at most half of the kernel
};
/// The largest element of each window, to which the gradient goes (equal ones share it), and the mean of each, padding's zeros included:
/// x (B, C, H, W) -> (B, C, oh, ow).
Tensor max_pool2d(const Tensor& x, const PoolOptions& options);
/// The mean of each window, padding's zeros counted in: x (B, C, H, W) -> (B, C, oh, ow).
Tensor avg_pool2d(const Tensor& x, const PoolOptions& options);
/// max_pool2d, composed of unfold and a reduction everywhere: the reference.
Tensor composed_max_pool2d(const Tensor& x, const PoolOptions& options);
/// Each pixel of x (..., H, W) as factor x factor equal ones. Throws Error unless factor >= 1.
Tensor upsample_nearest(const Tensor& x, std::int64_t factor);

}  // namespace tern
