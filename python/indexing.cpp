// x[...] and x[...] = y: indices of Python as those of ops/indexing.h.
#include "ops/indexing.h"

#include <variant>

#include "binding.h"
#include "ops/copy.h"
#include "ops/factory.h"
#include "ops/view.h"

namespace tern::python {

namespace {

std::optional<std::int64_t> bound_of(nb::handle x) {
  if (x.is_none()) return std::nullopt;
  const nb::object index = nb::steal(PyNumber_Index(x.ptr()));
  if (!index.is_valid()) throw nb::python_error();
  return nb::cast<std::int64_t>(index);
}

Index index_of(nb::handle x) {
  if (x.is_none()) return newaxis;
  if (x.ptr() == Py_Ellipsis) return ellipsis;
  if (PySlice_Check(x.ptr())) {
    const std::optional<std::int64_t> step = bound_of(x.attr("step"));
    return Slice(bound_of(x.attr("start")), bound_of(x.attr("stop")), step.value_or(1));
  }
  const Tensor* tensor = nullptr;
  if (nb::try_cast(x, tensor, false) && tensor) return *tensor;
  if (PyBool_Check(x.ptr()) || !PyIndex_Check(x.ptr()))
    fail("index", "expected numbers, slices, None, ... or tensors but got a " + std::string(Py_TYPE(x.ptr())->tp_name) +
                      ": tern.tensor(x) makes a tensor of a list or array");
  return *bound_of(x);
}

/// The indices of x[i] or x[i, j], as one or in a row.
std::vector<Index> indices_of(nb::handle key) {
  std::vector<Index> result;
  if (PyTuple_Check(key.ptr()))
    for (const nb::handle one : nb::borrow<nb::tuple>(key)) result.push_back(index_of(one));
  else result.push_back(index_of(key));
  return result;
}

}  // namespace

void bind_indexing(nb::class_<Tensor>& bound) {
  bound
      .def(
          "__getitem__",
          [](const Tensor& x, nb::handle key) {
            const std::vector<Index> indices = indices_of(key);
            const nb::gil_scoped_release released;
            return Index::apply(x, indices);
          },
          "key"_a.none(), nb::sig("def __getitem__(self, key: typing.Any, /) -> Tensor"))
      .def(
          "__setitem__",
          [](const Tensor& x, nb::handle key, const std::variant<Tensor, Number>& value) {
            const std::vector<Index> indices = indices_of(key);
            for (const Index& index : indices)
              if (index.kind == Index::Kind::tensor)
                fail("setitem",
                     "expected numbers and slices, which name a view: where, masked_fill, scatter and index_add give a new tensor");
            const nb::gil_scoped_release released;
            const Tensor target = Index::apply(x, indices);
            if (const Number* const number = std::get_if<Number>(&value)) fill_(target, *number);
            else copy_(target, std::get<Tensor>(value));
          },
          "key"_a.none(), "value"_a, nb::sig("def __setitem__(self, key: typing.Any, value: Tensor | float, /) -> None"))
      .def(
          "__iter__", [](const Tensor& x) { return nb::iter(nb::cast(unstack(x))); },
          nb::sig("def __iter__(self) -> collections.abc.Iterator[Tensor]"));
}

}  // namespace tern::python
