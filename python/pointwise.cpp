// Functions of each element (ops/pointwise.h), and the operators of tensors: a op b with a tensor or a number on either side.
#include "ops/pointwise.h"

#include <algorithm>

#include "binding.h"
#include "ops/factory.h"
#include "ops/matmul.h"

namespace tern::python {

namespace {

using OfOne = Tensor (*)(const Tensor&);

Bound bound(const Number& number) { return number.whole ? Bound(*number.whole) : Bound(double(number)); }

void bind_binary(nb::module_& m) {
  const auto define = [&]<class F>(const char* name, F f, bool number_first = false) {
    m.def(name, [f](const Tensor& a, const Tensor& b) { return f(a, b); }, "a"_a, "b"_a, Released());
    m.def(name, [f](const Tensor& a, const Number& b) { return f(a, double(b)); }, "a"_a, "b"_a, Released());
    if constexpr (std::is_invocable_v<F, double, const Tensor&>)
      if (number_first) m.def(name, [f](const Number& a, const Tensor& b) { return f(double(a), b); }, "a"_a, "b"_a, Released());
  };
  define("add", &add), define("sub", &sub, true), define("mul", &mul), define("div", &div, true), define("pow", &pow, true);
  define("minimum", &minimum), define("maximum", &maximum), define("remainder", &remainder, true),
      define("floor_divide", &floor_divide, true), define("eq", &eq);
  define("ne", &ne), define("lt", &lt), define("le", &le), define("gt", &gt), define("ge", &ge);
  define("add_", &add_), define("sub_", &sub_), define("mul_", &mul_), define("div_", &div_), define("pow_", &pow_);
  define("remainder_", &remainder_), define("floor_divide_", &floor_divide_);
  m.def("logical_and", &logical_and, "a"_a, "b"_a, Released());
  m.def("logical_or", &logical_or, "a"_a, "b"_a, Released());
  m.def("atan2", &atan2, "y"_a, "x"_a, Released());
  m.def("swiglu", &swiglu, "gate"_a, "x"_a, Released());

  m.def("isclose", &isclose, "a"_a, "b"_a, "relative"_a = 1e-5, "absolute"_a = 1e-8, "equal_nan"_a = false, Released());
  m.def("allclose", &allclose, "a"_a, "b"_a, "relative"_a = 1e-5, "absolute"_a = 1e-8, "equal_nan"_a = false, Released());

  m.def(
      "where", [](const Tensor& condition, const Tensor& a, const Tensor& b) { return where(condition, a, b); }, "condition"_a, "a"_a,
      "b"_a, Released());
  m.def(
      "where", [](const Tensor& condition, const Tensor& a, const Number& b) { return where(condition, a, double(b)); }, "condition"_a,
      "a"_a, "b"_a, Released());
  m.def(
      "where", [](const Tensor& condition, const Number& a, const Tensor& b) { return where(condition, double(a), b); }, "condition"_a,
      "a"_a, "b"_a, Released());
  m.def(
      "masked_fill", [](const Tensor& x, const Tensor& mask, const Number& value) { return masked_fill(x, mask, value); }, "x"_a, "mask"_a,
      "value"_a, Released());
  m.def("sum_to", &sum_to, "x"_a, "shape"_a, Released());
}

}  // namespace

void bind_pointwise(nb::module_& m) {
  const auto unary = [&](const char* name, OfOne f) { m.def(name, f, "x"_a, Released()); };
  unary("neg", &neg), unary("abs", &abs), unary("sign", &sign), unary("exp", &exp), unary("log", &log);
  unary("sqrt", &sqrt), unary("rsqrt", &rsqrt), unary("square", &square), unary("reciprocal", &reciprocal), unary("sin", &sin);
  unary("cos", &cos), unary("tan", &tan), unary("tanh", &tanh), unary("erf", &erf), unary("sigmoid", &sigmoid);
  unary("relu", &relu), unary("gelu", &gelu), unary("gelu_tanh", &gelu_tanh), unary("silu", &silu), unary("hardswish", &hardswish);
  unary("log1p", &log1p), unary("expm1", &expm1), unary("floor", &floor), unary("ceil", &ceil), unary("round", &round);
  unary("isnan", &isnan), unary("isinf", &isinf), unary("isfinite", &isfinite), unary("logical_not", &logical_not);
  m.def("softplus", &softplus, "x"_a, "beta"_a = 1, Released());
  m.def("leaky_relu", &leaky_relu, "x"_a, "slope"_a = 0.01, Released());
  m.def("elu", &elu, "x"_a, "alpha"_a = 1, Released());
  m.def(
      "clamp",
      [](const Tensor& x, const std::optional<Number>& low, const std::optional<Number>& high) {
        using Whole = std::numeric_limits<std::int64_t>;
        constexpr double infinity = std::numeric_limits<double>::infinity();
        const bool is_real = is_floating(x.dtype());
        return clamp(x,
                     low       ? bound(*low)
                     : is_real ? Bound(-infinity)
                               : Bound(Whole::min()),
                     high      ? bound(*high)
                     : is_real ? Bound(infinity)
                               : Bound(Whole::max()));
      },
      "x"_a, "low"_a = nb::none(), "high"_a = nb::none(), Released());
  bind_binary(m);
}

namespace {

/// `name` and its reflection for a tensor and a number; Python asks the other operand where neither form fits.
template <class F>
void arithmetic(nb::class_<Tensor>& bound, const std::string& name, F f) {
  const std::string forward = "__" + name + "__", backward = "__r" + name + "__";
  bound.def(forward.c_str(), [f](const Tensor& a, const Tensor& b) { return f(a, b); }, nb::is_operator(), Released());
  bound.def(forward.c_str(), [f](const Tensor& a, const Number& b) { return f(a, double(b)); }, nb::is_operator(), Released());
  if constexpr (std::is_invocable_v<F, double, const Tensor&>)
    bound.def(backward.c_str(), [f](const Tensor& b, const Number& a) { return f(double(a), b); }, nb::is_operator(), Released());
}

/// In place: Python binds the name to what this returns, the tensor itself.
template <class Other, class F>
void in_place_with(nb::class_<Tensor>& bound, const char* name, F f) {
  bound.def(
      name,
      [f](nb::handle self, Other b) {
        const Tensor& a = nb::cast<const Tensor&>(self);
        {
          const nb::gil_scoped_release released;
          if constexpr (std::is_same_v<Other, Number>) f(a, double(b));
          else f(a, b);
        }
        return nb::borrow<nb::typed<nb::object, Tensor>>(self);
      },
      nb::is_operator());
}

template <class F>
void in_place(nb::class_<Tensor>& bound, const char* name, F f) {
  in_place_with<Tensor>(bound, name, f);
  in_place_with<Number>(bound, name, f);
}

/// In place by an op that has no such form: its result is copied, and must fit.
template <class Other, class F>
void copied_in_place(nb::class_<Tensor>& bound, const char* name, F f) {
  in_place_with<Other>(bound, name, [op = std::string(name), f](const Tensor& a, const Other& b) {
    const Tensor y = f(a, b);
    if (y.shape() != a.shape() || y.dtype() != a.dtype())
      fail(op.c_str(), std::string("expected a result of the target's ") + std::string(tern::name(a.dtype())) + " " + to_string(a.shape()) +
                           " but got " + std::string(tern::name(y.dtype())) + " " + to_string(y.shape()));
    copy_(a, y);
  });
}

/// An op of the bits of two tensors, or of one of integers and a whole number on either side.
template <class F>
void bits(nb::class_<Tensor>& bound, const std::string& name, F f) {
  const auto tensors = [f](const Tensor& a, const Tensor& b) { return f(a, b); };
  const auto with_number = [f](const Tensor& a, std::int64_t b) { return f(a, b); };
  const auto of_number = [f](const Tensor& b, std::int64_t a) { return f(zeros({}, b.dtype(), b.device()) | a, b); };
  bound.def(("__" + name + "__").c_str(), tensors, nb::is_operator(), Released());
  bound.def(("__" + name + "__").c_str(), with_number, nb::is_operator(), Released());
  bound.def(("__r" + name + "__").c_str(), of_number, nb::is_operator(), Released());
  copied_in_place<Tensor>(bound, ("__i" + name + "__").c_str(), tensors);
  copied_in_place<std::int64_t>(bound, ("__i" + name + "__").c_str(), with_number);
}

/// The same, and of one tensor and True or False.
template <class F>
void logical(nb::class_<Tensor>& bound, const std::string& name, F f) {
  const auto with_bool = [f](const Tensor& a, bool b) { return f(a, full({}, b ? 1 : 0, DType::boolean, a.device())); };
  bound.def(("__" + name + "__").c_str(), with_bool, nb::is_operator(), Released());
  bound.def(("__r" + name + "__").c_str(), with_bool, nb::is_operator(), Released());
  copied_in_place<bool>(bound, ("__i" + name + "__").c_str(), with_bool);
  bits(bound, name, f);
}

template <class F>
void comparison(nb::class_<Tensor>& bound, const char* name, F f) {
  bound.def(name, [f](const Tensor& a, const Tensor& b) { return f(a, b); }, nb::is_operator(), Released());
  bound.def(name, [f](const Tensor& a, const Number& b) { return f(a, double(b)); }, nb::is_operator(), Released());
}

}  // namespace

void bind_operators(nb::class_<Tensor>& bound) {
  arithmetic(bound, "add", [](const auto& a, const auto& b) { return a + b; });
  arithmetic(bound, "sub", [](const auto& a, const auto& b) { return a - b; });
  arithmetic(bound, "mul", [](const auto& a, const auto& b) { return a * b; });
  arithmetic(bound, "truediv", [](const auto& a, const auto& b) { return a / b; });
  arithmetic(bound, "floordiv", [](const auto& a, const auto& b) { return floor_divide(a, b); });
  arithmetic(bound, "mod", [](const auto& a, const auto& b) { return remainder(a, b); });
  arithmetic(bound, "divmod", [](const auto& a, const auto& b) { return std::pair(floor_divide(a, b), remainder(a, b)); });
  arithmetic(bound, "pow", [](const auto& a, const auto& b) { return pow(a, b); });
  // Of two tensors Python never asks the right one; the array API standard lists the method all the same.
  bound.def(
           "__matmul__", [](const Tensor& a, const Tensor& b) { return matmul(a, b); }, nb::is_operator(), Released())
      .def(
          "__rmatmul__", [](const Tensor& b, const Tensor& a) { return matmul(a, b); }, nb::is_operator(), Released())
      .def("__neg__", &neg, Released())
      .def("__pos__", [](const Tensor& x) { return x; })
      .def("__abs__", &abs, Released())
      .def("__invert__", [](const Tensor& x) { return ~x; }, Released());
  logical(bound, "and", [](const Tensor& a, const auto& b) { return a & b; });
  logical(bound, "or", [](const Tensor& a, const auto& b) { return a | b; });
  logical(bound, "xor", [](const Tensor& a, const auto& b) { return a ^ b; });
  bits(bound, "lshift", [](const auto& a, const auto& b) { return a << b; });
  bits(bound, "rshift", [](const auto& a, const auto& b) { return a >> b; });

  in_place(bound, "__iadd__", [](const Tensor& a, const auto& b) { a += b; });
  in_place(bound, "__isub__", [](const Tensor& a, const auto& b) { a -= b; });
  in_place(bound, "__imul__", [](const Tensor& a, const auto& b) { a *= b; });
  in_place(bound, "__itruediv__", [](const Tensor& a, const auto& b) { a /= b; });
  in_place(bound, "__ifloordiv__", [](const Tensor& a, const auto& b) { floor_divide_(a, b); });
  in_place(bound, "__imod__", [](const Tensor& a, const auto& b) { a %= b; });
  in_place(bound, "__ipow__", [](const Tensor& a, const auto& b) { pow_(a, b); });
  copied_in_place<Tensor>(bound, "__imatmul__", [](const Tensor& a, const Tensor& b) { return matmul(a, b); });

  comparison(bound, "__eq__", [](const Tensor& a, const auto& b) { return a == b; });
  comparison(bound, "__ne__", [](const Tensor& a, const auto& b) { return a != b; });
  comparison(bound, "__lt__", [](const Tensor& a, const auto& b) { return a < b; });
  comparison(bound, "__le__", [](const Tensor& a, const auto& b) { return a <= b; });
  comparison(bound, "__gt__", [](const Tensor& a, const auto& b) { return a > b; });
  comparison(bound, "__ge__", [](const Tensor& a, const auto& b) { return a >= b; });
}

}  // namespace tern::python
