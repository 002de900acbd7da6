#include "nn/convolution.h"

#include <fmt/format.h>

#include <cmath>

#include "nn/init.h"

namespace tern::nn {

namespace {

using Pair = std::array<std::int64_t, 2>;

/// Creates weight (out, in / groups, ...) and bias of a convolution. Throws Error for sizes that do not fit together.
void make_parameters(const char* where, Tensor& weight, Tensor& bias, const Shape& shape, std::int64_t in, std::int64_t groups,
                     bool with_bias, Device device) {
  bool is_positive = in >= 1 && groups >= 1;
  for (const std::int64_t size : shape) is_positive = is_positive && size >= 1;
  if (!is_positive || in % groups != 0 || shape[0] % groups != 0)
    fail(where, fmt::format("expected sizes >= 1 and groups that divide in and out but got in {}, groups {} and a weight {}", in, groups,
                            to_string(shape)));
  detail::make_weight_and_bias(weight, bias, shape, with_bias, device);
}

/// Text of a pair as the user wrote it: 3, or (3, 1).
std::string shown(const Pair& pair) { return pair[0] == pair[1] ? std::to_string(pair[0]) : fmt::format("({}, {})", pair[0], pair[1]); }

/// ", name=value" unless it is the default.
std::string unless(const char* name, const Pair& pair, std::int64_t usual) {
  return pair == Pair{usual, usual} ? "" : fmt::format(", {}={}", name, shown(pair));
}

std::string conv_settings(const Tensor& weight, const Tensor& bias, const ConvOptions& o, const Pair& kernel) {
  return fmt::format("in={}, out={}, kernel={}", weight.size(1) * o.groups, weight.size(0), shown(kernel)) + unless("stride", o.stride, 1) +
         unless("padding", o.padding, 0) + unless("dilation", o.dilation, 1) + (o.groups == 1 ? "" : fmt::format(", groups={}", o.groups)) +
         (bias.defined() ? "" : ", bias=false");
}

void check_steps(const char* where, const Pair& stride, const Pair& padding, const Pair& dilation) {
  for (std::size_t i = 0; i < 2; ++i)
    if (stride[i] < 1 || padding[i] < 0 || dilation[i] < 1)
      fail(where, fmt::format("expected stride and dilation >= 1 and padding >= 0 but got {}, {} and {}", shown(stride), shown(dilation),
                              shown(padding)));
}

PoolOptions pool_options(const char* where, Size2d kernel, const Pool2dOptions& o) {
  for (std::size_t i = 0; i < 2; ++i)
    if (kernel[i] < 1 || o.stride[i] < 0 || o.padding[i] < 0 || o.padding[i] > kernel[i] / 2)
      fail(where, fmt::format("expected a kernel >= 1, a stride >= 0 and a padding of at most half of the kernel but got {}, {} and {}",
                              shown(kernel), shown(o.stride), shown(o.padding)));
  return {.kernel = kernel, .stride = o.stride, .padding = o.padding};
}

std::string pool_settings(const PoolOptions& o) {
  return fmt::format("kernel={}", shown(o.kernel)) + unless("stride", o.stride, 0) + unless("padding", o.padding, 0);
}

}  // namespace

Conv2d::Conv2d(std::int64_t in, std::int64_t out, Size2d kernel, const Conv2dOptions& o)
    : options{.stride = o.stride, .padding = o.padding, .dilation = o.dilation, .groups = o.groups} {
  check_steps("Conv2d", o.stride, o.padding, o.dilation);
  const std::int64_t seen = o.groups >= 1 ? in / o.groups : 0;
  make_parameters("Conv2d", weight, bias, {out, seen, kernel[0], kernel[1]}, in, o.groups, o.bias, o.device);
}

std::string Conv2d::settings() const {
  return weight.defined() ? conv_settings(weight, bias, options, {weight.size(2), weight.size(3)}) : "";
}

Tensor Conv2d::forward(const Tensor& x) const {
  const ModuleScope scope(this, "Conv2d");
  return conv2d(x, weight, bias, options);
}

ConvTranspose2d::ConvTranspose2d(std::int64_t in, std::int64_t out, Size2d kernel, const ConvTranspose2dOptions& o)
    : options{.stride = o.stride, .padding = o.padding, .output_padding = o.output_padding, .dilation = o.dilation, .groups = o.groups} {
  check_steps("ConvTranspose2d", o.stride, o.padding, o.dilation);
  for (std::size_t i = 0; i < 2; ++i)
    if (o.output_padding[i] < 0 || o.output_padding[i] >= o.stride[i])
      fail("ConvTranspose2d",
           fmt::format("expected an output_padding below the stride but got {} and {}", shown(o.output_padding), shown(o.stride)));
  Tensor none;  // the weight has as many rows as x has channels, and the bias those of y
  const std::int64_t written = o.groups >= 1 && out % o.groups == 0 ? out / o.groups : 0;
  make_parameters("ConvTranspose2d", weight, none, {in, written, kernel[0], kernel[1]}, in, o.groups, false, o.device);
  const double bound = 1 / std::sqrt(static_cast<double>(init::fans(weight.shape()).in));
  if (o.bias) bias = init::uniform(detail::parameter({out}, o.device), -bound, bound);
}

std::string ConvTranspose2d::settings() const {
  if (!weight.defined()) return "";
  const ConvTransposeOptions& o = options;
  return fmt::format("in={}, out={}, kernel={}", weight.size(0), weight.size(1) * o.groups, shown({weight.size(2), weight.size(3)})) +
         unless("stride", o.stride, 1) + unless("padding", o.padding, 0) + unless("output_padding", o.output_padding, 0) +
         unless("dilation", o.dilation, 1) + (o.groups == 1 ? "" : fmt::format(", groups={}", o.groups)) +
         (bias.defined() ? "" : ", bias=false");
}

Tensor ConvTranspose2d::forward(const Tensor& x) const {
  const ModuleScope scope(this, "ConvTranspose2d");
  return conv_transpose2d(x, weight, bias, options);
}

Conv1d::Conv1d(std::int64_t in, std::int64_t out, std::int64_t kernel, const Conv1dOptions& o)
    : options{.stride = o.stride, .padding = o.padding, .dilation = o.dilation, .groups = o.groups} {
  check_steps("Conv1d", {o.stride, o.stride}, {o.padding, o.padding}, {o.dilation, o.dilation});
  make_parameters("Conv1d", weight, bias, {out, o.groups >= 1 ? in / o.groups : 0, kernel}, in, o.groups, o.bias, o.device);
}

std::string Conv1d::settings() const {
  if (!weight.defined()) return "";
  const auto both = [](std::int64_t size) { return Pair{size, size}; };
  const tern::Conv1dOptions& o = options;
  return conv_settings(weight, bias,
                       {.stride = both(o.stride), .padding = both(o.padding), .dilation = both(o.dilation), .groups = o.groups},
                       both(weight.size(2)));
}

Tensor Conv1d::forward(const Tensor& x) const {
  const ModuleScope scope(this, "Conv1d");
  return conv1d(x, weight, bias, options);
}

MaxPool2d::MaxPool2d(Size2d kernel, const Pool2dOptions& o) : options(pool_options("MaxPool2d", kernel, o)) {}
std::string MaxPool2d::settings() const { return pool_settings(options); }
Tensor MaxPool2d::forward(const Tensor& x) const {
  const ModuleScope scope(this, "MaxPool2d");
  return max_pool2d(x, options);
}

AvgPool2d::AvgPool2d(Size2d kernel, const Pool2dOptions& o) : options(pool_options("AvgPool2d", kernel, o)) {}
std::string AvgPool2d::settings() const { return pool_settings(options); }
Tensor AvgPool2d::forward(const Tensor& x) const {
  const ModuleScope scope(this, "AvgPool2d");
  return avg_pool2d(x, options);
}

std::string AdaptiveAvgPool2d::settings() const { return fmt::format("size={}", shown(size)); }
Tensor AdaptiveAvgPool2d::forward(const Tensor& x) const {
  const ModuleScope scope(this, "AdaptiveAvgPool2d");
  return adaptive_avg_pool2d(x, size);
}

std::string AdaptiveMaxPool2d::settings() const { return fmt::format("size={}", shown(size)); }
Tensor AdaptiveMaxPool2d::forward(const Tensor& x) const {
  const ModuleScope scope(this, "AdaptiveMaxPool2d");
  return adaptive_max_pool2d(x, size);
}

}  // namespace tern::nn
