// Ops that move elements: views, joins, orders, indices (ops/view.h, index.h), and x[...] and x[...] = y.
#include <variant>

#include "binding.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/view.h"

namespace tern::python {

namespace {

/// Results with names are tuples here.
std::pair<Tensor, Tensor> pair_of(const Sorted& sorted) { return {sorted.values, sorted.indices}; }

/// The same memory in another shape.
Tensor view(const Tensor& x, const Shape& shape) {
  const Tensor y = reshape(x, shape);
  if (y.impl().storage != x.impl().storage && x.numel() != 0)
    fail("view", "expected strides that allow a view of shape " + to_string(shape) + " but got shape " + to_string(x.shape()) +
                     ", strides " + to_string(x.strides()) + ": use reshape, which copies");
  return y;
}
/// The matrix with its dimensions exchanged; of fewer dimensions the tensor itself.
Tensor t(const Tensor& x) {
  if (x.dims() > 2) fail("t", "expected at most two dimensions but got " + to_string(x.shape()) + ": use transpose, or mT");
  return x.dims() == 2 ? transpose(x, 0, 1) : x;
}

void bind_views(nb::module_& m) {
  m.def("reshape", &reshape, "x"_a, "shape"_a, Released());
  m.def("flatten", &flatten, "x"_a, "first"_a = 0, "last"_a = -1, Released());
  m.def("transpose", &transpose, "x"_a, "a"_a, "b"_a);
  m.def("t", &t, "x"_a, "A matrix with its dimensions exchanged.");
  m.def("permute", &permute, "x"_a, "order"_a);
  m.def("broadcast_to", &broadcast_to, "x"_a, "shape"_a);
  m.def("expand", &expand, "x"_a, "shape"_a);
  m.def("slice", &slice, "x"_a, "dim"_a, "start"_a, "stop"_a = nb::none(), "step"_a = 1);
  m.def("select", &select, "x"_a, "dim"_a, "index"_a);
  m.def("squeeze", nb::overload_cast<const Tensor&, int>(&squeeze), "x"_a, "dim"_a);
  m.def("squeeze", nb::overload_cast<const Tensor&>(&squeeze), "x"_a);
  m.def("unsqueeze", &unsqueeze, "x"_a, "dim"_a);
  m.def("split", nb::overload_cast<const Tensor&, std::int64_t, int>(&split), "x"_a, "size"_a, "dim"_a = 0);
  m.def("split", nb::overload_cast<const Tensor&, const std::vector<std::int64_t>&, int>(&split), "x"_a, "sizes"_a, "dim"_a = 0);
  m.def("unstack", &unstack, "x"_a, "dim"_a = 0);
  m.def("chunk", &chunk, "x"_a, "count"_a, "dim"_a = 0);
  m.def("movedim", &movedim, "x"_a, "from_"_a, "to"_a);
  m.def("diagonal", &diagonal, "x"_a, "offset"_a = 0, "a"_a = -2, "b"_a = -1, Released());
}

void bind_indices(nb::module_& m) {
  m.def("gather", &gather, "x"_a, "dim"_a, "index"_a, Released());
  m.def("scatter", nb::overload_cast<const Tensor&, int, const Tensor&, const Tensor&>(&scatter), "x"_a, "dim"_a, "index"_a, "source"_a,
        Released());
  m.def(
      "scatter", [](const Tensor& x, int dim, const Tensor& index, const Number& value) { return scatter(x, dim, index, double(value)); },
      "x"_a, "dim"_a, "index"_a, "value"_a, Released());
  m.def("scatter_add", &scatter_add, "x"_a, "dim"_a, "index"_a, "source"_a, Released());
  m.def("index_select", &index_select, "x"_a, "dim"_a, "index"_a, Released());
  m.def("index_add", &index_add, "x"_a, "dim"_a, "index"_a, "source"_a, Released());
  m.def("index_copy_", &index_copy_, "x"_a, "dim"_a, "index"_a, "source"_a, Released());
  m.def("nonzero", &nonzero, "x"_a, Released());
  m.def("masked_select", &masked_select, "x"_a, "mask"_a, Released());
  m.def("embedding", nb::overload_cast<const Tensor&, const Tensor&>(&embedding), "table"_a, "indices"_a, Released());
  m.def(
      "embedding",
      [](const Tensor& table, const MaybeTensor& positions, const Tensor& ids, double p, bool training) {
        return embedding(table, given(positions), ids, p, training);
      },
      "table"_a, "positions"_a.none(), "ids"_a, "p"_a = 0, "training"_a = true, Released());
  m.def("one_hot", &one_hot, "indices"_a, "classes"_a, "dtype"_a = DType::f32, Released());
  m.def("tril", &tril, "x"_a, "diagonal"_a = 0, Released());
  m.def("triu", &triu, "x"_a, "diagonal"_a = 0, Released());
  m.def(
      "sort", [](const Tensor& x, int dim, bool descending) { return pair_of(sort(x, dim, descending)); }, "x"_a, "dim"_a = -1,
      "descending"_a = false, Released());
  m.def("searchsorted", &searchsorted, "sorted"_a, "x"_a, "right"_a = false, Released());
  m.def("topk", [](const Tensor& x, std::int64_t k, int dim) { return pair_of(topk(x, k, dim)); }, "x"_a, "k"_a, "dim"_a = -1, Released());
}

}  // namespace

void bind_shapes(nb::module_& m) {
  bind_views(m);
  bind_indices(m);
  m.def("cat", [](const Tensors& xs, int dim) { return cat(xs, dim); }, "xs"_a, "dim"_a = 0, Released());
  m.def(
      "pad_sequence", [](const Tensors& sequences, double value) { return pad_sequence(sequences, value); }, "sequences"_a, "value"_a = 0,
      Released());
  m.def("stack", [](const Tensors& xs, int dim) { return stack(xs, dim); }, "xs"_a, "dim"_a = 0, Released());
  m.def(
      "pad",
      [](const Tensor& x, int dim, std::int64_t before, std::int64_t after, const Number& value) {
        return pad(x, dim, before, after, value);
      },
      "x"_a, "dim"_a, "before"_a, "after"_a, "value"_a = Number{}, Released());
  m.def("flip", &flip, "x"_a, "dims"_a = Dims(), Released());
  m.def("roll", &roll, "x"_a, "shift"_a, "dim"_a, Released());
  // By name, as PyTorch's x.repeat(2, 1) is tile.
  m.def("repeat", &repeat, "x"_a, "count"_a, nb::kw_only(), "dim"_a, Released());
  m.def("repeat_interleave", &repeat_interleave, "x"_a, "count"_a, "dim"_a, Released());
  m.def("tile", &tile, "x"_a, "counts"_a, Released());
  m.def("diag", &diag, "x"_a, "offset"_a = 0, Released());
  m.def("sliding_window", &sliding_window, "x"_a, "dim"_a, "size"_a, "step"_a = 1, Released());

  m.def("clone", &clone, "x"_a, Released());
  m.def("contiguous", &contiguous, "x"_a, Released());
  m.def("cast", &cast, "x"_a, "dtype"_a, Released());
  m.def("to", [](const Tensor& x, DType dtype) { return x.to(dtype); }, "x"_a, "dtype"_a, Released());
  m.def(
      "to",
      [](const Tensor& x, const DeviceLike& device, std::optional<DType> dtype) {
        const Tensor there = x.to(device.get());
        return dtype ? there.to(*dtype) : there;
      },
      "x"_a, "device"_a, "dtype"_a = nb::none(), Released());
  m.def("copy_", &copy_, "target"_a, "source"_a, Released());
  m.def("fill_", [](const Tensor& x, const Number& value) { return fill_(x, value); }, "x"_a, "value"_a, Released());
  m.def("zero_", &zero_, "x"_a, Released());
  m.def("view", &view, "x"_a, "shape"_a,
        "The same memory in another shape, of which one size may be -1. Error where the strides do not allow it.");
}

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
