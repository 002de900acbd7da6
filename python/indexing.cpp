// x[...] and x[...] = y: indices of Python as those of ops/indexing.h.
#include "ops/indexing.h"

#include <variant>

#include "binding.h"
#include "ops/copy.h"
#include "ops/factory.h"
#include "ops/view.h"

namespace tern::python {

namespace {

/// A bound of a slice: one beyond all sizes is the end, as in Python.
std::optional<std::int64_t> bound_of(nb::handle x) {
  if (x.is_none()) return std::nullopt;
  const Py_ssize_t bound = PyNumber_AsSsize_t(x.ptr(), nullptr);
  if (bound == -1 && PyErr_Occurred()) throw nb::python_error();
  return bound;
}
std::int64_t position_of(nb::handle x) {
  const Py_ssize_t position = PyNumber_AsSsize_t(x.ptr(), PyExc_IndexError);
  if (position == -1 && PyErr_Occurred()) throw nb::python_error();
  return position;
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
  return position_of(x);
}

/// The indices of x[i] or x[i, j], as one or in a row.
std::vector<Index> indices_of(nb::handle key) {
  std::vector<Index> result;
  if (PyTuple_Check(key.ptr()))
    for (const nb::handle one : nb::borrow<nb::tuple>(key)) result.push_back(index_of(one));
  else result.push_back(index_of(key));
  return result;
}

/// What an index selects; its mistakes are Python's IndexError as well.
Tensor selected(const Tensor& x, nb::handle key, const char* refusal = nullptr) {
  try {
    const std::vector<Index> indices = indices_of(key);
    if (refusal)
      for (const Index& index : indices)
        if (index.kind == Index::Kind::tensor) fail("setitem", refusal);
    const nb::gil_scoped_release released;
    return Index::apply(x, indices);
  } catch (const OutOfMemory&) {
    throw;
  } catch (const Error& e) {
    throw InvalidIndex(e.what());
  }
}

}  // namespace

void bind_indexing(nb::class_<Tensor>& bound) {
  bound
      .def(
          "__getitem__", [](const Tensor& x, nb::handle key) { return selected(x, key); }, "key"_a.none(),
          nb::sig("def __getitem__(self, key: typing.Any, /) -> Tensor"))
      .def(
          "__setitem__",
          [](const Tensor& x, nb::handle key, const std::variant<Tensor, Number>& value) {
            const Tensor target = selected(x, key,
                                           "expected numbers and slices, which name a view: where, masked_fill, scatter and index_add "
                                           "give a new tensor");
            const nb::gil_scoped_release released;
            if (const Number* const number = std::get_if<Number>(&value)) fill_(target, *number);
            else copy_(target, std::get<Tensor>(value));
          },
          "key"_a.none(), "value"_a, nb::sig("def __setitem__(self, key: typing.Any, value: Tensor | float, /) -> None"))
      .def(
          "__iter__", [](const Tensor& x) { return nb::iter(nb::cast(unstack(x))); },
          nb::sig("def __iter__(self) -> collections.abc.Iterator[Tensor]"));
}

}  // namespace tern::python
