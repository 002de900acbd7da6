#include "ops/copy.h"

#include <fmt/format.h>

#include "backend/memory.h"
#include "ops/kernels/copy.h"
#include "ops/op.h"
#include "ops/view.h"

namespace tern {

/// Contiguous copy of x in another dtype; not recorded.
static Tensor converted(const Tensor& x, DType dtype) {
  Tensor y = empty(x.shape(), dtype, x.device());
  on(x.device(), [&](auto dev) { kernels::copy(dev, x.view(), y.view()); });
  return y;
}

namespace {

struct Clone {
  static constexpr Op op{.name = "clone", .tangent = Tangent::symmetric};

  Result<Tensor> forward(const Tensor& x) const { return {converted(x, x.dtype())}; }
  Tensors backward(const Backward& call) const { return {call.grad()}; }
};

struct Cast {
  static constexpr Op op{.name = "cast", .tangent = Tangent::linear};
  DType from, to;

  Result<Tensor> forward(const Tensor& x) const { return {converted(x, to)}; }
  Tensors backward(const Backward& call) const { return {cast(call.grad(), from)}; }
};

struct To {
  static constexpr Op op{.name = "to", .tangent = Tangent::linear};
  Device from, device;

  Result<Tensor> forward(const Tensor& x) const {
    const Tensor source = x.is_contiguous() ? x : converted(x, x.dtype());
    const Tensor y = empty(x.shape(), x.dtype(), device);
    const auto bytes = static_cast<std::size_t>(x.numel()) * size_of(x.dtype());
    if (bytes == 0) return {y};
    const View read = source.view(), into = y.view();
    if (device.type == DeviceType::cpu) {
      on(from, [&](auto dev) { backend::copy_to_host(dev, into.data, read.data, bytes, read.stream); });
    } else if (from.type == DeviceType::cpu) {
      on(device, [&](auto dev) { backend::copy_from_host(dev, into.data, read.data, bytes, into.stream); });
    } else {
      on_cuda(op.name, device, [&](auto dev) { backend::copy_between(dev, into.data, into.stream, read.data, read.stream, bytes); });
    }
    return {y};
  }
  Tensors backward(const Backward& call) const { return {to(call.grad(), from)}; }
};

}  // namespace

Tensor clone(const Tensor& x) { return call(Clone{}, x); }
Tensor contiguous(const Tensor& x) { return x.is_contiguous() ? x : clone(x); }
Tensor cast(const Tensor& x, DType dtype) { return x.dtype() == dtype ? x : call(Cast{x.dtype(), dtype}, x); }
Tensor to(const Tensor& x, Device device) { return x.device() == device ? x : call(To{x.device(), device}, x); }

Tensor copy_(const Tensor& target, const Tensor& source) {
  if (broadcast_shapes(target.shape(), source.shape(), "copy_") != target.shape())
    fail("copy_", fmt::format("expected a source that broadcasts to {} but got {}", to_string(target.shape()), to_string(source.shape())));
  begin_in_place("copy_", target, {source});
  const Tensor here = broadcast_to(to(source, target.device()), target.shape());
  on(target.device(), [&](auto dev) { kernels::copy(dev, here.view(), target.view()); });
  return target;
}

}  // namespace tern
