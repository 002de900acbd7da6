#pragma once
// Shared by the files of the extension: how shapes, devices, names of choices and tensors that may be missing come from Python and go
// back. Each file binds a family in one function, and module.cpp calls them in order.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tensor/tensor.h"

namespace tern::python {

namespace nb = nanobind;
using namespace nanobind::literals;

/// For calls that compute: other threads of Python run meanwhile. Whatever such a call does with an object of Python's takes the GIL for
/// it, as memory of Python's does when the last tensor of it goes (memory.cpp).
using Released = nb::call_guard<nb::gil_scoped_release>;

/// A device as a user names it, a Device or "cuda:0"; None is the thread's default. Text is read where the call runs, so that a mistake in
/// it is an Error and not a list of signatures.
struct DeviceLike {
  std::optional<Device> device;
  std::string text;
  Device get() const;
  operator Device() const { return get(); }
};

/// Names of an enum's values: a specialisation has `what`, `signature` and `all`.
template <class E>
struct Names;

/// A value of an enum by its name, as in reduction="sum".
template <class E>
struct Choice {
  std::string text;
  operator E() const {
    std::string known;
    for (const auto& [name, value] : Names<E>::all) {
      if (text == name) return value;
      known += (known.empty() ? "" : ", ") + std::string(name);
    }
    fail(Names<E>::what, "expected one of " + known + " but got '" + text + "'");
  }
};
/// For a default argument.
template <class E>
Choice<E> choice(E value) {
  for (const auto& [name, known] : Names<E>::all)
    if (known == value) return {name};
  return {};
}
template <class E>
std::string name_of(E value) {
  return choice(value).text;
}

/// A number of Python as ops take it. Of a whole one that float64 does not have, the next that it has would be another: an Error where the
/// call runs.
struct Number {
  double value = 0;
  std::string text;                   ///< of such a whole number
  std::optional<std::int64_t> whole;  ///< an int's value, for the ops that take those of i64 as they are
  operator double() const {
    if (!text.empty())
      fail("number", "expected one that float64 holds exactly but got " + text + ": tern.tensor(" + text + ") has it in i64");
    return value;
  }
};

/// Undefined tensors are None.
using MaybeTensor = std::optional<Tensor>;
inline Tensor given(const MaybeTensor& x) { return x ? *x : Tensor(); }
inline MaybeTensor maybe(const Tensor& x) { return x.defined() ? MaybeTensor(x) : std::nullopt; }

/// Sizes of an image, (height, width), or one number for both.
using Size = std::variant<std::int64_t, std::array<std::int64_t, 2>>;
inline std::array<std::int64_t, 2> both(const Size& size) {
  if (const std::int64_t* const one = std::get_if<std::int64_t>(&size)) return {*one, *one};
  return std::get<1>(size);
}

/// Tensors by name, in order.
using TensorDict = nb::typed<nb::dict, nb::str, Tensor>;
TensorDict to_dict(const std::vector<NamedTensor>& tensors);
std::vector<NamedTensor> to_named(const std::map<std::string, Tensor>& tensors);

/// A property of a module or options, by value: what Python has is a handle of its own, which a later assignment does not change.
template <class Class, class Owner>
void tensor_property(Class& bound, const char* name, Tensor Owner::* member, const char* doc) {
  using Self = typename Class::Type;
  bound.def_prop_rw(
      name, [member](const Self& self) { return maybe(self.*member); },
      [member](Self& self, const MaybeTensor& x) { self.*member = given(x); }, doc, nb::arg("value").none());
}

void bind_errors(nb::module_& m);
void bind_types(nb::module_& m);
/// The buffer protocol of tensors, for their class (memory.cpp).
extern PyType_Slot tensor_slots[];
nb::class_<Tensor> bind_tensor(nb::module_& m);
void bind_memory(nb::module_& m, nb::class_<Tensor>& tensor);
void bind_indexing(nb::class_<Tensor>& tensor);
void bind_operators(nb::class_<Tensor>& tensor);
void bind_pointwise(nb::module_& m);
void bind_shapes(nb::module_& m);
void bind_reductions(nb::module_& m);
void bind_products(nb::module_& m);
void bind_losses(nb::module_& m);
void bind_factories(nb::module_& m);
void bind_state(nb::module_& m);
void bind_autograd(nb::module_& m);
void bind_modules(nb::module_& nn);
void bind_layers(nb::module_& nn);
void bind_models(nb::module_& nn);
void bind_init(nb::module_& init);
void bind_training(nb::module_& train);
void bind_files(nb::module_& io, nb::module_& models);

}  // namespace tern::python

namespace nanobind::detail {

/// Shape, Strides and Dims: a number or a sequence of them comes in, a tuple goes out.
template <class T>
struct type_caster<tern::DimVec<T>> {
  NB_TYPE_CASTER(tern::DimVec<T>, io_name("int | collections.abc.Sequence[int]", "tuple[int, ...]"))

  bool from_python(handle src, std::uint32_t flags, cleanup_list* cleanup) noexcept {
    make_caster<T> one;
    if (one.from_python(src, flags, cleanup)) {
      value = tern::DimVec<T>::filled(1, one.value);
      return true;
    }
    make_caster<std::vector<T>> several;
    if (!several.from_python(src, flags, cleanup) || several.value.size() > tern::max_dims) return false;
    value = tern::DimVec<T>(several.value.begin(), several.value.end());
    return true;
  }
  static handle from_cpp(const tern::DimVec<T>& dims, rv_policy, cleanup_list*) noexcept {
    PyObject* const result = PyTuple_New(dims.size());
    for (int i = 0; result && i < dims.size(); ++i) PyTuple_SetItem(result, i, PyLong_FromLongLong(dims[i]));
    return result;
  }
};

template <>
struct type_caster<tern::python::Number> {
  NB_TYPE_CASTER(tern::python::Number, const_name("float"))

  bool from_python(handle src, std::uint32_t flags, cleanup_list* cleanup) noexcept {
    value = {};
    if (!PyLong_Check(src.ptr())) {
      make_caster<double> real;
      if (!real.from_python(src, flags, cleanup)) return false;
      value.value = real.value;
      return true;
    }
    value.value = PyLong_AsDouble(src.ptr());
    const bool is_beyond = PyErr_Occurred() != nullptr;
    if (is_beyond) PyErr_Clear();
    int is_beyond_i64 = 0;
    const long long whole = PyLong_AsLongLongAndOverflow(src.ptr(), &is_beyond_i64);
    if (is_beyond_i64 == 0) value.whole = whole;
    if (!is_beyond && std::abs(value.value) < 0x1p53) return true;
    const object back = is_beyond ? object() : steal(PyLong_FromDouble(value.value));
    if (back.is_valid() && PyObject_RichCompareBool(src.ptr(), back.ptr(), Py_EQ) == 1) return true;
    const object text = steal(PyObject_Str(src.ptr()));
    if (!text.is_valid()) PyErr_Clear();
    value.text = text.is_valid() ? std::string(borrow<str>(text).c_str()) : "a larger one";
    return true;
  }
  static handle from_cpp(const tern::python::Number& number, rv_policy, cleanup_list*) noexcept { return PyFloat_FromDouble(number.value); }
};

template <>
struct type_caster<tern::python::DeviceLike> {
  NB_TYPE_CASTER(tern::python::DeviceLike, const_name("tern._core.Device | str | None"))

  bool from_python(handle src, std::uint32_t flags, cleanup_list* cleanup) noexcept {
    value = {};
    if (src.is_none()) return true;
    make_caster<std::string> text;
    if (text.from_python(src, flags, cleanup)) {
      value.text = text.value;
      return true;
    }
    tern::Device* device = nullptr;
    if (!try_cast(src, device) || !device) return false;
    value.device = *device;
    return true;
  }
  static handle from_cpp(const tern::python::DeviceLike&, rv_policy, cleanup_list*) noexcept { return none().release(); }
};

template <class E>
struct type_caster<tern::python::Choice<E>> {
  NB_TYPE_CASTER(tern::python::Choice<E>, tern::python::Names<E>::signature)

  bool from_python(handle src, std::uint32_t flags, cleanup_list* cleanup) noexcept {
    make_caster<std::string> text;
    if (!text.from_python(src, flags, cleanup)) return false;
    value.text = text.value;
    return true;
  }
  static handle from_cpp(const tern::python::Choice<E>& choice, rv_policy policy, cleanup_list* cleanup) noexcept {
    return make_caster<std::string>::from_cpp(choice.text, policy, cleanup);
  }
};

}  // namespace nanobind::detail
