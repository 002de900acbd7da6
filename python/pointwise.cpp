// Functions of each element (ops/pointwise.h).
#include "ops/pointwise.h"

#include "binding.h"

namespace tern::python {

namespace {

using OfOne = Tensor (*)(const Tensor&);
using OfTwo = Tensor (*)(const Tensor&, const Tensor&);
using OfNumber = Tensor (*)(const Tensor&, double);
using NumberFirst = Tensor (*)(double, const Tensor&);

Bound bound(const Number& number) { return number.whole ? Bound(*number.whole) : Bound(double(number)); }

void bind_binary(nb::module_& m) {
  const auto define = [&](const char* name, OfTwo tensors, OfNumber number, NumberFirst first = nullptr) {
    m.def(name, tensors, "a"_a, "b"_a, Released());
    if (number) m.def(name, [number](const Tensor& a, const Number& b) { return number(a, b); }, "a"_a, "b"_a, Released());
    if (first) m.def(name, [first](const Number& a, const Tensor& b) { return first(a, b); }, "a"_a, "b"_a, Released());
  };
  define("add", &add, &add);
  define("sub", &sub, &sub, &sub);
  define("mul", &mul, &mul);
  define("div", &div, &div, &div);
  define("pow", &pow, &pow, &pow);
  define("minimum", &minimum, &minimum);
  define("maximum", &maximum, &maximum);
  define("remainder", &remainder, &remainder, &remainder);
  define("floor_divide", &floor_divide, &floor_divide, &floor_divide);
  define("eq", &eq, &eq);
  define("ne", &ne, &ne);
  define("lt", &lt, &lt);
  define("le", &le, &le);
  define("gt", &gt, &gt);
  define("ge", &ge, &ge);
  define("add_", &add_, &add_);
  define("sub_", &sub_, &sub_);
  define("mul_", &mul_, &mul_);
  define("div_", &div_, &div_);
  define("pow_", &pow_, &pow_);
  define("remainder_", &remainder_, &remainder_);
  define("floor_divide_", &floor_divide_, &floor_divide_);
  define("logical_and", &logical_and, nullptr);
  define("logical_or", &logical_or, nullptr);
  m.def("atan2", &atan2, "y"_a, "x"_a, Released());
  m.def("fused_swiglu", &fused_swiglu, "gate"_a, "x"_a, Released());

  m.def("isclose", &isclose, "a"_a, "b"_a, "relative"_a = 1e-5, "absolute"_a = 1e-8, "equal_nan"_a = false, Released());
  m.def("allclose", &allclose, "a"_a, "b"_a, "relative"_a = 1e-5, "absolute"_a = 1e-8, "equal_nan"_a = false, Released());

  m.def("where", nb::overload_cast<const Tensor&, const Tensor&, const Tensor&>(&where), "condition"_a, "a"_a, "b"_a, Released());
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
  const std::pair<const char*, OfOne> unary[] = {
      {"neg", &neg},
      {"abs", &abs},
      {"sign", &sign},
      {"exp", &exp},
      {"log", &log},
      {"sqrt", &sqrt},
      {"rsqrt", &rsqrt},
      {"square", &square},
      {"reciprocal", &reciprocal},
      {"sin", &sin},
      {"cos", &cos},
      {"tan", &tan},
      {"tanh", &tanh},
      {"erf", &erf},
      {"sigmoid", &sigmoid},
      {"relu", &relu},
      {"gelu", &gelu},
      {"gelu_tanh", &gelu_tanh},
      {"silu", &silu},
      {"log1p", &log1p},
      {"expm1", &expm1},
      {"floor", &floor},
      {"ceil", &ceil},
      {"round", &round},
      {"isnan", &isnan},
      {"isinf", &isinf},
      {"isfinite", &isfinite},
      {"logical_not", &logical_not},
  };
  for (const auto& [name, f] : unary) m.def(name, f, "x"_a, Released());
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

}  // namespace tern::python
