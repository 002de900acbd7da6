#include "ops/pointwise.h"

#include <fmt/format.h>

#include <cmath>

#include "autodiff/node.h"
#include "autodiff/vjp.h"
#include "ops/copy.h"
#include "ops/detail/autocast.h"
#include "ops/factory.h"
#include "ops/kernels/pointwise.h"
#include "ops/op.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "tensor/holds.h"

namespace tern {

using detail::holds;
using kernels::Binary;
using kernels::Compare;
using kernels::Operand;

namespace {

/// View of x broadcast to a shape.
View broadcast_view(const Tensor& x, const Shape& shape) {
  View view = x.view();
  const int lead = shape.size() - x.dims();
  view.strides = Strides::filled(shape.size(), 0);
  for (int i = 0; i < x.dims(); ++i)
    if (x.shape()[i] == shape[lead + i]) view.strides[lead + i] = x.strides()[i];
  view.shape = shape;
  return view;
}

/// Dtype of arithmetic on that dtype: bool counts as 1 and 0 of i64.
DType numeric(DType dtype) { return dtype == DType::boolean ? DType::i64 : dtype; }

/// Dtype of arithmetic with a number.
DType with_number(const char* op, DType dtype, double number) {
  if (is_floating(dtype)) return dtype;
  if (!std::isfinite(number) || number != std::floor(number)) return DType::f32;
  dtype = numeric(dtype);
  if (!holds(dtype, number)) fail(op, fmt::format("expected a number that {} holds but got {}", name(dtype), number));
  return dtype;
}

/// Both operands cast to their common dtype.
std::pair<Tensor, Tensor> promoted(const char* op, const Tensor& a, const Tensor& b, DType dtype) {
  check_one_device(op, {&a, &b});
  return {cast(a, dtype), cast(b, dtype)};
}

Tensor apply(const char* op, const Binary& f, const Tensor& a, const Tensor& b) {
  Tensor y = empty(broadcast_shapes(a.shape(), b.shape(), op), a.dtype(), a.device());
  on(y.device(), [&](auto dev) { kernels::binary(dev, f, broadcast_view(a, y.shape()), broadcast_view(b, y.shape()), y.view()); });
  return y;
}

Tensor apply(const Binary& f, const Tensor& a, double b) {
  Tensor y = empty_like(a);
  on(y.device(), [&](auto dev) { kernels::binary(dev, f, a.view(), Operand(b), y.view()); });
  return y;
}

Tensor apply(const Binary& f, double a, const Tensor& b) {
  Tensor y = empty_like(b);
  on(y.device(), [&](auto dev) { kernels::binary(dev, f, Operand(a), b.view(), y.view()); });
  return y;
}

}  // namespace

// Each op is next to its derivative. The gradient of an operand that needs none stays undefined.

Tensor add(const Tensor& a_, const Tensor& b_) {
  const auto [a, b] = promoted("add", a_, b_, numeric(promote(a_.dtype(), b_.dtype())));
  return record("add", apply("add", functors::Add{}, a, b), {a, b}, {}, Symmetric{},
                [sa = a.shape(), sb = b.shape()](const Backward& call) -> Tensors {
                  return {call.needs(0) ? sum_to(call.grad(), sa) : Tensor(), call.needs(1) ? sum_to(call.grad(), sb) : Tensor()};
                });
}

Tensor sub(const Tensor& a_, const Tensor& b_) {
  const auto [a, b] = promoted("sub", a_, b_, numeric(promote(a_.dtype(), b_.dtype())));
  return record("sub", apply("sub", functors::Sub{}, a, b), {a, b}, {}, Symmetric{},
                [sa = a.shape(), sb = b.shape()](const Backward& call) -> Tensors {
                  return {call.needs(0) ? sum_to(call.grad(), sa) : Tensor(), call.needs(1) ? sum_to(neg(call.grad()), sb) : Tensor()};
                });
}

Tensor mul(const Tensor& a_, const Tensor& b_) {
  const auto [a, b] = promoted("mul", a_, b_, numeric(promote(a_.dtype(), b_.dtype())));
  return record("mul", apply("mul", functors::Mul{}, a, b), {a, b}, {a, b}, Symmetric{}, [](const Backward& call) -> Tensors {
    const Tensor x = call.saved(0), y = call.saved(1), &g = call.grad();
    return {call.needs(0) ? sum_to(g * y, x.shape()) : Tensor(), call.needs(1) ? sum_to(g * x, y.shape()) : Tensor()};
  });
}

Tensor div(const Tensor& a_, const Tensor& b_) {
  DType dtype = promote(a_.dtype(), b_.dtype());
  if (!is_floating(dtype)) dtype = DType::f32;
  const auto [a, b] = promoted("div", a_, b_, dtype);
  return record("div", apply("div", functors::Div{}, a, b), {a, b}, {a, b}, Symmetric{}, [](const Backward& call) -> Tensors {
    const Tensor x = call.saved(0), y = call.saved(1), gx = call.grad() / y;
    return {call.needs(0) ? sum_to(gx, x.shape()) : Tensor(), call.needs(1) ? sum_to(neg(gx * x / y), y.shape()) : Tensor()};
  });
}

Tensor pow(const Tensor& base, const Tensor& exponent) {
  const Tensor a_ = detail::autocast("pow", base), b_ = detail::autocast("pow", exponent);
  const auto [a, b] = promoted("pow", a_, b_, numeric(promote(a_.dtype(), b_.dtype())));
  return record("pow", apply("pow", functors::Pow{}, a, b), {a, b}, {a, b}, Symmetric{}, [](const Backward& call) -> Tensors {
    const Tensor x = call.saved(0), y = call.saved(1), &g = call.grad();
    Tensor gx, gy;
    if (call.needs(0)) gx = sum_to(where(eq(y, 0), 0, g * (y * pow(x, y - 1))), x.shape());
    // If the power of 0 is finite (0 or 1), log(1) = 0 replaces log(0): 0 log(0) would be NaN, but the limit is 0.
    if (call.needs(1)) gy = sum_to(g * pow(x, y) * log(where(logical_and(eq(x, 0), ge(y, 0)), 1, x)), y.shape());
    return {gx, gy};
  });
}

/// The gradient of one operand of minimum or maximum, selected and not multiplied: a loser's is 0 where g is infinite, too.
static Tensor share_of(const Tensor& g, const Tensor& loses, const Tensor& ties) { return where(loses, 0, where(ties, g * 0.5, g)); }
static Tensor extreme(const char* op, const Binary& f, const Tensor& a_, const Tensor& b_) {
  const auto [a, b] = promoted(op, a_, b_, numeric(promote(a_.dtype(), b_.dtype())));
  return record(op, apply(op, f, a, b), {a, b}, {a, b}, Symmetric{}, [f](const Backward& call) -> Tensors {
    const Tensor x = call.saved(0), y = call.saved(1), &g = call.grad();
    const bool is_minimum = std::holds_alternative<functors::Minimum>(f);
    return {call.needs(0) ? sum_to(share_of(g, is_minimum ? gt(x, y) : lt(x, y), eq(x, y)), x.shape()) : Tensor(),
            call.needs(1) ? sum_to(share_of(g, is_minimum ? lt(x, y) : gt(x, y), eq(x, y)), y.shape()) : Tensor()};
  });
}
Tensor minimum(const Tensor& a, const Tensor& b) { return extreme("minimum", functors::Minimum{}, a, b); }
Tensor maximum(const Tensor& a, const Tensor& b) { return extreme("maximum", functors::Maximum{}, a, b); }

Tensor remainder(const Tensor& a_, const Tensor& b_) {
  const auto [a, b] = promoted("remainder", a_, b_, numeric(promote(a_.dtype(), b_.dtype())));
  const Tensor y = apply("remainder", functors::Remainder{}, a, b);
  return record("remainder", y, {a, b}, {a, b, y}, Symmetric{}, [](const Backward& call) -> Tensors {
    const Tensor x = call.saved(0), z = call.saved(1), &g = call.grad();
    // a = b floor(a / b) + remainder, and floor has the derivative 0; round() makes the quotient whole despite its rounding error.
    const Tensor whole = call.needs(1) ? round((x.detach() - call.saved(2).detach()) / z.detach()) : Tensor();
    return {call.needs(0) ? sum_to(g, x.shape()) : Tensor(), call.needs(1) ? sum_to(neg(g * whole), z.shape()) : Tensor()};
  });
}
static void check_divisor(const char* op, const Tensor& divided, double b) {
  if (b == 0 && !is_floating(divided.dtype())) fail(op, "expected a number other than 0 but got 0");
}
Tensor remainder(const Tensor& a_, double b) {
  const Tensor a = cast(a_, with_number("remainder", a_.dtype(), b));
  check_divisor("remainder", a, b);
  return record("remainder", apply(functors::Remainder{}, a, b), {a}, {}, Symmetric{},
                [](const Backward& call) -> Tensors { return {call.grad()}; });
}
Tensor remainder(double a, const Tensor& b_) {
  const Tensor b = cast(b_, with_number("remainder", b_.dtype(), a)), y = apply(functors::Remainder{}, a, b);
  return record("remainder", y, {b}, {b, y}, Symmetric{}, [a](const Backward& call) -> Tensors {
    return {neg(call.grad() * round((a - call.saved(1).detach()) / call.saved(0).detach()))};
  });
}

Tensor floor_divide(const Tensor& a_, const Tensor& b_) {
  const auto [a, b] = promoted("floor_divide", a_, b_, numeric(promote(a_.dtype(), b_.dtype())));
  return record("floor_divide", apply("floor_divide", functors::FloorDivide{}, a, b), {a, b}, {}, Symmetric{},
                [sa = a.shape(), sb = b.shape()](const Backward& call) -> Tensors {
                  const auto none = [&](std::size_t i, const Shape& shape) {
                    return call.needs(i) ? zeros(shape, call.grad().dtype(), call.grad().device()) : Tensor();
                  };
                  return {none(0, sa), none(1, sb)};
                });
}
Tensor floor_divide(const Tensor& a_, double b) {
  const Tensor a = cast(a_, with_number("floor_divide", a_.dtype(), b));
  check_divisor("floor_divide", a, b);
  return record("floor_divide", apply(functors::FloorDivide{}, a, b), {a}, {}, Symmetric{},
                [](const Backward& call) -> Tensors { return {zeros_like(call.grad())}; });
}
Tensor floor_divide(double a, const Tensor& b_) {
  const Tensor b = cast(b_, with_number("floor_divide", b_.dtype(), a));
  return record("floor_divide", apply(functors::FloorDivide{}, a, b), {b}, {}, Symmetric{},
                [](const Backward& call) -> Tensors { return {zeros_like(call.grad())}; });
}

Tensor atan2(const Tensor& y_, const Tensor& x_) {
  DType dtype = promote(y_.dtype(), x_.dtype());
  if (!is_floating(dtype)) dtype = DType::f32;
  const auto [y, x] = promoted("atan2", y_, x_, dtype);
  return record("atan2", apply("atan2", functors::Atan2{}, y, x), {y, x}, {y, x}, Symmetric{}, [](const Backward& call) -> Tensors {
    const Tensor a = detail::widened(call.saved(0)), b = detail::widened(call.saved(1));
    // The gradient is 0 at the origin, where the angle jumps, and not 0 / 0, which would spoil every sum that it is part of.
    const Tensor squares = square(a) + square(b);
    const Tensor g = detail::widened(call.grad()) / where(eq(squares, 0), 1.0, squares);
    const DType own = call.saved(0).dtype();
    return {call.needs(0) ? cast(sum_to(g * b, a.shape()), own) : Tensor(),
            call.needs(1) ? cast(sum_to(neg(g * a), b.shape()), own) : Tensor()};
  });
}

Tensor add(const Tensor& a_, double b) {
  const Tensor a = cast(a_, with_number("add", a_.dtype(), b));
  return record("add", apply(functors::Add{}, a, b), {a}, {}, Symmetric{}, [](const Backward& call) -> Tensors { return {call.grad()}; });
}
Tensor sub(const Tensor& a_, double b) {
  const Tensor a = cast(a_, with_number("sub", a_.dtype(), b));
  return record("sub", apply(functors::Sub{}, a, b), {a}, {}, Symmetric{}, [](const Backward& call) -> Tensors { return {call.grad()}; });
}
Tensor sub(double a, const Tensor& b_) {
  const Tensor b = cast(b_, with_number("sub", b_.dtype(), a));
  return record("sub", apply(functors::Sub{}, a, b), {b}, {}, Symmetric{},
                [](const Backward& call) -> Tensors { return {neg(call.grad())}; });
}
Tensor mul(const Tensor& a_, double b) {
  const Tensor a = cast(a_, with_number("mul", a_.dtype(), b));
  return record("mul", apply(functors::Mul{}, a, b), {a}, {}, Symmetric{},
                [b](const Backward& call) -> Tensors { return {call.grad() * b}; });
}
Tensor div(const Tensor& a_, double b) {
  const Tensor a = cast(a_, is_floating(a_.dtype()) ? a_.dtype() : DType::f32);
  return record("div", apply(functors::Div{}, a, b), {a}, {}, Symmetric{},
                [b](const Backward& call) -> Tensors { return {call.grad() / b}; });
}
Tensor div(double a, const Tensor& divisor) {
  const Tensor b_ = detail::autocast("reciprocal", divisor);
  const Tensor b = cast(b_, is_floating(b_.dtype()) ? b_.dtype() : DType::f32);
  const Tensor y = apply(functors::Div{}, a, b);
  return record("div", y, {b}, {b, y}, Symmetric{},
                [](const Backward& call) -> Tensors { return {neg(call.grad() * call.saved(1) / call.saved(0))}; });
}
Tensor pow(const Tensor& base, double b) {
  const Tensor a_ = detail::autocast("pow", base);
  const Tensor a = cast(a_, b < 0 && !is_floating(a_.dtype()) ? DType::f32 : with_number("pow", a_.dtype(), b));
  return record("pow", apply(functors::Pow{}, a, b), {a}, {a}, Symmetric{}, [b](const Backward& call) -> Tensors {
    return {b == 0 ? zeros_like(call.grad()) : call.grad() * (pow(call.saved(0), b - 1) * b)};
  });
}
Tensor pow(double a, const Tensor& exponent) {
  const Tensor b_ = detail::autocast("pow", exponent);
  const Tensor b = cast(b_, with_number("pow", b_.dtype(), a));
  const Tensor y = apply(functors::Pow{}, a, b);
  const double log_a = std::log(a);
  if (a != 0) {
    return record("pow", y, {b}, {y}, Symmetric{},
                  [log_a](const Backward& call) -> Tensors { return {call.grad() * (call.saved(0) * log_a)}; });
  }
  // log(0) is used only for negative exponents, where the power is infinite; see pow(a, b).
  return record("pow", y, {b}, {b, y}, Symmetric{}, [log_a](const Backward& call) -> Tensors {
    const Tensor exponents = call.saved(0);
    return {call.grad() * (call.saved(1) * where(ge(exponents, 0), 0, full_like(exponents, log_a)))};
  });
}

/// The gradient goes to x where x is the result, and half of it where both are equal.
static Tensor extreme(const char* op, const Binary& f, const Tensor& a_, double b) {
  const Tensor a = cast(a_, with_number(op, a_.dtype(), b));
  return record(op, apply(f, a, b), {a}, {a}, Symmetric{}, [f, b](const Backward& call) -> Tensors {
    const Tensor x = call.saved(0), &g = call.grad();
    return {share_of(g, std::holds_alternative<functors::Minimum>(f) ? gt(x, b) : lt(x, b), eq(x, b))};
  });
}
Tensor minimum(const Tensor& a, double b) { return extreme("minimum", functors::Minimum{}, a, b); }
Tensor maximum(const Tensor& a, double b) { return extreme("maximum", functors::Maximum{}, a, b); }

static Tensor compared(const char* op, const Compare& f, const Tensor& a_, const Tensor& b_) {
  const auto [a, b] = promoted(op, a_, b_, promote(a_.dtype(), b_.dtype()));
  Tensor y = empty(broadcast_shapes(a.shape(), b.shape(), op), DType::boolean, a.device());
  on(
      y.device(),
      [&, &x = a, &z = b](auto dev) { kernels::compare(dev, f, broadcast_view(x, y.shape()), broadcast_view(z, y.shape()), y.view()); },
      op);
  return y;
}
static Tensor compared(const Compare& f, const Tensor& a_, double b) {
  // If the integer dtype does not hold the number, the comparison is in f64.
  const Tensor a = holds(a_.dtype(), b) ? a_ : cast(a_, DType::f64);
  Tensor y = empty(a.shape(), DType::boolean, a.device());
  on(y.device(), [&](auto dev) { kernels::compare(dev, f, a.view(), Operand(b), y.view()); }, "compare");
  return y;
}
Tensor eq(const Tensor& a, const Tensor& b) { return compared("eq", functors::Eq{}, a, b); }
Tensor ne(const Tensor& a, const Tensor& b) { return compared("ne", functors::Ne{}, a, b); }
Tensor lt(const Tensor& a, const Tensor& b) { return compared("lt", functors::Lt{}, a, b); }
Tensor le(const Tensor& a, const Tensor& b) { return compared("le", functors::Le{}, a, b); }
Tensor gt(const Tensor& a, const Tensor& b) { return compared("gt", functors::Gt{}, a, b); }
Tensor ge(const Tensor& a, const Tensor& b) { return compared("ge", functors::Ge{}, a, b); }
Tensor eq(const Tensor& a, double b) { return compared(functors::Eq{}, a, b); }
Tensor ne(const Tensor& a, double b) { return compared(functors::Ne{}, a, b); }
Tensor lt(const Tensor& a, double b) { return compared(functors::Lt{}, a, b); }
Tensor le(const Tensor& a, double b) { return compared(functors::Le{}, a, b); }
Tensor gt(const Tensor& a, double b) { return compared(functors::Gt{}, a, b); }
Tensor ge(const Tensor& a, double b) { return compared(functors::Ge{}, a, b); }

static void check_bool(const char* op, const Tensor& x) {
  if (x.dtype() != DType::boolean) fail(op, fmt::format("expected a bool tensor but got {}", name(x.dtype())));
}
static Tensor where_number(const char* op, const Tensor& condition, const Tensor& x, double number, bool taken);

Tensor logical_not(const Tensor& x) {
  check_bool("logical_not", x);
  return eq(x, 0);
}
Tensor logical_and(const Tensor& a, const Tensor& b) {
  check_bool("logical_and", b);
  return where_number("logical_and", a, b, 0, true);
}
Tensor logical_or(const Tensor& a, const Tensor& b) {
  check_bool("logical_or", b);
  return where_number("logical_or", a, b, 1, false);
}

Tensor where(const Tensor& condition, const Tensor& a_, const Tensor& b_) {
  check_bool("where", condition);
  check_one_device("where", {&condition, &a_, &b_});
  const auto [a, b] = promoted("where", a_, b_, promote(a_.dtype(), b_.dtype()));
  const Shape shape = broadcast_shapes(condition.shape(), broadcast_shapes(a.shape(), b.shape(), "where"), "where");
  Tensor y = empty(shape, a.dtype(), a.device());
  on(y.device(), [&, &p = a, &q = b](auto dev) {
    kernels::where(dev, broadcast_view(condition, shape), broadcast_view(p, shape), broadcast_view(q, shape), y.view());
  });
  return record("where", y, {a, b}, {condition}, Symmetric{}, [sa = a.shape(), sb = b.shape()](const Backward& call) -> Tensors {
    const Tensor chosen = call.saved(0);
    return {call.needs(0) ? sum_to(where(chosen, call.grad(), 0.0), sa) : Tensor(),
            call.needs(1) ? sum_to(where(chosen, 0.0, call.grad()), sb) : Tensor()};
  });
}

/// where with a number on one side: x is selected where the condition equals `taken`.
static Tensor where_number(const char* op, const Tensor& condition, const Tensor& x_, double number, bool taken) {
  check_bool(op, condition);
  check_one_device(op, {&condition, &x_});
  const Tensor x = holds(x_.dtype(), number) ? x_ : cast(x_, with_number(op, x_.dtype(), number));
  const Shape shape = broadcast_shapes(condition.shape(), x.shape(), op);
  Tensor y = empty(shape, x.dtype(), x.device());
  on(y.device(), [&](auto dev) {
    const Operand tensor = broadcast_view(x, shape), other = number;
    kernels::where(dev, broadcast_view(condition, shape), taken ? tensor : other, taken ? other : tensor, y.view());
  });
  return record(op, y, {x}, {condition}, Symmetric{}, [op, from = x.shape(), taken](const Backward& call) -> Tensors {
    return {sum_to(where_number(op, call.saved(0), call.grad(), 0, taken), from)};
  });
}
Tensor where(const Tensor& condition, const Tensor& a, double b) { return where_number("where", condition, a, b, true); }
Tensor where(const Tensor& condition, double a, const Tensor& b) { return where_number("where", condition, b, a, false); }

Tensor masked_fill(const Tensor& x, const Tensor& mask, double value) {
  check_one_device("masked_fill", {&x, &mask});
  if (broadcast_shapes(x.shape(), mask.shape(), "masked_fill") != x.shape())
    fail("masked_fill", fmt::format("expected a mask that broadcasts to {} but got {}", to_string(x.shape()), to_string(mask.shape())));
  return where_number("masked_fill", mask, x, value, false);
}

using T = const Tensor&;

Tensor fused_swiglu(T gate, T x) {
  check_one_device("fused_swiglu", {&gate, &x});
  if (!is_floating(x.dtype()) || gate.dtype() != x.dtype() || gate.shape() != x.shape())
    fail("fused_swiglu", fmt::format("expected a gate and x of one floating dtype and shape but got {} {} and {} {}", name(gate.dtype()),
                                     to_string(gate.shape()), name(x.dtype()), to_string(x.shape())));
  if (x.device() == cpu || x.dtype() == DType::f64) return silu(gate) * x;
  const Tensor y = empty(x.shape(), x.dtype(), x.device());
  on_cuda("fused_swiglu", x.device(), [&](auto dev) { kernels::swiglu(dev, gate.view(), x.view(), y.view()); });
  return record("fused_swiglu", y, {gate, x}, {gate, x}, Symmetric{}, [](const Backward& call) -> Tensors {
    const Tensors in = {call.saved(0), call.saved(1)};
    if (context().grad) return vjp(call, in, [](const Tensors& xs) -> Tensors { return {silu(xs[0]) * xs[1]}; });
    const Tensor g = contiguous(call.grad()), a = contiguous(in[0]), b = contiguous(in[1]);
    const Tensors results = {empty(a.shape(), a.dtype(), a.device()), empty(b.shape(), b.dtype(), b.device())};
    on_cuda("fused_swiglu", g.device(),
            [&](auto dev) { kernels::swiglu_grad(dev, g.view(), a.view(), b.view(), results[0].view(), results[1].view()); });
    return results;
  });
}

static void check_target(const char* op, const Tensor& target) {
  if (target.dtype() == DType::boolean) fail(op, "expected a target of a numeric dtype but got bool");
}
static Tensor in_place(const char* op, const Binary& f, const Tensor& target, const Tensor& b) {
  check_target(op, target);
  check_one_device(op, {&target, &b});
  if (b.dtype() != target.dtype())
    fail(op, fmt::format("expected an operand of the target's dtype {} but got {}", name(target.dtype()), name(b.dtype())));
  if (broadcast_shapes(target.shape(), b.shape(), op) != target.shape())
    fail(op, fmt::format("expected an operand that broadcasts to {} but got {}", to_string(target.shape()), to_string(b.shape())));
  begin_in_place(op, target, {b});
  on(target.device(), [&](auto dev) { kernels::binary(dev, f, target.view(), broadcast_view(b, target.shape()), target.view()); });
  return target;
}
static Tensor in_place(const char* op, const Binary& f, const Tensor& target, double b) {
  check_target(op, target);
  if (!holds(target.dtype(), b)) fail(op, fmt::format("expected a number that {} holds but got {}", name(target.dtype()), b));
  begin_in_place(op, target);
  on(target.device(), [&](auto dev) { kernels::binary(dev, f, target.view(), Operand(b), target.view()); });
  return target;
}
Tensor add_(T target, T b) { return in_place("add_", functors::Add{}, target, b); }
Tensor sub_(T target, T b) { return in_place("sub_", functors::Sub{}, target, b); }
Tensor mul_(T target, T b) { return in_place("mul_", functors::Mul{}, target, b); }
static void check_divided(const Tensor& target) {
  if (!is_floating(target.dtype())) fail("div_", fmt::format("expected a target of a floating dtype but got {}", name(target.dtype())));
}
Tensor div_(T target, T b) {
  check_one_device("div_", {&target, &b});
  check_divided(target);
  return in_place("div_", functors::Div{}, target, b);
}
Tensor div_(T target, double b) {
  check_divided(target);
  return in_place("div_", functors::Div{}, target, b);
}
Tensor sub_(T target, double b) { return in_place("sub_", functors::Sub{}, target, b); }
Tensor add_(T target, double b) { return in_place("add_", functors::Add{}, target, b); }
Tensor mul_(T target, double b) { return in_place("mul_", functors::Mul{}, target, b); }
Tensor pow_(T target, T b) { return in_place("pow_", functors::Pow{}, target, b); }
Tensor pow_(T target, double b) {
  if (b < 0 && !is_floating(target.dtype())) fail("pow_", fmt::format("expected an exponent of 0 or more for integers but got {}", b));
  return in_place("pow_", functors::Pow{}, target, b);
}
Tensor remainder_(T target, T b) { return in_place("remainder_", functors::Remainder{}, target, b); }
Tensor remainder_(T target, double b) {
  check_divisor("remainder_", target, b);
  return in_place("remainder_", functors::Remainder{}, target, b);
}
Tensor floor_divide_(T target, T b) { return in_place("floor_divide_", functors::FloorDivide{}, target, b); }
Tensor floor_divide_(T target, double b) {
  check_divisor("floor_divide_", target, b);
  return in_place("floor_divide_", functors::FloorDivide{}, target, b);
}

Tensor sum_to(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  if (shape.size() > x.dims() || broadcast_shapes(x.shape(), shape, "sum_to") != x.shape())
    fail("sum_to", fmt::format("expected a shape that broadcasts to {} but got {}", to_string(x.shape()), to_string(shape)));
  Dims dims;
  const int lead = x.dims() - shape.size();
  for (int i = 0; i < x.dims(); ++i)
    if (i < lead || (shape[i - lead] == 1 && x.shape()[i] != 1)) dims.push_back(i);
  const Tensor total = dims.empty() ? x : sum(x, dims, true);
  return reshape(total, shape);
}

}  // namespace tern
