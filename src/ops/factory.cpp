#include "ops/factory.h"

#include <cmath>

#include "autodiff/node.h"
#include "ops/kernels/copy.h"

namespace tern {

Tensor full(const Shape& shape, double value, DType dtype, Device device) {
  Tensor y = empty(shape, dtype, device);
  on(device, [&](auto dev) { kernels::fill(dev, y.view(), value); }, "full");
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
  Tensor y = empty({count > 0 ? static_cast<std::int64_t>(count) : 0}, dtype, device);
  on(device, [&](auto dev) { kernels::arange(dev, y.view(), start, step); }, "arange");
  return y;
}

Tensor fill_(const Tensor& x, double value) {
  begin_in_place("fill_", x);
  on(x.device(), [&](auto dev) { kernels::fill(dev, x.view(), value); }, "fill_");
  return x;
}

}  // namespace tern
