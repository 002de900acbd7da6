// Functions of each element (ops/pointwise.h).
#include "ops/pointwise.h"

#include "binding.h"

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
  define("add", &add);
  define("sub", &sub, true);
  define("mul", &mul);
  define("div", &div, true);
  define("pow", &pow, true);
  define("minimum", &minimum);
  define("maximum", &maximum);
  define("remainder", &remainder, true);
  define("floor_divide", &floor_divide, true);
  define("eq", &eq);
  define("ne", &ne);
  define("lt", &lt);
  define("le", &le);
  define("gt", &gt);
  define("ge", &ge);
  define("add_", &add_);
  define("sub_", &sub_);
  define("mul_", &mul_);
  define("div_", &div_);
  define("pow_", &pow_);
  define("remainder_", &remainder_);
  define("floor_divide_", &floor_divide_);
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
      {"hardswish", &hardswish},
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
