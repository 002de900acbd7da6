#include "ops/factory.h"

#include <fmt/format.h>

#include <cmath>

#include "backend/memory.h"
#include "ops/kernels/copy.h"
#include "ops/op.h"
#include "ops/pointwise.h"
#include "ops/view.h"

namespace tern {

static void check_value(const char* op, DType dtype, double value) {
  if (!detail::takes(dtype, value)) fail(op, fmt::format("expected a number that {} holds but got {}", name(dtype), value));
}

Tensor full(const Shape& shape, double value, DType dtype, Device device) {
  check_value("full", dtype, value);
  Tensor y = empty(shape, dtype, device);
  launch(device, kernels::Fill{y, value}, "full");
  return y;
}
Tensor zeros(const Shape& shape, DType dtype, Device device) { return full(shape, 0, dtype, device); }
Tensor ones(const Shape& shape, DType dtype, Device device) { return full(shape, 1, dtype, device); }
Tensor zeros_like(const Tensor& x) { return full(x.shape(), 0, x.dtype(), x.device()); }
Tensor ones_like(const Tensor& x) { return full(x.shape(), 1, x.dtype(), x.device()); }
Tensor full_like(const Tensor& x, double value) { return full(x.shape(), value, x.dtype(), x.device()); }

Tensor arange(double start, double stop, double step, DType dtype, Device device) {
  if (step == 0 || !std::isfinite(start) || !std::isfinite(stop) || !std::isfinite(step))
    fail("arange", "expected finite bounds and a step other than 0");
  if (dtype == DType::boolean) fail("arange", "expected a numeric dtype but got bool");
  const double count = std::ceil((stop - start) / step);
  if (count > 0x1p53) fail("arange", "expected a number of elements that fits in memory");
  if (count > 0)
    for (const double value : {start, start + (count - 1) * step}) check_value("arange", dtype, value);
  Tensor y = empty({count > 0 ? static_cast<std::int64_t>(count) : 0}, dtype, device);
  launch(device, kernels::Arange{y, start, step}, "arange");
  return y;
}

Tensor linspace(double start, double stop, std::int64_t count, DType dtype, Device device) {
  detail::check_floating("linspace", dtype);
  if (count < 0 || !std::isfinite(start) || !std::isfinite(stop) || !std::isfinite(stop - start))
    fail("linspace",
         fmt::format("expected finite bounds with a finite difference and a count >= 0 but got {}, {} and {}", start, stop, count));
  const NoGrad unrecorded;
  // From both ends towards the middle, so that both bounds are exact.
  const Tensor steps = cast(arange(count, DType::i64, device), DType::f64);
  const double step = count > 1 ? (stop - start) / static_cast<double>(count - 1) : 0;
  const Tensor up = add(mul(steps, step), start), down = add(mul(sub(steps, static_cast<double>(count - 1)), step), stop);
  return cast(where(lt(steps, static_cast<double>(count) / 2), up, down), dtype);
}

Tensor eye(std::int64_t n, std::optional<std::int64_t> columns, std::int64_t diagonal, DType dtype, Device device) {
  const std::int64_t m = columns.value_or(n);
  if (n < 0 || m < 0) fail("eye", fmt::format("expected sizes >= 0 but got {} and {}", n, m));
  const Tensor distance = sub(arange(m, DType::i64, device), reshape(arange(n, DType::i64, device), {n, 1}));
  return cast(eq(distance, static_cast<double>(diagonal)), dtype);
}

Tensor fill_(const Tensor& x, double value) {
  check_value("fill_", x.dtype(), value);
  begin_in_place("fill_", x);
  launch(x.device(), kernels::Fill{x, value}, "fill_");
  return x;
}

/// Contiguous copy of x in another dtype; not recorded.
static Tensor converted(const Tensor& x, DType dtype) {
  Tensor y = empty(x.shape(), dtype, x.device());
  launch(x.device(), kernels::Copy{x, y});
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

/// y = x, contiguous and of one dtype, from device to device, of which one at least is a GPU if they differ.
struct Transfer {
  kernels::In x;
  kernels::Out y;
  std::size_t bytes;

  template <class Backend>
  void run(Backend dev) const {
    if (y.stream.device.type == DeviceType::cpu) return backend::copy_to_host(dev, y.data, x.data, bytes, x.stream);
    if (x.stream.device.type == DeviceType::cpu) return backend::copy_from_host(dev, y.data, x.data, bytes, y.stream);
    if constexpr (std::is_same_v<Backend, Cuda>) backend::copy_between(dev, y.data, y.stream, x.data, x.stream, bytes);
  }
};

struct To {
  static constexpr Op op{.name = "to", .tangent = Tangent::linear};
  Device from, device;

  Result<Tensor> forward(const Tensor& x) const {
    const Tensor source = x.is_contiguous() ? x : converted(x, x.dtype());
    const Tensor y = empty(x.shape(), x.dtype(), device);
    const auto bytes = static_cast<std::size_t>(x.numel()) * size_of(x.dtype());
    if (bytes == 0) return {y};
    launch(from.type == DeviceType::cpu ? device : from, Transfer{source, y, bytes});
    return {y};
  }
  Tensors backward(const Backward& call) const { return {to(call.grad(), from)}; }
};

}  // namespace

Tensor clone(const Tensor& x) { return call(Clone{}, x); }
Tensor contiguous(const Tensor& x) { return x.is_contiguous() ? x : clone(x); }
Tensor cast(const Tensor& x, DType dtype) { return x.dtype() == dtype ? x : call(Cast{x.dtype(), dtype}, x); }
Tensor to(const Tensor& x, Device device) { return x.device() == device ? x : call(To{x.device(), device}, x); }

Tensor Tensor::to(Device device) const { return tern::to(*this, device); }
Tensor Tensor::to(DType dtype) const { return cast(*this, dtype); }

Tensor copy_(const Tensor& target, const Tensor& source) {
  if (broadcast_shapes(target.shape(), source.shape(), "copy_") != target.shape())
    fail("copy_", fmt::format("expected a source that broadcasts to {} but got {}", to_string(target.shape()), to_string(source.shape())));
  begin_in_place("copy_", target, {source});
  const Tensor here = broadcast_to(to(source, target.device()), target.shape());
  launch(target.device(), kernels::Copy{here, target});
  return target;
}

}  // namespace tern
