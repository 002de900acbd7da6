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

#include <algorithm>
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

/// A mistake in x[...], Python's IndexError as well.
struct InvalidIndex : Error {
  using Error::Error;
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

/// The members of DType in Python's enum, by their numbers (types.cpp).
extern std::array<PyObject*, 8> dtype_members;

/// One tensor or several.
struct TensorOrMore : Tensors {};

/// Tensors by name, in order: a dict of Python's, and pairs.
using TensorDict = nb::typed<nb::dict, nb::str, Tensor>;
TensorDict to_dict(const std::vector<NamedTensor>& tensors);
using TensorPairs = std::vector<std::pair<std::string, Tensor>>;
TensorPairs to_pairs(const std::vector<NamedTensor>& tensors);
/// Either, as an argument.
struct NamedTensors {
  std::vector<NamedTensor> all;
};
/// The names without a tensor, and those of tensors that have no place.
using Mismatch = std::pair<std::vector<std::string>, std::vector<std::string>>;
/// Copies tensors into the targets of their names, all or none. Error for names that differ, if `strict`, and for shapes.
Mismatch load_state(const char* where, const std::vector<NamedTensor>& targets, const NamedTensors& source, bool strict);

/// A property of a module or options, by value: what Python has is a handle of its own, which a later assignment does not change.
template <class Class, class Owner>
void tensor_property(Class& bound, const char* name, Tensor Owner::* member, const char* doc) {
  using Self = typename Class::Type;
  bound.def_prop_rw(
      name, [member](const Self& self) { return maybe(self.*member); },
      [member](Self& self, const MaybeTensor& x) { self.*member = given(x); }, doc, nb::arg("value").none());
}

/// Gives all functions of a module what Note [Functions of Python] says, and functions and classes their docstrings: those of `place` and
/// the name. Functions of a tensor become methods, of `methods`.
void publish(nb::module_& m, const std::string& place = "", nb::class_<Tensor>* methods = nullptr);

void bind_errors(nb::module_& m);
void bind_types(nb::module_& m);
/// The buffer protocol of tensors, for their class (memory.cpp).
extern PyType_Slot tensor_slots[];
nb::class_<Tensor> bind_tensor(nb::module_& m);
void bind_memory(nb::module_& m, nb::class_<Tensor>& tensor);
void bind_indexing(nb::class_<Tensor>& tensor);
void bind_operators(nb::class_<Tensor>& tensor);
void bind_compiled(nb::module_& m);
void bind_pointwise(nb::module_& m);
void bind_shapes(nb::module_& m);
void bind_reductions(nb::module_& m);
void bind_products(nb::module_& m);
void bind_losses(nb::module_& m);
void bind_images(nb::module_& m, nb::module_& nn);
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

/// Whole numbers; True and False are none.
template <class T>
struct whole_caster {
  NB_TYPE_CASTER(T, const_name("int"))

  bool from_python(handle src, std::uint32_t flags, cleanup_list* cleanup) noexcept {
    make_caster<long long> number;
    if (PyBool_Check(src.ptr()) || !number.from_python(src, flags, cleanup) || !std::in_range<T>(number.value)) return false;
    value = static_cast<T>(number.value);
    return true;
  }
  static handle from_cpp(T number, rv_policy, cleanup_list*) noexcept { return PyLong_FromLongLong(number); }
};
template <>
struct type_caster<std::int64_t> : whole_caster<std::int64_t> {};
template <>
struct type_caster<std::int32_t> : whole_caster<std::int32_t> {};

/// A member of the enum; no number is a dtype.
template <>
struct type_caster<tern::DType> {
  NB_TYPE_CASTER(tern::DType, const_name("tern._core.DType"))

  bool from_python(handle src, std::uint32_t, cleanup_list*) noexcept {
    const auto found = std::find(tern::python::dtype_members.begin(), tern::python::dtype_members.end(), src.ptr());
    value = static_cast<tern::DType>(found - tern::python::dtype_members.begin());
    return found != tern::python::dtype_members.end();
  }
  static handle from_cpp(tern::DType dtype, rv_policy, cleanup_list*) noexcept {
    return handle(tern::python::dtype_members[std::size_t(dtype)]).inc_ref();
  }
};

template <>
struct type_caster<tern::python::TensorOrMore> {
  NB_TYPE_CASTER(tern::python::TensorOrMore, const_name("tern._core.Tensor | collections.abc.Sequence[tern._core.Tensor]"))

  bool from_python(handle src, std::uint32_t flags, cleanup_list* cleanup) noexcept {
    tern::Tensor* one = nullptr;
    value.clear();
    if (try_cast(src, one, false) && one) {
      value.push_back(*one);
      return true;
    }
    make_caster<tern::Tensors> several;
    if (!several.from_python(src, flags, cleanup)) return false;
    static_cast<tern::Tensors&>(value) = std::move(several.value);
    return true;
  }
  static handle from_cpp(const tern::python::TensorOrMore& xs, rv_policy policy, cleanup_list* cleanup) noexcept {
    return make_caster<tern::Tensors>::from_cpp(xs, policy, cleanup);
  }
};

template <>
struct type_caster<tern::python::NamedTensors> {
  NB_TYPE_CASTER(tern::python::NamedTensors, const_name("collections.abc.Mapping[str, tern._core.Tensor] | "
                                                        "collections.abc.Sequence[tuple[str, tern._core.Tensor]]"))

  bool from_python(handle src, std::uint32_t flags, cleanup_list* cleanup) noexcept {
    make_caster<std::vector<std::pair<std::string, tern::Tensor>>> pairs;
    const object items = PyMapping_Check(src.ptr()) && !PySequence_Check(src.ptr()) ? steal(PyMapping_Items(src.ptr())) : borrow(src);
    if (!items.is_valid()) PyErr_Clear();
    if (!items.is_valid() || !pairs.from_python(items, flags, cleanup)) return false;
    value.all.clear();
    for (auto& [name, tensor] : pairs.value) value.all.push_back({std::move(name), std::move(tensor)});
    return true;
  }
  static handle from_cpp(const tern::python::NamedTensors& tensors, rv_policy, cleanup_list*) noexcept {
    return tern::python::to_dict(tensors.all).release();
  }
};

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
