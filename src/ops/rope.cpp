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

/// Memory for a result like x (B, H, T, D): in the order of a projection, whose heads lie beside each other, if x is a view of one.
static Tensor empty_in_order_of(const Tensor& x) {
  if (x.strides()[1] >= x.strides()[2]) return empty(x.shape(), x.dtype(), x.device());
  return transpose(empty({x.size(0), x.size(2), x.size(1), x.size(3)}, x.dtype(), x.device()), 1, 2);
}

/// A rotation is orthogonal: its derivative rotates back.
static Tensor rotated(const Tensor& x, const Tensor& table, std::int64_t heads, bool inverse) {
  const Tensor source = x.strides().back() == 1 || x.size(-1) <= 1 ? x : clone(x);
  Tensor y = empty_in_order_of(source);
  on(y.device(), [&](auto dev) { kernels::rope(dev, source.view(), table.view(), y.view(), heads, inverse); });
  return record("rope", y, {source}, {table},
                [heads, inverse](const Backward& call) -> Tensors { return {rotated(call.grad(), call.saved(0), heads, !inverse)}; });
}

Tensor rope(const Tensor& x, const Tensor& table, std::optional<std::int64_t> heads) {
  check_one_device("rope", {&x, &table});
  if (!is_floating(x.dtype()) || !is_floating(table.dtype()))
    fail("rope", fmt::format("expected floating x and table but got {} and {}", name(x.dtype()), name(table.dtype())));
  if (x.dims() != 4 || table.dims() != 3 || x.size(3) % 2 != 0 || table.size(0) < x.size(2) || table.size(1) != x.size(3) / 2 ||
      table.size(2) != 2)
    fail("rope", fmt::format("expected x (B, H, T, D), D even, and a table (at least T, D / 2, 2) but got {} and {}", to_string(x.shape()),
                             to_string(table.shape())));
  if (heads && (*heads < 0 || *heads > x.size(1)))
    fail("rope", fmt::format("expected at most the {} heads of x but got {}", x.size(1), *heads));
  const Tensor angles = contiguous(cast(slice(table.detach(), 0, 0, x.size(2)), x.dtype() == DType::f64 ? DType::f64 : DType::f32));
  return rotated(x, angles, heads.value_or(x.size(1)), false);
}

}  // namespace tern
