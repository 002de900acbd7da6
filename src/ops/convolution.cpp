#include "ops/convolution.h"

#include <fmt/format.h>

#include <limits>

#include "ops/detail/check_floating.h"
#include "ops/join.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/rearrange.h"
#include "ops/reduce.h"
#include "ops/view.h"

namespace tern {

/// How many windows of `extent` elements fit into `length` in steps of `stride`.
static std::int64_t windows(std::int64_t length, std::int64_t extent, std::int64_t stride) { return (length - extent) / stride + 1; }

/// conv2d and conv1d, whose signal is an image of one row, under the caller's name and with the caller's shapes in errors.
static Tensor convolved(const char* op, const Tensor& x, const Tensor& w, const Tensor& bias, const ConvOptions& o, bool is_signal) {
  const std::int64_t groups = o.groups;
  const auto shown = [&](const Tensor& t) { return to_string(is_signal ? squeeze(t, 2).shape() : t.shape()); };
  if (groups < 1 || x.size(1) != w.size(1) * groups || w.size(0) % groups != 0)
    fail(op, fmt::format("expected weights (O, C / groups, ...) with {} channels in {} groups but got {} for {}", x.size(1), groups,
                         shown(w), shown(x)));
  if (bias.defined() && bias.shape() != Shape{w.size(0)})
    fail(op, fmt::format("expected a bias ({},) but got {}", w.size(0), to_string(bias.shape())));
  if (x.dtype() != w.dtype() || !is_floating(x.dtype()))
    fail(op, fmt::format("expected operands of one floating dtype but got {} and {}", name(x.dtype()), name(w.dtype())));
  std::int64_t sizes[2];
  for (int i = 0; i < 2; ++i) {
    const auto d = static_cast<std::size_t>(i);
    const std::int64_t padded = x.size(2 + i) + 2 * o.padding[d], extent = o.dilation[d] * (w.size(2 + i) - 1) + 1;
    if (w.size(2 + i) < 1 || o.stride[d] < 1 || o.dilation[d] < 1 || o.padding[d] < 0 || extent > padded)
      fail(op, fmt::format("expected a kernel that fits into the padded input, and a stride and dilation >= 1, but got {} for {}", shown(w),
                           shown(x)));
    sizes[i] = windows(padded, extent, o.stride[d]);
  }
  const std::int64_t depth = w.size(1) * w.size(2) * w.size(3), positions = sizes[0] * sizes[1];
  const Tensor columns = unfold(x, {.kernel = {w.size(2), w.size(3)}, .stride = o.stride, .padding = o.padding, .dilation = o.dilation});
  const Tensor y = matmul(reshape(w, {groups, w.size(0) / groups, depth}), reshape(columns, {x.size(0), groups, depth, positions}));
  const Tensor image = reshape(y, {x.size(0), w.size(0), sizes[0], sizes[1]});
  return bias.defined() ? image + reshape(bias, {w.size(0), 1, 1}) : image;
}

Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvOptions& options) {
  check_one_device("conv2d", {&x, &weight, &bias});
  if (x.dims() != 4 || weight.dims() != 4)
    fail("conv2d", fmt::format("expected images (B, C, H, W) and weights (O, C / groups, kh, kw) but got {} and {}", to_string(x.shape()),
                               to_string(weight.shape())));
  return convolved("conv2d", x, weight, bias, options, false);
}

Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv1dOptions& o) {
  check_one_device("conv1d", {&x, &weight, &bias});
  if (x.dims() != 3 || weight.dims() != 3)
    fail("conv1d", fmt::format("expected signals (B, C, L) and weights (O, C / groups, k) but got {} and {}", to_string(x.shape()),
                               to_string(weight.shape())));
  const ConvOptions options{.stride = {1, o.stride}, .padding = {0, o.padding}, .dilation = {1, o.dilation}, .groups = o.groups};
  return squeeze(convolved("conv1d", unsqueeze(x, 2), unsqueeze(weight, 2), bias, options, true), 2);
}

/// The windows (B, C, kh kw, oh ow) of images that are padded with a value, and the result's shape.
static std::pair<Tensor, Shape> pooled(const char* op, const Tensor& x, const PoolOptions& o, double padding) {
  if (x.dims() != 4) fail(op, fmt::format("expected images (B, C, H, W) but got {}", to_string(x.shape())));
  detail::check_floating(op, x);
  std::array<std::int64_t, 2> stride = o.stride;
  Shape shape = {x.size(0), x.size(1)};
  Tensor padded = x;
  for (int i = 0; i < 2; ++i) {
    const auto d = static_cast<std::size_t>(i);
    if (stride[d] == 0) stride[d] = o.kernel[d];
    if (o.kernel[d] < 1 || stride[d] < 0 || o.padding[d] < 0 || 2 * o.padding[d] > o.kernel[d] ||
        o.kernel[d] > x.size(2 + i) + 2 * o.padding[d])
      fail(op, fmt::format("expected a kernel that fits into the padded images {}, and padding of at most half of it, but got {} and {}",
                           to_string(x.shape()), o.kernel[d], o.padding[d]));
    if (o.padding[d] > 0) padded = pad(padded, 2 + i, o.padding[d], o.padding[d], padding);
    shape.push_back(windows(padded.size(2 + i), o.kernel[d], stride[d]));
  }
  const Tensor columns = unfold(padded, {.kernel = o.kernel, .stride = stride});
  return {reshape(columns, {x.size(0), x.size(1), o.kernel[0] * o.kernel[1], shape[2] * shape[3]}), shape};
}

Tensor max_pool2d(const Tensor& x, const PoolOptions& options) {
  const auto [columns, shape] = pooled("max_pool2d", x, options, -std::numeric_limits<double>::infinity());
  return reshape(max(columns, 2), shape);
}

Tensor avg_pool2d(const Tensor& x, const PoolOptions& options) {
  const auto [columns, shape] = pooled("avg_pool2d", x, options, 0);
  return reshape(mean(columns, 2), shape);
}

Tensor upsample_nearest(const Tensor& x, std::int64_t factor) {
  if (x.dims() < 2) fail("upsample_nearest", fmt::format("expected images (..., H, W) but got {}", to_string(x.shape())));
  if (factor < 1) fail("upsample_nearest", fmt::format("expected a factor >= 1 but got {}", factor));
  return repeat(repeat(x, factor, -2), factor, -1);
}

}  // namespace tern
