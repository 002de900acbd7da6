#include <fmt/format.h>

#include <algorithm>

#include "ops/conv.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/matmul.h"
#include "ops/op.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"

// Images at other sizes: transposed convolutions, pooling to a given size, interpolation. All are compositions.
namespace tern {

namespace {

/// The size of conv_transpose2d's result along one dimension of `length` elements. Throws Error for options that do not fit.
std::int64_t transposed_size(const char* op, const ConvTransposeOptions& o, std::size_t d, std::int64_t length, std::int64_t taps) {
  if (taps < 1 || length < 1 || o.stride[d] < 1 || o.dilation[d] < 1 || o.padding[d] < 0 || o.output_padding[d] < 0 ||
      o.output_padding[d] >= o.stride[d])
    fail(op,
         fmt::format("expected images and a kernel of at least one element, stride and dilation >= 1, padding >= 0 and an output_padding "
                     "below the stride, but got {} and {} elements, {}, {}, {} and {}",
                     length, taps, o.stride[d], o.dilation[d], o.padding[d], o.output_padding[d]));
  const std::int64_t spread = checked_mul(op, length - 1, o.stride[d]), extent = checked_mul(op, o.dilation[d], taps - 1);
  const std::int64_t whole = checked_add(op, checked_add(op, spread, extent), o.output_padding[d] + 1);
  const std::int64_t removed = checked_mul(op, 2, o.padding[d]);
  if (removed >= whole) fail(op, fmt::format("expected a padding that leaves at least one of {} elements but got {}", whole, o.padding[d]));
  return whole - removed;
}

struct ConvTranspose2d {
  static constexpr Op op{.name = "conv_transpose2d", .autocast = CastTo::lower};
  ConvTransposeOptions o;

  Tensor forward(const Tensor& x, const Tensor& weight, const Tensor& bias) const {
    if (x.dims() != 4 || weight.dims() != 4)
      fail(op.name, fmt::format("expected images (B, C, H, W) and weights (C, O / groups, kh, kw) but got {} and {}", to_string(x.shape()),
                                to_string(weight.shape())));
    const std::int64_t groups = o.groups, in = x.size(1), out = weight.size(1);  // channels; `out` of a group
    if (groups < 1 || weight.size(0) != in || in % groups != 0)
      fail(op.name, fmt::format("expected weights (C, O / groups, ...) with {} channels in {} groups but got {}", in, groups,
                                to_string(weight.shape())));
    for (const Tensor* other : {&weight, &bias})
      if (other->defined() && (other->dtype() != x.dtype() || !is_floating(x.dtype())))
        fail(op.name, fmt::format("expected operands of one floating dtype but got {} and {}", name(x.dtype()), name(other->dtype())));
    if (bias.defined() && bias.shape() != Shape{checked_mul(op.name, out, groups)})
      fail(op.name, fmt::format("expected a bias ({},) but got {}", out * groups, to_string(bias.shape())));
    const std::int64_t height = transposed_size(op.name, o, 0, x.size(2), weight.size(2));
    const std::int64_t width = transposed_size(op.name, o, 1, x.size(3), weight.size(3));

    const NoAutocast chosen;
    // On the CPU in f32, as conv2d: columns of 16 bits would be rounded before fold adds them.
    const bool is_wide = x.device() == cpu;
    const auto wide = [&](const Tensor& t) { return is_wide && t.defined() ? detail::widened(t) : t; };
    const std::int64_t batch = x.size(0), pixels = x.size(2) * x.size(3), rows = out * weight.size(2) * weight.size(3);
    const Tensor images = reshape(wide(x), {batch, groups, in / groups, pixels});
    const Tensor taps = transpose(reshape(wide(weight), {groups, in / groups, rows}), 1, 2);
    const Tensor columns = reshape(matmul(taps, images), {batch, groups * rows, pixels});
    Tensor y = fold(columns, height, width,
                    {.kernel = {weight.size(2), weight.size(3)}, .stride = o.stride, .padding = o.padding, .dilation = o.dilation});
    if (bias.defined()) y = y + reshape(wide(bias), {bias.size(0), 1, 1});
    return cast(y, x.dtype());
  }
};

}  // namespace

Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvTransposeOptions& o) {
  return call(ConvTranspose2d{o}, x, weight, bias);
}

namespace {

/// One dimension of an adaptive pooling: f reduces the elements of each of `count` windows that cover it.
template <class F>
Tensor pooled_along(const char* op, const Tensor& x, int dim, std::int64_t count, F f) {
  const std::int64_t length = x.size(dim);
  checked_mul(op, length, count);
  if (length % count == 0) {
    Shape shape = x.shape();
    shape[dim] = count;
    shape.insert(dim + 1, length / count);
    return f(reshape(x, shape), dim + 1, false);
  }
  if (count > length) {  // a window is one element, or two neighbours
    const Tensor at = arange(count, DType::i64, x.device());
    const auto size = static_cast<double>(length), windows = static_cast<double>(count);
    const Tensor first = floor_divide(at * size, windows), last = floor_divide((at + 1) * size - 1, windows);
    return f(stack({index_select(x, dim, first), index_select(x, dim, last)}, dim + 1), dim + 1, false);
  }
  Tensors parts;
  for (std::int64_t i = 0; i < count; ++i)
    parts.push_back(f(slice(x, dim, i * length / count, ((i + 1) * length + count - 1) / count), dim, true));
  return cat(parts, dim);
}

/// Both dimensions one after the other: a window is a rectangle, so that the mean of its rows' means is its mean, and so for the maximum.
template <class F>
Tensor adaptively_pooled(const char* op, const Tensor& x, const std::array<std::int64_t, 2>& size, F f) {
  detail::check_floating(op, x);
  if (x.dims() != 4 || x.size(2) < 1 || x.size(3) < 1)
    fail(op, fmt::format("expected images (B, C, H, W) of at least one pixel but got {}", to_string(x.shape())));
  if (size[0] < 1 || size[1] < 1) fail(op, fmt::format("expected a size of at least (1, 1) but got ({}, {})", size[0], size[1]));
  return cast(pooled_along(op, pooled_along(op, detail::widened(x), 2, size[0], f), 3, size[1], f), x.dtype());
}

}  // namespace

Tensor adaptive_avg_pool2d(const Tensor& x, const std::array<std::int64_t, 2>& size) {
  return adaptively_pooled("adaptive_avg_pool2d", x, size, [](const Tensor& t, int dim, bool keepdim) { return mean(t, {dim}, keepdim); });
}

Tensor adaptive_max_pool2d(const Tensor& x, const std::array<std::int64_t, 2>& size) {
  return adaptively_pooled("adaptive_max_pool2d", x, size, [](const Tensor& t, int dim, bool keepdim) { return max(t, {dim}, keepdim); });
}

/// Linear interpolation along one dimension.
static Tensor interpolated(const Tensor& x, int dim, std::int64_t count, bool align_corners) {
  const std::int64_t length = x.size(dim);
  if (length == count) return x;
  const Tensor at = arange(0, static_cast<double>(count), 1, DType::f64, x.device());
  const auto last = static_cast<double>(length - 1), steps = static_cast<double>(std::max<std::int64_t>(count - 1, 1));
  const Tensor place =
      align_corners ? at * last / steps : clamp((at + 0.5) * static_cast<double>(length) / static_cast<double>(count) - 0.5, 0.0, last);
  const Tensor below = floor(place);
  const Tensor first = cast(below, DType::i64), second = minimum(first + 1, last);
  Shape line = Shape::filled(x.dims(), 1);
  line[dim] = count;
  const Tensor part = reshape(cast(place - below, x.dtype()), line);
  return index_select(x, dim, first) * (1 - part) + index_select(x, dim, second) * part;
}

Tensor upsample_bilinear(const Tensor& x, const std::array<std::int64_t, 2>& size, bool align_corners) {
  constexpr const char* op = "upsample_bilinear";
  detail::check_floating(op, x);
  if (x.dims() < 2 || x.size(-2) < 1 || x.size(-1) < 1)
    fail(op, fmt::format("expected images (..., H, W) of at least one pixel but got {}", to_string(x.shape())));
  if (size[0] < 1 || size[1] < 1) fail(op, fmt::format("expected a size of at least (1, 1) but got ({}, {})", size[0], size[1]));
  const Tensor rows = interpolated(detail::widened(x), x.dims() - 2, size[0], align_corners);
  return cast(interpolated(rows, x.dims() - 1, size[1], align_corners), x.dtype());
}

Tensor upsample_nearest(const Tensor& x, std::int64_t factor) {
  if (x.dims() < 2) fail("upsample_nearest", fmt::format("expected images (..., H, W) but got {}", to_string(x.shape())));
  if (factor < 1) fail("upsample_nearest", fmt::format("expected a factor >= 1 but got {}", factor));
  return repeat(repeat(x, factor, -2), factor, -1);
}

}  // namespace tern
