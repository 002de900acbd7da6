#include "ops/copy.h"

#include <fmt/format.h>

#include "autodiff/node.h"
#include "backend/memory.h"
#include "ops/kernels/copy.h"
#include "ops/view.h"

namespace tern {

/// Contiguous copy of x in another dtype; not recorded.
static Tensor converted(const Tensor& x, DType dtype) {
  Tensor y = empty(x.shape(), dtype, x.device());
  on(x.device(), [&](auto dev) { kernels::copy(dev, x.view(), y.view()); });
  return y;
}

Tensor clone(const Tensor& x) {
  return record("clone", converted(x, x.dtype()), {x}, {}, Symmetric{}, [](const Backward& call) -> Tensors { return {call.grad()}; });
}

Tensor contiguous(const Tensor& x) { return x.is_contiguous() ? x : clone(x); }

Tensor cast(const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  return record("cast", converted(x, dtype), {x}, {}, Linear{[&](const Tensors& t) -> Tensors { return {cast(t[0], dtype)}; }},
                [from = x.dtype()](const Backward& call) -> Tensors { return {cast(call.grad(), from)}; });
}

Tensor to(const Tensor& x, Device device) {
  if (x.device() == device) return x;
  const Tensor source = x.is_contiguous() ? x : converted(x, x.dtype());
  Tensor y = empty(x.shape(), x.dtype(), device);
  const auto bytes = static_cast<std::size_t>(x.numel()) * size_of(x.dtype());
  if (bytes > 0) {
    const View from = source.view(), into = y.view();
    if (device.type == DeviceType::cpu) {
      on(x.device(), [&](auto dev) { backend::copy_to_host(dev, into.data, from.data, bytes, from.stream); });
    } else if (x.device().type == DeviceType::cpu) {
      on(device, [&](auto dev) { backend::copy_from_host(dev, into.data, from.data, bytes, into.stream); });
    } else {
      on_cuda("to", device, [&](auto dev) { backend::copy_between(dev, into.data, into.stream, from.data, from.stream, bytes); });
    }
  }
  return record("to", y, {x}, {}, Linear{[&](const Tensors& t) -> Tensors { return {to(t[0], device)}; }},
                [from = x.device()](const Backward& call) -> Tensors { return {to(call.grad(), from)}; });
}

Tensor copy_(const Tensor& target, const Tensor& source) {
  if (broadcast_shapes(target.shape(), source.shape(), "copy_") != target.shape())
    fail("copy_", fmt::format("expected a source that broadcasts to {} but got {}", to_string(target.shape()), to_string(source.shape())));
  begin_in_place("copy_", target, {source});
  const Tensor here = broadcast_to(to(source, target.device()), target.shape());
  on(target.device(), [&](auto dev) { kernels::copy(dev, here.view(), target.view()); });
  return target;
}

}  // namespace tern
