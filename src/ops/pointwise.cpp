#include "ops/pointwise.h"

#include <fmt/format.h>

#include <cmath>

#include "ops/factory.h"
#include "ops/kernels/pointwise.h"
#include "ops/op.h"
#include "ops/reduce.h"
#include "ops/view.h"

// Functions of two operands. A number as operand is an attribute of the op, whose input is then an undefined tensor.

namespace tern {

using detail::holds;
using kernels::BinaryFunction;
using kernels::CompareFunction;

using T = const Tensor&;
using In = const Operand&;

namespace {

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

/// The operands of a call, as autocast casts them.
struct Pair {
  Tensor a, b;               ///< undefined for a number
  double number = 0;         ///< that operand, if any
  bool has_number = false;   ///< true if one operand is a number
  DType dtype = DType::f32;  ///< the common dtype of the tensors

  Pair(const Op& op, const Operand& first, const Operand& second)
      : a(detail::operand(op, first.tensor)), b(detail::operand(op, second.tensor)) {
    if (first.is_number && second.is_number) fail(op.name, "expected a tensor as an operand but got two numbers");
    number = first.is_number ? first.number : second.number;
    has_number = first.is_number || second.is_number;
    dtype = first.is_number ? b.dtype() : second.is_number ? a.dtype() : promote(a.dtype(), b.dtype());
  }
  /// Converts the tensors.
  void convert(DType to) {
    for (Tensor* const x : {&a, &b})
      if (x->defined()) *x = cast(*x, to);
  }
};

/// Shape of an op's result, for inputs of which one may be undefined.
Shape joint_shape(const char* op, T a, T b) {
  return !a.defined() ? b.shape() : !b.defined() ? a.shape() : broadcast_shapes(a.shape(), b.shape(), op);
}

/// New memory for that result.
Tensor result_for(const char* op, T a, T b, DType dtype) {
  return empty(joint_shape(op, a, b), dtype, a.defined() ? a.device() : b.device());
}

/// An input as a kernel reads it, broadcast to a shape.
kernels::Operand source(T x, double number, const Shape& shape) {
  if (!x.defined()) return number;
  View view = x.view();
  view.strides = broadcast_strides(x, shape);
  view.shape = shape;
  return view;
}

Shape shape_of(T x) { return x.defined() ? x.shape() : Shape(); }

// Arithmetic: each op is next to its derivatives.

/// Arguments of the derivatives of y = f(a, b): the gradient of y, and what the op has kept.
struct Point {
  T g;
  Operand a, b;
  T y;
  mutable Tensor common = {};

  /// A part of both derivatives: f(*this), computed once.
  T shared(Tensor (*f)(const Point&)) const { return common.defined() ? common : common = f(*this); }
};
using P = const Point&;

enum Uses : unsigned { none = 0, of_a = 1, of_b = 2, of_y = 4 };

struct Arithmetic {
  Op op;
  BinaryFunction f;
  unsigned uses_a = none;       ///< what the derivative by a is computed from, beside g
  Tensor (*by_a)(P) = nullptr;  ///< the gradient of a, of y's shape
  unsigned uses_b = none;
  Tensor (*by_b)(P) = nullptr;
  double number = 0;

  struct Kept {
    Tensor a, b, y;
    Shape shape_a, shape_b;
  };
  Result<Tensor, Kept> forward(T a, T b) const {
    const Tensor y = result_for(op.name, a, b, a.defined() ? a.dtype() : b.dtype());
    launch(y.device(), kernels::Binary{f, source(a, number, y.shape()), source(b, number, y.shape()), y});
    const unsigned uses = (a.defined() ? uses_a : 0u) | (b.defined() ? uses_b : 0u);
    const auto if_used = [&](Uses which, T x) { return uses & which ? x : Tensor(); };
    return {y, {if_used(of_a, a), if_used(of_b, b), if_used(of_y, y), shape_of(a), shape_of(b)}};
  }
  Tensors backward(const Backward& call, const Kept& kept) const {
    T g = call.grad();
    const auto operand = [&](T x) { return x.defined() ? Operand(x) : Operand(number); };
    const Point p{g, operand(kept.a), operand(kept.b), kept.y};
    return {call.needs(0) ? cast(sum_to(by_a(p), kept.shape_a), g.dtype()) : Tensor(),
            call.needs(1) ? cast(sum_to(by_b(p), kept.shape_b), g.dtype()) : Tensor()};
  }
};

/// Calls an op, whose result for integers is f32 if it `divides`.
Tensor arithmetic(Arithmetic f, In a, In b, bool divides = false) {
  Pair in(f.op, a, b);
  if (divides) in.convert(is_floating(in.dtype) ? in.dtype : DType::f32);
  else in.convert(in.has_number ? with_number(f.op.name, in.dtype, in.number) : numeric(in.dtype));
  f.op.tangent = Tangent::symmetric;
  f.number = in.number;
  return call(f, in.a, in.b);
}

Tensor same(P p) { return p.g; }
Tensor negative(P p) { return neg(p.g); }
Tensor zero(P p) { return zeros_like(p.g); }

Tensor quotient(P p) { return p.g / p.b; }

/// Of number^b: log(0) is used only for negative exponents, where the power is infinite.
Tensor power_of_number(P p) {
  const double log_a = std::log(p.a.number);
  return p.g * (p.y * (p.a.number != 0 ? Operand(log_a) : where(ge(p.b, 0), 0, full_like(p.b.tensor, log_a))));
}
Tensor power_by_base(P p) {
  if (p.b.is_number) return p.b.number == 0 ? zero(p) : p.g * (pow(p.a, p.b.number - 1) * p.b);
  return where(eq(p.b, 0), 0, p.g * (p.b * pow(p.a, p.b - 1)));
}
/// If the power of 0 is finite (0 or 1), log(1) = 0 replaces log(0): 0 log(0) would be NaN, but the limit is 0.
Tensor power_by_exponent(P p) { return p.g * pow(p.a, p.b) * log(where(logical_and(eq(p.a, 0), ge(p.b, 0)), 1, p.a)); }

/// Of the operand of minimum or maximum, selected and not multiplied: a loser's is 0 where g is infinite, too.
Tensor share(P p, T loses) { return where(loses, 0, where(eq(p.a, p.b), p.g * 0.5, p.g)); }
Tensor share_unless_greater(P p) { return share(p, gt(p.a, p.b)); }
Tensor share_unless_less(P p) { return share(p, lt(p.a, p.b)); }

/// a = b floor(a / b) + remainder, and floor has the derivative 0; round() makes the quotient whole despite its rounding error.
Tensor remainder_by_divisor(P p) {
  const auto whole_quotient = [&] {
    const NoGrad constant;
    return round((p.a - p.y) / p.b);
  };
  return neg(p.g * whole_quotient());
}

/// Of the angle: 0 at the origin, where it jumps, and not 0 / 0, which would spoil every sum that it is part of.
Tensor over_squares(P p) {
  const Tensor squares = square(detail::widened(p.a.tensor)) + square(detail::widened(p.b.tensor));
  return detail::widened(p.g) / where(eq(squares, 0), 1.0, squares);
}

void check_divisor(const char* op, In a, In b) {
  if (b.is_number && b.number == 0 && !a.is_number && !is_floating(a.tensor.dtype())) fail(op, "expected a number other than 0 but got 0");
}

}  // namespace

Tensor add(In a, In b) { return arithmetic({{"add"}, functors::Add{}, none, same, none, same}, a, b); }
Tensor sub(In a, In b) { return arithmetic({{"sub"}, functors::Sub{}, none, same, none, negative}, a, b); }
Tensor mul(In a, In b) {
  const auto by_a = [](P p) { return p.g * p.b; };
  const auto by_b = [](P p) { return p.g * p.a; };
  return arithmetic({{"mul"}, functors::Mul{}, of_b, by_a, of_a, by_b}, a, b);
}
Tensor div(In a, In b) {
  const auto by_a = [](P p) { return p.shared(quotient); };
  const auto by_b = [](P p) { return neg(p.shared(quotient) * p.a / p.b); };
  const auto of_number = [](P p) { return neg(p.g * p.y / p.b); };
  if (a.is_number) return arithmetic({{"div", CastTo::f32}, functors::Div{}, none, nullptr, of_b | of_y, of_number}, a, b, true);
  return arithmetic({{"div"}, functors::Div{}, of_b, by_a, of_a | of_b, by_b}, a, b, true);
}
Tensor pow(In a, In b) {
  if (b.is_number && b.number < 0 && !a.is_number && !is_floating(a.tensor.dtype())) return pow(cast(a.tensor, DType::f32), b);
  Arithmetic f{{"pow", CastTo::f32}, functors::Pow{}, of_a | of_b, power_by_base, of_a | of_b, power_by_exponent};
  if (a.is_number) f.uses_b = a.number == 0 ? of_b | of_y : of_y, f.by_b = power_of_number;
  return arithmetic(f, a, b);
}
Tensor minimum(In a, In b) {
  if (a.is_number && !b.is_number) return minimum(b, a);
  return arithmetic({{"minimum"}, functors::Minimum{}, of_a | of_b, share_unless_greater, of_a | of_b, share_unless_less}, a, b);
}
Tensor maximum(In a, In b) {
  if (a.is_number && !b.is_number) return maximum(b, a);
  return arithmetic({{"maximum"}, functors::Maximum{}, of_a | of_b, share_unless_less, of_a | of_b, share_unless_greater}, a, b);
}
Tensor remainder(In a, In b) {
  check_divisor("remainder", a, b);
  return arithmetic({{"remainder"}, functors::Remainder{}, none, same, of_a | of_b | of_y, remainder_by_divisor}, a, b);
}
Tensor floor_divide(In a, In b) {
  check_divisor("floor_divide", a, b);
  return arithmetic({{"floor_divide"}, functors::FloorDivide{}, none, zero, none, zero}, a, b);
}
Tensor atan2(T y, T x) {
  const auto by_y = [](P p) { return p.shared(over_squares) * detail::widened(p.b.tensor); };
  const auto by_x = [](P p) { return neg(p.shared(over_squares) * detail::widened(p.a.tensor)); };
  return arithmetic({{"atan2"}, functors::Atan2{}, of_a | of_b, by_y, of_a | of_b, by_x}, y, x, true);
}

// Comparisons, logic, and the bits of integers.

namespace {

struct Comparison {
  Op op;
  CompareFunction f;
  double number;

  Result<Tensor> forward(T a, T b) const {
    const Tensor y = result_for(op.name, a, b, DType::boolean);
    launch(y.device(), kernels::Compare{f, source(a, number, y.shape()), source(b, number, y.shape()), y});
    return {y};
  }
};

Tensor compared(const char* op, const CompareFunction& f, In a, In b) {
  Pair in({op}, a, b);
  // If the integer dtype does not hold the number, the comparison is in f64.
  in.convert(!in.has_number || holds(in.dtype, in.number) ? in.dtype : DType::f64);
  return call(Comparison{{op}, f, in.number}, in.a, in.b);
}

void check_bool(const char* op, T x) {
  if (x.dtype() != DType::boolean) fail(op, fmt::format("expected a bool tensor but got {}", name(x.dtype())));
}

Tensor choose(const char* op, T condition, In a, In b);

}  // namespace

Tensor eq(In a, In b) { return compared("eq", functors::Eq{}, a, b); }
Tensor ne(In a, In b) { return compared("ne", functors::Ne{}, a, b); }
Tensor lt(In a, In b) { return compared("lt", functors::Lt{}, a, b); }
Tensor le(In a, In b) { return compared("le", functors::Le{}, a, b); }
Tensor gt(In a, In b) { return compared("gt", functors::Gt{}, a, b); }
Tensor ge(In a, In b) { return compared("ge", functors::Ge{}, a, b); }

Tensor logical_not(T x) {
  check_bool("logical_not", x);
  return eq(x, 0);
}
Tensor logical_and(T a, T b) {
  check_bool("logical_and", b);
  return choose("logical_and", a, b, 0);
}
Tensor logical_or(T a, T b) {
  check_bool("logical_or", b);
  return choose("logical_or", a, 1, b);
}

namespace {

using Kind = functors::Bits::Kind;

bool is_shift(Kind kind) { return kind == Kind::left || kind == Kind::right; }

Tensor bits(const char* op, Kind kind, T a, T b) {
  const DType dtype = promote(a.dtype(), b.dtype());
  const bool any_is_bool = a.dtype() == DType::boolean || b.dtype() == DType::boolean;
  if (is_floating(dtype) || (is_shift(kind) && any_is_bool))
    fail(op, fmt::format("expected {} but got {} and {}", is_shift(kind) ? "integers" : "integers or bool tensors", name(a.dtype()),
                         name(b.dtype())));
  if (dtype != DType::boolean) return arithmetic({{op}, functors::Bits{kind}}, a, b);
  check_one_device(op, {&a, &b});
  broadcast_shapes(a.shape(), b.shape(), op);
  return kind == Kind::both ? logical_and(a, b) : kind == Kind::any ? logical_or(a, b) : ne(a, b);
}

Tensor bits(const char* op, Kind kind, T a, std::int64_t b) {
  if (is_floating(a.dtype()) || a.dtype() == DType::boolean)
    fail(op, fmt::format("expected integers beside a number but got {}", name(a.dtype())));
  const auto number = static_cast<double>(b);
  if (a.dtype() != DType::i64 && !holds(a.dtype(), number))
    fail(op, fmt::format("expected a number that {} holds but got {}", name(a.dtype()), b));
  // The number of a kernel's operand is a double, which does not hold all integers beyond 2^53.
  const bool is_exact = b > -(std::int64_t{1} << 53) && b < std::int64_t{1} << 53;
  return arithmetic({{op}, functors::Bits{kind}}, a, is_exact ? Operand(number) : Tensor::scalar(b, a.device()));
}

}  // namespace

Tensor operator~(T x) {
  if (x.dtype() == DType::boolean) return logical_not(x);
  if (is_floating(x.dtype())) fail("operator~", fmt::format("expected integers or a bool tensor but got {}", name(x.dtype())));
  return bits("operator~", Kind::one, x, x.dtype() == DType::u8 ? 255 : -1);
}
Tensor operator&(T a, T b) { return bits("operator&", Kind::both, a, b); }
Tensor operator|(T a, T b) { return bits("operator|", Kind::any, a, b); }
Tensor operator^(T a, T b) { return bits("operator^", Kind::one, a, b); }
Tensor operator<<(T a, T b) { return bits("operator<<", Kind::left, a, b); }
Tensor operator>>(T a, T b) { return bits("operator>>", Kind::right, a, b); }
Tensor operator&(T a, std::int64_t b) { return bits("operator&", Kind::both, a, b); }
Tensor operator|(T a, std::int64_t b) { return bits("operator|", Kind::any, a, b); }
Tensor operator^(T a, std::int64_t b) { return bits("operator^", Kind::one, a, b); }
Tensor operator<<(T a, std::int64_t b) { return bits("operator<<", Kind::left, a, b); }
Tensor operator>>(T a, std::int64_t b) { return bits("operator>>", Kind::right, a, b); }

// Choices.

namespace {

struct Where {
  Op op;
  double number;

  struct Kept {
    Tensor condition;
    Shape of_a, of_b;
  };
  Result<Tensor, Kept> forward(T condition, T a, T b) const {
    const Shape shape = broadcast_shapes(condition.shape(), joint_shape(op.name, a, b), op.name);
    const Tensor y = empty(shape, a.defined() ? a.dtype() : b.dtype(), condition.device());
    launch(y.device(), kernels::Where{source(condition, 0, shape).view, source(a, number, shape), source(b, number, shape), y});
    return {y, {condition, shape_of(a), shape_of(b)}};
  }
  Tensors backward(const Backward& call, const Kept& kept) const {
    T g = call.grad();
    return {Tensor(), call.needs(1) ? sum_to(choose(op.name, kept.condition, g, 0), kept.of_a) : Tensor(),
            call.needs(2) ? sum_to(choose(op.name, kept.condition, 0, g), kept.of_b) : Tensor()};
  }
};

Tensor choose(const char* op, T condition, In a, In b) {
  check_bool(op, condition);
  Pair in({op}, a, b);
  in.convert(!in.has_number || holds(in.dtype, in.number) ? in.dtype : with_number(op, in.dtype, in.number));
  return call(Where{{.name = op, .tangent = Tangent::symmetric}, in.number}, condition, in.a, in.b);
}

}  // namespace

Tensor where(T condition, In a, In b) { return choose("where", condition, a, b); }

Tensor masked_fill(T x, T mask, double value) {
  if (broadcast_shapes(x.shape(), mask.shape(), "masked_fill") != x.shape())
    fail("masked_fill", fmt::format("expected a mask that broadcasts to {} but got {}", to_string(x.shape()), to_string(mask.shape())));
  return choose("masked_fill", mask, value, x);
}

namespace {

struct Swiglu {
  static constexpr Op op{.name = "swiglu", .tangent = Tangent::symmetric};

  struct Kept {
    Tensor gate, x;
  };
  Tensor plain(T gate, T x) const { return silu(gate) * x; }
  Result<Tensor, Kept> forward(T gate, T x) const {
    const Tensor y = empty(x.shape(), x.dtype(), x.device());
    launch(Cuda{}, kernels::Swiglu{gate, x, y});
    return {y, {gate, x}};
  }
  Tensors backward(const Backward& call, const Kept& kept) const {
    if (context().grad) return vjp(call, {kept.gate, kept.x}, [&](const Tensors& in) -> Tensors { return {plain(in[0], in[1])}; });
    const Tensor g = contiguous(call.grad()), gate = contiguous(kept.gate), x = contiguous(kept.x);
    const Tensor of_gate = empty_like(gate), of_x = empty_like(x);
    launch(Cuda{}, kernels::SwigluGrad{g, gate, x, of_gate, of_x});
    return {of_gate, of_x};
  }
};

}  // namespace

Tensor swiglu(T gate, T x) {
  check_one_device("swiglu", {&gate, &x});
  if (!is_floating(x.dtype()) || gate.dtype() != x.dtype() || gate.shape() != x.shape())
    fail("swiglu", fmt::format("expected a gate and x of one floating dtype and shape but got {} {} and {} {}", name(gate.dtype()),
                               to_string(gate.shape()), name(x.dtype()), to_string(x.shape())));
  return x.device() == cpu || x.dtype() == DType::f64 ? Swiglu{}.plain(gate, x) : call(Swiglu{}, gate, x);
}

// In place.

static Tensor in_place(const char* op, const BinaryFunction& f, T target, In b) {
  if (target.dtype() == DType::boolean) fail(op, "expected a target of a numeric dtype but got bool");
  if (b.is_number) {
    if (!holds(target.dtype(), b.number))
      fail(op, fmt::format("expected a number that {} holds but got {}", name(target.dtype()), b.number));
    begin_in_place(op, target);
  } else {
    check_one_device(op, {&target, &b.tensor});
    if (b.tensor.dtype() != target.dtype())
      fail(op, fmt::format("expected an operand of the target's dtype {} but got {}", name(target.dtype()), name(b.tensor.dtype())));
    if (broadcast_shapes(target.shape(), b.tensor.shape(), op) != target.shape())
      fail(op, fmt::format("expected an operand that broadcasts to {} but got {}", to_string(target.shape()), to_string(b.tensor.shape())));
    begin_in_place(op, target, {b.tensor});
  }
  launch(target.device(), kernels::Binary{f, target, source(b.tensor, b.number, target.shape()), target});
  return target;
}
Tensor add_(T target, In b) { return in_place("add_", functors::Add{}, target, b); }
Tensor sub_(T target, In b) { return in_place("sub_", functors::Sub{}, target, b); }
Tensor mul_(T target, In b) { return in_place("mul_", functors::Mul{}, target, b); }
Tensor div_(T target, In b) {
  if (!is_floating(target.dtype())) fail("div_", fmt::format("expected a target of a floating dtype but got {}", name(target.dtype())));
  return in_place("div_", functors::Div{}, target, b);
}
Tensor pow_(T target, In b) {
  if (b.is_number && b.number < 0 && !is_floating(target.dtype()))
    fail("pow_", fmt::format("expected an exponent of 0 or more for integers but got {}", b.number));
  return in_place("pow_", functors::Pow{}, target, b);
}
Tensor remainder_(T target, In b) {
  check_divisor("remainder_", target, b);
  return in_place("remainder_", functors::Remainder{}, target, b);
}
Tensor floor_divide_(T target, In b) {
  check_divisor("floor_divide_", target, b);
  return in_place("floor_divide_", functors::FloorDivide{}, target, b);
}

Tensor sum_to(T x, const Shape& shape) {
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
