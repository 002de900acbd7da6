#include <fmt/format.h>

#include "autodiff/node.h"
#include "ops/copy.h"
#include "ops/kernels/pointwise.h"
#include "ops/operators.h"
#include "ops/view.h"
#include "tensor/holds.h"

// Operators on the bits of integers (ops/operators.h).
namespace tern {

namespace {

using kernels::Operand;
using Kind = functors::Bits::Kind;

bool is_shift(Kind kind) { return kind == Kind::left || kind == Kind::right; }

/// y = f(x, operand), recorded for observers alone: integers have no gradients.
Tensor applied(const char* op, Kind kind, const Tensor& x, const Operand& operand) {
  const Tensor y = empty(x.shape(), x.dtype(), x.device());
  on(y.device(), [&](auto dev) { kernels::binary(dev, functors::Bits{kind}, x.view(), operand, y.view()); });
  return record(op, y, {x}, {}, [](const Backward&) -> Tensors { return {}; });
}

Tensor bits(const char* op, Kind kind, const Tensor& a, const Tensor& b) {
  check_one_device(op, {&a, &b});
  const DType dtype = promote(a.dtype(), b.dtype());
  const bool any_is_bool = a.dtype() == DType::boolean || b.dtype() == DType::boolean;
  if (is_floating(dtype) || (is_shift(kind) && any_is_bool))
    fail(op, fmt::format("expected {} but got {} and {}", is_shift(kind) ? "integers" : "integers or bool tensors", name(a.dtype()),
                         name(b.dtype())));
  const Shape shape = broadcast_shapes(a.shape(), b.shape(), op);
  if (dtype == DType::boolean) return kind == Kind::both ? logical_and(a, b) : kind == Kind::any ? logical_or(a, b) : ne(a, b);
  return applied(op, kind, broadcast_to(cast(a, dtype), shape), broadcast_to(cast(b, dtype), shape).view());
}

Tensor bits(const char* op, Kind kind, const Tensor& a, std::int64_t b) {
  if (is_floating(a.dtype()) || a.dtype() == DType::boolean)
    fail(op, fmt::format("expected integers beside a number but got {}", name(a.dtype())));
  const auto number = static_cast<double>(b);
  if (a.dtype() != DType::i64 && !detail::holds(a.dtype(), number))
    fail(op, fmt::format("expected a number that {} holds but got {}", name(a.dtype()), b));
  // The number of a kernel's operand is a double, which does not hold all integers beyond 2^53.
  if (b > -(std::int64_t{1} << 53) && b < std::int64_t{1} << 53) return applied(op, kind, a, number);
  return applied(op, kind, a, broadcast_to(Tensor::scalar(b, a.device()), a.shape()).view());
}

}  // namespace

Tensor operator~(const Tensor& x) {
  if (x.dtype() == DType::boolean) return logical_not(x);
  if (is_floating(x.dtype())) fail("operator~", fmt::format("expected integers or a bool tensor but got {}", name(x.dtype())));
  return bits("operator~", Kind::one, x, x.dtype() == DType::u8 ? 255 : -1);
}
Tensor operator&(const Tensor& a, const Tensor& b) { return bits("operator&", Kind::both, a, b); }
Tensor operator|(const Tensor& a, const Tensor& b) { return bits("operator|", Kind::any, a, b); }
Tensor operator^(const Tensor& a, const Tensor& b) { return bits("operator^", Kind::one, a, b); }
Tensor operator<<(const Tensor& a, const Tensor& b) { return bits("operator<<", Kind::left, a, b); }
Tensor operator>>(const Tensor& a, const Tensor& b) { return bits("operator>>", Kind::right, a, b); }
Tensor operator&(const Tensor& a, std::int64_t b) { return bits("operator&", Kind::both, a, b); }
Tensor operator|(const Tensor& a, std::int64_t b) { return bits("operator|", Kind::any, a, b); }
Tensor operator^(const Tensor& a, std::int64_t b) { return bits("operator^", Kind::one, a, b); }
Tensor operator<<(const Tensor& a, std::int64_t b) { return bits("operator<<", Kind::left, a, b); }
Tensor operator>>(const Tensor& a, std::int64_t b) { return bits("operator>>", Kind::right, a, b); }

}  // namespace tern
