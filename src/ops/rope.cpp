#include "ops/rope.h"

#include <fmt/format.h>

#include <cmath>

#include "autodiff/node.h"
#include "ops/copy.h"
#include "ops/kernels/rope.h"
#include "ops/view.h"

namespace tern {

Tensor rope_table(std::int64_t length, std::int64_t head_dim, double base, Device device) {
  if (length < 0 || head_dim < 0 || head_dim % 2 != 0 || !(base > 0))
    fail("rope_table", fmt::format("expected a length, an even head_dim and a base > 0 but got {}, {} and {}", length, head_dim, base));
  std::vector<float> table;
  table.reserve(static_cast<std::size_t>(length * head_dim));
  for (std::int64_t t = 0; t < length; ++t)
    for (std::int64_t i = 0; i < head_dim; i += 2) {
      const double angle = static_cast<double>(t) * std::pow(base, -static_cast<double>(i) / static_cast<double>(head_dim));
      table.push_back(static_cast<float>(std::cos(angle)));
      table.push_back(static_cast<float>(std::sin(angle)));
    }
  return Tensor::from(table, {length, head_dim / 2, 2}, device);
}

/// A rotation is orthogonal: its derivative rotates back.
static Tensor rotated(const Tensor& x, const Tensor& table, bool inverse) {
  const Tensor source = x.strides().back() == 1 || x.size(-1) <= 1 ? x : clone(x);
  Tensor y = empty(x.shape(), x.dtype(), x.device());
  on(y.device(), [&](auto dev) { kernels::rope(dev, source.view(), table.view(), y.view(), inverse); });
  return record("rope", y, {source}, {table},
                [inverse](const Backward& call) -> Tensors { return {rotated(call.grad(), call.saved(0), !inverse)}; });
}

Tensor rope(const Tensor& x, const Tensor& table) {
  check_one_device("rope", {&x, &table});
  if (!is_floating(x.dtype()) || !is_floating(table.dtype()))
    fail("rope", fmt::format("expected floating x and table but got {} and {}", name(x.dtype()), name(table.dtype())));
  if (x.dims() != 4 || table.dims() != 3 || x.size(3) % 2 != 0 || table.size(0) < x.size(2) || table.size(1) != x.size(3) / 2 ||
      table.size(2) != 2)
    fail("rope", fmt::format("expected x (B, H, T, D), D even, and a table (at least T, D / 2, 2) but got {} and {}", to_string(x.shape()),
                             to_string(table.shape())));
  return rotated(x, contiguous(cast(slice(table.detach(), 0, 0, x.size(2)), x.dtype() == DType::f64 ? DType::f64 : DType::f32)), false);
}

}  // namespace tern
