#pragma once
#include "nn/module.h"
#include "ops/conv.h"

namespace tern::nn {

/// Two sizes of an image, (height, width), or one for both: `.stride = 2`, `.padding = {1, 0}`.
struct Size2d : std::array<std::int64_t, 2> {
  constexpr Size2d(std::int64_t both) : array{both, both} {}                           ///< a square
  constexpr Size2d(std::int64_t height, std::int64_t width) : array{height, width} {}  ///< PyTorch's order
};

/// Options of Conv2d.
struct Conv2dOptions {
  Size2d stride = 1;                 ///< distance of consecutive windows, in elements of x
  Size2d padding = 0;                ///< rows and columns of zeros on each side
  Size2d dilation = 1;               ///< distance of neighbours within a window, in elements of x
  std::int64_t groups = 1;           ///< groups of channels, each convolved by itself
  bool bias = true;                  ///< one number for each output channel
  Device device = default_device();  ///< device of the parameters
};

/// 2-D convolution, conv2d (ops/conv.h): (B, in, H, W) -> (B, out, oh, ow). Weight (out, in / groups, kh, kw) and bias (out) are
/// initialized uniformly in +-1 / sqrt(in / groups kh kw), as in PyTorch. Throws Error for sizes below 1, a padding below 0, and groups
/// that do not divide in and out.
struct Conv2d final : Callable<Conv2d> {
  Conv2d() = default;
  /// Convolves `in` channels to `out`, with windows of `kernel`. Parameters are drawn from this thread's generator, in f32.
  Conv2d(std::int64_t in, std::int64_t out, Size2d kernel, const Conv2dOptions& options = {});
  void visit(Visitor& v) override { v("weight", weight), v("bias", bias); }
  std::string settings() const override;
  /// x (B, in, H, W) -> (B, out, oh, ow), with the sizes of conv2d. Throws Error if the window does not fit.
  Tensor forward(const Tensor& x) const;

  Tensor weight;        ///< (out, in / groups, kh, kw)
  Tensor bias;          ///< (out), or undefined
  ConvOptions options;  ///< as conv2d takes them
};

/// Options of ConvTranspose2d.
struct ConvTranspose2dOptions {
  Size2d stride = 1;                 ///< distance of the windows of consecutive elements of x, in elements of y
  Size2d padding = 0;                ///< rows and columns that are removed on each side of y
  Size2d output_padding = 0;         ///< rows and columns added at the end of y, fewer than the stride
  Size2d dilation = 1;               ///< distance of neighbours within a window, in elements of y
  std::int64_t groups = 1;           ///< groups of channels, each convolved by itself
  bool bias = true;                  ///< one number for each output channel
  Device device = default_device();  ///< device of the parameters
};

/// Transposed convolution, conv_transpose2d (ops/conv.h): (B, in, H, W) -> (B, out, oh, ow). Weight (in, out / groups, kh, kw) and
/// bias (out) are initialized uniformly in +-1 / sqrt(out / groups kh kw), as in PyTorch. Throws Error as Conv2d does, and for an
/// output_padding that is not below the stride.
struct ConvTranspose2d final : Callable<ConvTranspose2d> {
  ConvTranspose2d() = default;
  /// From `in` channels to `out`, with windows of `kernel`. Parameters are drawn from this thread's generator, in f32.
  ConvTranspose2d(std::int64_t in, std::int64_t out, Size2d kernel, const ConvTranspose2dOptions& options = {});
  void visit(Visitor& v) override { v("weight", weight), v("bias", bias); }
  std::string settings() const override;
  /// x (B, in, H, W) -> (B, out, oh, ow), with the sizes of conv_transpose2d.
  Tensor forward(const Tensor& x) const;

  Tensor weight;                 ///< (in, out / groups, kh, kw)
  Tensor bias;                   ///< (out), or undefined
  ConvTransposeOptions options;  ///< as conv_transpose2d takes them
};

/// Options of the module Conv1d; those of the op are tern::Conv1dOptions.
struct Conv1dOptions {
  std::int64_t stride = 1;           ///< distance of consecutive windows, in elements of x
  std::int64_t padding = 0;          ///< zeros on both sides
  std::int64_t dilation = 1;         ///< distance of neighbours within a window, in elements of x
  std::int64_t groups = 1;           ///< groups of channels, each convolved by itself
  bool bias = true;                  ///< one number for each output channel
  Device device = default_device();  ///< device of the parameters
};

/// 1-D convolution of signals, as Conv2d: (B, in, L) -> (B, out, ol).
struct Conv1d final : Callable<Conv1d> {
  Conv1d() = default;
  /// Convolves `in` channels to `out`, with windows of `kernel` elements.
  Conv1d(std::int64_t in, std::int64_t out, std::int64_t kernel, const Conv1dOptions& options = {});
  void visit(Visitor& v) override { v("weight", weight), v("bias", bias); }
  std::string settings() const override;
  /// x (B, in, L) -> (B, out, ol), ol = (L + 2 padding - dilation (kernel - 1) - 1) / stride + 1.
  Tensor forward(const Tensor& x) const;

  Tensor weight;                ///< (out, in / groups, kernel)
  Tensor bias;                  ///< (out), or undefined
  tern::Conv1dOptions options;  ///< as conv1d takes them
};

/// Options of MaxPool2d and AvgPool2d.
struct Pool2dOptions {
  Size2d stride = 0;   ///< distance of consecutive windows; 0: the size of the kernel
  Size2d padding = 0;  ///< rows and columns on each side; at most half of the kernel
};
/// Largest element of each window of (B, C, H, W).
struct MaxPool2d final : Callable<MaxPool2d> {
  /// Throws Error for a kernel below 1, a stride below 0, and a padding outside [0, kernel / 2].
  explicit MaxPool2d(Size2d kernel, const Pool2dOptions& options = {});
  void visit(Visitor&) override {}
  std::string settings() const override;
  Tensor forward(const Tensor& x) const;  ///< (B, C, H, W) -> (B, C, oh, ow): tern::max_pool2d

  PoolOptions options;  ///< with the kernel
};
/// Mean of each window of (B, C, H, W), the zeros of the padding included.
struct AvgPool2d final : Callable<AvgPool2d> {
  /// Throws Error as MaxPool2d.
  explicit AvgPool2d(Size2d kernel, const Pool2dOptions& options = {});
  void visit(Visitor&) override {}
  std::string settings() const override;
  Tensor forward(const Tensor& x) const;  ///< (B, C, H, W) -> (B, C, oh, ow): tern::avg_pool2d

  PoolOptions options;  ///< with the kernel
};

/// Mean of each of size[0] x size[1] windows that cover (B, C, H, W): AdaptiveAvgPool2d(1) is the mean of each channel.
struct AdaptiveAvgPool2d final : Callable<AdaptiveAvgPool2d> {
  explicit AdaptiveAvgPool2d(Size2d size_) : size(size_) {}  ///< of the result
  void visit(Visitor&) override {}
  std::string settings() const override;
  Tensor forward(const Tensor& x) const;  ///< (B, C, H, W) -> (B, C, size[0], size[1]): tern::adaptive_avg_pool2d

  Size2d size;  ///< of the result
};
/// Largest element of each of size[0] x size[1] windows that cover (B, C, H, W).
struct AdaptiveMaxPool2d final : Callable<AdaptiveMaxPool2d> {
  explicit AdaptiveMaxPool2d(Size2d size_) : size(size_) {}  ///< of the result
  void visit(Visitor&) override {}
  std::string settings() const override;
  Tensor forward(const Tensor& x) const;  ///< (B, C, H, W) -> (B, C, size[0], size[1]): tern::adaptive_max_pool2d

  Size2d size;  ///< of the result
};

}  // namespace tern::nn
