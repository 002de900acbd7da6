// x[...] and x[...] = y: indices of Python as those of ops/index.h.
#include <variant>

#include "binding.h"
#include "ops/factory.h"
#include "ops/index.h"
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

/// Runs f; its mistakes are Python's IndexError as well.
template <class F>
auto with_index(F f) {
  try {
    return f();
  } catch (const OutOfMemory&) {
    throw;
  } catch (const Error& e) {
    throw InvalidIndex(e.what());
  }
}

/// A mask or tensors of indices name no view: the elements that they select are written by their positions in x.
void write_at(const Tensor& x, const std::vector<Index>& indices, const Tensor& value) {
  const Tensor places = with_index([&] { return Index::apply(reshape(arange(x.numel(), DType::i64, x.device()), x.shape()), indices); });
  const Tensor values = broadcast_to(cast(value, x.dtype()), places.shape()), dense = contiguous(x);
  index_copy_(reshape(dense, {-1}), 0, reshape(places, {-1}), reshape(values, {-1}));
  if (!dense.is_same(x)) copy_(x, dense);
}

void assign(const Tensor& x, nb::handle key, const std::variant<Tensor, Number>& value) {
  const std::vector<Index> indices = with_index([&] { return indices_of(key); });
  const nb::gil_scoped_release released;
  const Number* const number = std::get_if<Number>(&value);
  const bool has_tensor = std::any_of(indices.begin(), indices.end(), [](const Index& i) { return i.kind == Index::Kind::tensor; });
  if (has_tensor) return write_at(x, indices, number ? full({}, *number, x.dtype(), x.device()) : std::get<Tensor>(value));
  const Tensor target = with_index([&] { return Index::apply(x, indices); });
  if (number) fill_(target, *number);
  else copy_(target, std::get<Tensor>(value));
}

}  // namespace

void bind_indexing(nb::class_<Tensor>& bound) {
  bound
      .def(
          "__getitem__",
          [](const Tensor& x, nb::handle key) {
            return with_index([&] {
              const std::vector<Index> indices = indices_of(key);
              const nb::gil_scoped_release released;
              return Index::apply(x, indices);
            });
          },
          "key"_a.none(), nb::sig("def __getitem__(self, key: typing.Any, /) -> Tensor"))
      .def("__setitem__", &assign, "key"_a.none(), "value"_a,
           nb::sig("def __setitem__(self, key: typing.Any, value: Tensor | float, /) -> None"))
      .def(
          "__iter__", [](const Tensor& x) { return nb::iter(nb::cast(unstack(x))); },
          nb::sig("def __iter__(self) -> collections.abc.Iterator[Tensor]"));
}

}  // namespace tern::python
