// The operators of tensors: a op b with a tensor or a number on either side.
#include "ops/operators.h"

#include <algorithm>

#include "binding.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"

namespace tern::python {

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
template <class F>
void in_place(nb::class_<Tensor>& bound, const char* name, F f) {
  const auto define = [&]<class Other>(Other*) {
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
  };
  define(static_cast<Tensor*>(nullptr));
  define(static_cast<Number*>(nullptr));
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
  bound.def("__pow__", nb::overload_cast<const Tensor&, const Tensor&>(&pow), nb::is_operator(), Released())
      .def(
          "__pow__", [](const Tensor& a, const Number& b) { return pow(a, double(b)); }, nb::is_operator(), Released())
      .def(
          "__rpow__", [](const Tensor& b, const Number& a) { return pow(double(a), b); }, nb::is_operator(), Released())
      .def("__mod__", nb::overload_cast<const Tensor&, const Tensor&>(&remainder), nb::is_operator(), Released())
      .def(
          "__mod__", [](const Tensor& a, const Number& b) { return remainder(a, double(b)); }, nb::is_operator(), Released())
      .def(
          "__matmul__", [](const Tensor& a, const Tensor& b) { return matmul(a, b); }, nb::is_operator(), Released())
      .def("__neg__", &neg, Released())
      .def("__pos__", [](const Tensor& x) { return x; })
      .def("__abs__", &abs, Released())
      .def("__invert__", &logical_not, Released())
      .def(
          "__and__", [](const Tensor& a, const Tensor& b) { return a & b; }, nb::is_operator(), Released())
      .def(
          "__or__", [](const Tensor& a, const Tensor& b) { return a | b; }, nb::is_operator(), Released())
      .def("__xor__", [](const Tensor& a, const Tensor& b) { return a ^ b; }, nb::is_operator(), Released());

  in_place(bound, "__iadd__", [](const Tensor& a, const auto& b) { a += b; });
  in_place(bound, "__isub__", [](const Tensor& a, const auto& b) { a -= b; });
  in_place(bound, "__imul__", [](const Tensor& a, const auto& b) { a *= b; });
  in_place(bound, "__itruediv__", [](const Tensor& a, const auto& b) { a /= b; });

  comparison(bound, "__eq__", [](const Tensor& a, const auto& b) { return a == b; });
  comparison(bound, "__ne__", [](const Tensor& a, const auto& b) { return a != b; });
  comparison(bound, "__lt__", [](const Tensor& a, const auto& b) { return a < b; });
  comparison(bound, "__le__", [](const Tensor& a, const auto& b) { return a <= b; });
  comparison(bound, "__gt__", [](const Tensor& a, const auto& b) { return a > b; });
  comparison(bound, "__ge__", [](const Tensor& a, const auto& b) { return a >= b; });
}

}  // namespace tern::python
