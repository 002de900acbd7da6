#pragma once
#include "nn/module.h"
#include "ops/convolution.h"

namespace tern::nn {

/// Two sizes of an image, (height, width), or one for both: `.stride = 2`, `.padding = {1, 0}`.
struct Size2d : std::array<std::int64_t, 2> {
  constexpr Size2d(std::int64_t both) : array{both, both} {}
  constexpr Size2d(std::int64_t height, std::int64_t width) : array{height, width} {}
};

struct Conv2dOptions {
  Size2d stride = 1, padding = 0, dilation = 1;  ///< zeros stand on both sides
  std::int64_t groups = 1;                       ///< runs of channels that do not see each other
  bool bias = true;
  Device device = default_device();
};

/// conv2d (ops/convolution.h): (B, in, H, W) -> (B, out, oh, ow). Weight (out, in / groups, kh, kw) and bias (out) start uniform in
/// +-1 / sqrt(in / groups kh kw), as PyTorch's do. Throws Error for sizes below 1, a padding below 0, and groups that do not divide in and
/// out.
struct Conv2d final : Callable<Conv2d> {
  Conv2d() = default;
  Conv2d(std::int64_t in, std::int64_t out, Size2d kernel, const Conv2dOptions& options = {});
  void visit(Visitor& v) override;
  std::string settings() const override;
  Tensor forward(const Tensor& x) const;

  Tensor weight, bias;  ///< bias may be undefined
  ConvOptions options;
};

struct Conv1dOptions {
  std::int64_t stride = 1, padding = 0, dilation = 1, groups = 1;
  bool bias = true;
  Device device = default_device();
};

/// As Conv2d, of signals: (B, in, L) -> (B, out, ol).
struct Conv1d final : Callable<Conv1d> {
  Conv1d() = default;
  Conv1d(std::int64_t in, std::int64_t out, std::int64_t kernel, const Conv1dOptions& options = {});
  void visit(Visitor& v) override;
  std::string settings() const override;
  Tensor forward(const Tensor& x) const;

  Tensor weight, bias;  ///< bias may be undefined
  tern::Conv1dOptions options;
};

struct Pool2dOptions {
  Size2d stride = 0;   ///< 0: as large as the kernel
  Size2d padding = 0;  ///< at most half of the kernel
};
/// The largest element of each window of (B, C, H, W), and the mean of each, padding's zeros included.
struct MaxPool2d final : Callable<MaxPool2d> {
  explicit MaxPool2d(Size2d kernel, const Pool2dOptions& options = {});
  void visit(Visitor&) override {}
  std::string settings() const override;
  Tensor forward(const Tensor& x) const;

  PoolOptions options;
};
struct AvgPool2d final : Callable<AvgPool2d> {
  explicit AvgPool2d(Size2d kernel, const Pool2dOptions& options = {});
  void visit(Visitor&) override {}
  std::string settings() const override;
  Tensor forward(const Tensor& x) const;

  PoolOptions options;
};

}  // namespace tern::nn
