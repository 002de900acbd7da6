// The Tensor class: what it is, its gradient, and what is asked of it most often. Operators are in operators.cpp, x[...] in indexing.cpp,
// and memory that other libraries see in memory.cpp.
#include "autodiff/node.h"
#include "backend/observer.h"
#include "binding.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"

namespace tern::python {

namespace {

/// Elements as numbers of Python, nested by dimension.
template <class T>
nb::object nested(const std::vector<T>& values, std::size_t& next, const Shape& shape, int dim) {
  if (dim == shape.size()) {
    const T value = values[next++];
    if constexpr (std::is_same_v<T, f16> || std::is_same_v<T, bf16>) return nb::cast(static_cast<double>(float(value)));
    else return nb::cast(value);
  }
  nb::list result;
  for (std::int64_t i = 0; i < shape[dim]; ++i) result.append(nested(values, next, shape, dim + 1));
  return result;
}

nb::object to_list(const Tensor& x, const char* name) {
  if (backend::observer) backend::tell([&](backend::Observer& told) { told.on_host_access(name, x.impl().storage); });
  const auto as = [&]<class T>(T) {
    std::vector<T> values;
    {
      const nb::gil_scoped_release released;  // a GPU is waited for
      values = x.to_vector<T>();
    }
    std::size_t next = 0;
    return nested(values, next, x.shape(), 0);
  };
  switch (x.dtype()) {
    case DType::f32: return as(float());
    case DType::f64: return as(double());
    case DType::f16: return as(f16());
    case DType::bf16: return as(bf16());
    case DType::i32: return as(std::int32_t());
    case DType::i64: return as(std::int64_t());
    case DType::u8: return as(std::uint8_t());
    case DType::boolean: return as(bool());
  }
  fail("tolist", "expected one of the known dtypes");
}

nb::object item(const Tensor& x) {
  if (x.numel() != 1) fail("item", "expected a tensor of one element but got shape " + to_string(x.shape()));
  return to_list(reshape(x.detach(), {}), "item");
}

/// A number for one element: where print, str.format and f"{loss:.3f}" show a tensor without dimensions, it is a number on one line.
std::string printed(const Tensor& x) {
  std::string text = to_string(x);
  if (x.dims() == 0) text.erase(text.find('\n'));
  if (x.dtype() == DType::boolean)
    for (std::size_t at = 0; (at = text.find_first_of("tf", at)) != std::string::npos; at += 4)
      if (text.compare(at, 4, "true") == 0 || text.compare(at, 5, "false") == 0) text[at] = char(text[at] - 'a' + 'A');
  return text;
}
std::string representation(const Tensor& x) {
  if (x.dims() != 0) return printed(x);
  const std::string place = x.device() == cpu ? "" : ", device='" + to_string(x.device()) + "'";
  return "tensor(" + printed(x) + ", " + name(x.dtype()) + place + ")";
}
nb::object formatted(const Tensor& x, const nb::str& how) {
  if (nb::len(how) == 0) return nb::str(printed(x).c_str());
  if (x.numel() != 1)
    throw nb::type_error(
        ("unsupported format string passed to Tensor.__format__: a format is of one number, and the shape is " + to_string(x.shape()))
            .c_str());
  return nb::module_::import_("builtins").attr("format")(item(x), how);
}

bool truth(const Tensor& x) {
  if (x.numel() != 1) fail("bool", "expected a tensor of one element but got shape " + to_string(x.shape()) + ": say any(x) or all(x)");
  return nb::cast<bool>(item(ne(x, 0)));
}

}  // namespace

nb::class_<Tensor> bind_tensor(nb::module_& m) {
  nb::class_<Tensor> bound(
      m, "Tensor", nb::type_slots(tensor_slots), nb::sig("class Tensor(_Conversions)"),  // stubs.txt
      "A strided array of numbers on a device: a handle, whose copies share the same memory and gradient. Ops are functions of the\n"
      "module; new tensors come from tern.tensor, tern.from_numpy, tern.from_dlpack and the factories.");
  bound.def_prop_ro("shape", [](const Tensor& x) { return x.shape(); })
      .def_prop_ro(
          "strides", [](const Tensor& x) { return x.strides(); }, "In elements.")
      .def_prop_ro("dims", &Tensor::dims, "The number of dimensions.")
      .def_prop_ro("ndim", &Tensor::dims, "The number of dimensions.")
      .def_prop_ro("dtype", &Tensor::dtype)
      .def_prop_ro("device", &Tensor::device)
      .def("numel", &Tensor::numel, "The number of elements.")
      .def("dim", &Tensor::dims, "The number of dimensions.")
      .def(
          "size", [](const Tensor& x) { return x.shape(); }, "The shape.")
      .def("size", &Tensor::size, "dim"_a, "The length of a dimension; -1 is the last one.")
      .def_prop_ro(
          "nbytes", [](const Tensor& x) { return x.numel() * std::int64_t(size_of(x.dtype())); }, "The bytes of all elements.")
      .def("is_contiguous", &Tensor::is_contiguous)
      .def("is_same", &Tensor::is_same, "other"_a, "True if both are handles of one tensor.")
      .def_prop_ro(
          "version", [](const Tensor& x) { return x.version(); }, "The number of in-place edits of the memory so far.")
      .def(
          "data_ptr", [](const Tensor& x) { return reinterpret_cast<std::uintptr_t>(x.view().data); }, "The address of the first element.")
      .def("__repr__", &representation)
      .def("__str__", &printed)
      .def("__format__", &formatted, "spec"_a, nb::sig("def __format__(self, spec: str, /) -> str"))
      .def(
          "__contains__", [](const Tensor& x, const Tensor& value) { return truth(any(eq(x, value))); }, "value"_a)
      .def(
          "__contains__", [](const Tensor& x, const Number& value) { return truth(any(eq(x, double(value)))); }, "value"_a)
      .def("__len__",
           [](const Tensor& x) {
             if (x.dims() == 0) throw nb::type_error("a tensor without dimensions has no length");
             return x.size(0);
           })
      .def(
          "__hash__", [](nb::handle self) { return reinterpret_cast<std::uintptr_t>(self.ptr()) >> 4; },
          nb::sig("def __hash__(self) -> int"))
      .def("__bool__", &truth)
      .def("__float__", [](const Tensor& x) { return nb::float_(item(x)); })
      .def("__int__", [](const Tensor& x) { return nb::int_(item(x)); })
      .def("__index__",
           [](const Tensor& x) {
             if (is_floating(x.dtype())) throw nb::type_error("a floating tensor is no index");
             return nb::int_(item(x));
           })
      .def("item", &item, nb::sig("def item(self) -> float | int | bool"), "The only element, as a number of Python; waits for the device.")
      .def(
          "tolist", [](const Tensor& x) { return to_list(x, "tolist"); }, nb::sig("def tolist(self) -> typing.Any"),
          "The elements as nested lists; waits for the device.");

  // Ops are methods by publish(); here are the names that other libraries have for some of them.
  bound.def_prop_ro("T", &Tensor::T, "With the last two dimensions exchanged.")
      .def_prop_ro("mT", &Tensor::T, "With the last two dimensions exchanged.")
      .def(
          "cpu", [](const Tensor& x) { return x.to(cpu); }, Released(), "The tensor on the CPU, itself if it is there.")
      .def("cuda", [](const Tensor& x, int index) { return x.to(cuda(index)); }, "index"_a = 0, Released(), "The tensor on a GPU.");
  const std::pair<const char*, DType> dtypes[] = {{"float", DType::f32},     {"double", DType::f64}, {"half", DType::f16},
                                                  {"bfloat16", DType::bf16}, {"int", DType::i32},    {"long", DType::i64},
                                                  {"bool", DType::boolean}};
  for (const auto& [text, dtype] : dtypes)
    bound.def(
        text, [to = dtype](const Tensor& x) { return x.to(to); }, Released(),
        (std::string("x.to(tern.") + (dtype == DType::boolean ? "boolean" : name(dtype)) + ").").c_str());

  bound
      .def_prop_rw(
          "requires_grad", &Tensor::requires_grad, [](Tensor& x, bool on) { x.set_requires_grad(on); },
          "True if the tensor has a gradient in backward: a leaf that requires one, or a result computed from such a leaf.")
      .def(
          "requires_grad_",
          [](nb::handle self, bool requires_grad) {
            nb::cast<Tensor&>(self).set_requires_grad(requires_grad);
            return nb::borrow(self);
          },
          "requires_grad"_a = true, nb::sig("def requires_grad_(self, requires_grad: bool = True) -> Tensor"),
          "Asks for a gradient, on a floating leaf, or freezes a parameter. Returns the tensor.")
      .def_prop_ro("is_leaf", &Tensor::is_leaf)
      // Another thread's backward pass may hold the gradient, and wait for the GIL to give memory of Python's back.
      .def_prop_rw(
          "grad",
          [](const Tensor& x) {
            const nb::gil_scoped_release released;
            return maybe(x.grad());
          },
          [](Tensor& x, const MaybeTensor& gradient) {
            const nb::gil_scoped_release released;
            x.set_grad(given(gradient));
          },
          nb::arg("gradient").none(), "The accumulated gradient of a leaf; None before the first backward.")
      .def("detach", &Tensor::detach, "A tensor of the same memory, outside the graph.")
      .def(
          "backward",
          [](const Tensor& x, const MaybeTensor& gradient, bool retain_graph, bool create_graph) {
            x.backward(given(gradient), retain_graph, create_graph);
          },
          "gradient"_a = nb::none(), "retain_graph"_a = false, "create_graph"_a = false, Released(),
          "Adds the gradient of this tensor to every leaf that it was computed from. One of several elements needs `gradient`.");
  return bound;
}

}  // namespace tern::python
