#include "ops/rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "ops/factory.h"
#include "ops/kernels/attention.h"
#include "ops/op.h"
#include "ops/view.h"

namespace tern {

/// Scaled angle between neighbouring positions of a pair.
static double scaled_frequency(double frequency, const RopeScaling& s) {
  const double slowed = frequency / s.factor;
  if (s.original_length == 0) return slowed;
  const double turns = frequency * static_cast<double>(s.original_length) / (2 * std::numbers::pi);
  const double kept = std::clamp((turns - s.low_turns) / (s.high_turns - s.low_turns), 0.0, 1.0);
  return kept * frequency + (1 - kept) * slowed;
}

Tensor rope_table(std::int64_t length, std::int64_t head_dim, double base, Device device, const RopeScaling& scaling) {
  if (length < 0 || head_dim < 0 || head_dim % 2 != 0 || !(base > 0))
    fail("rope_table", fmt::format("expected a length, an even head_dim and a base > 0 but got {}, {} and {}", length, head_dim, base));
  if (!(scaling.factor > 0) || scaling.original_length < 0 || !(scaling.low_turns < scaling.high_turns))
    fail("rope_table",
         fmt::format("expected a scaling with a factor > 0, an original_length >= 0 and low_turns < high_turns but got {}, {}, "
                     "{} and {}",
                     scaling.factor, scaling.original_length, scaling.low_turns, scaling.high_turns));
  // Made before the numbers: a size beyond memory is an error here.
  const Tensor table = empty({length, head_dim / 2, 2}, DType::f32, cpu);
  if (table.numel() == 0) return to(table, device);
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < head_dim; i += 2)
    frequencies.push_back(scaled_frequency(std::pow(base, -static_cast<double>(i) / static_cast<double>(head_dim)), scaling));
  float* number = table.data<float>();
  for (std::int64_t t = 0; t < length; ++t)
    for (const double frequency : frequencies) {
      const double angle = static_cast<double>(t) * frequency;
      *number++ = static_cast<float>(std::cos(angle));
      *number++ = static_cast<float>(std::sin(angle));
    }
  return to(table, device);
}

/// Memory for a result like x (B, H, T, D): if x is a view of a projection, in its order, with a position's heads adjacent.
static Tensor empty_in_order_of(const Tensor& x) {
  if (x.strides()[1] >= x.strides()[2]) return empty(x.shape(), x.dtype(), x.device());
  return transpose(empty({x.size(0), x.size(2), x.size(1), x.size(3)}, x.dtype(), x.device()), 1, 2);
}

namespace {

/// A rotation is orthogonal: its derivative rotates back. The table is a constant.
struct Rope {
  static constexpr Op op{.name = "rope", .tangent = Tangent::product};
  std::int64_t heads;
  RopePairs pairs;
  bool inverse = false;

  struct Kept {
    Tensor table;
  };
  Result<Tensor, Kept> forward(const Tensor& x, const Tensor& table) const {
    const Tensor source = x.strides().back() == 1 || x.size(-1) <= 1 ? x : clone(x);
    const Tensor y = empty_in_order_of(source);
    const bool halves = pairs == RopePairs::halves;
    on(y.device(), [&](auto dev) { kernels::rope(dev, source.view(), table.view(), y.view(), heads, halves, inverse); });
    return {y, {table}};
  }
  Tensors backward(const Backward& call, const Kept& kept) const {
    return {tern::call(Rope{heads, pairs, !inverse}, call.grad(), kept.table)};
  }
};

}  // namespace

Tensor rope(const Tensor& x, const Tensor& table, std::optional<std::int64_t> heads, RopePairs pairs) {
  if (!is_floating(x.dtype()) || !is_floating(table.dtype()))
    fail("rope", fmt::format("expected floating x and table but got {} and {}", name(x.dtype()), name(table.dtype())));
  if (x.dims() != 4 || table.dims() != 3 || x.size(3) % 2 != 0 || table.size(0) < x.size(2) || table.size(1) != x.size(3) / 2 ||
      table.size(2) != 2)
    fail("rope", fmt::format("expected x (B, H, T, D), D even, and a table (at least T, D / 2, 2) but got {} and {}", to_string(x.shape()),
                             to_string(table.shape())));
  if (heads && (*heads < 0 || *heads > x.size(1)))
    fail("rope", fmt::format("expected at most the {} heads of x but got {}", x.size(1), *heads));
  const Tensor angles = contiguous(cast(slice(table.detach(), 0, 0, x.size(2)), x.dtype() == DType::f64 ? DType::f64 : DType::f32));
  return call(Rope{heads.value_or(x.size(1)), pairs}, x, angles);
}

}  // namespace tern
