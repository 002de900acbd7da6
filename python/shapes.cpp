// Ops that move elements: views, joins, orders, indices (ops/view.h, join.h, rearrange.h, index.h, indexing.h, copy.h).
#include "binding.h"
#include "ops/copy.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/indexing.h"
#include "ops/join.h"
#include "ops/rearrange.h"
#include "ops/view.h"

namespace tern::python {

namespace {

/// Results with names are tuples here.
std::pair<Tensor, Tensor> pair_of(const Sorted& sorted) { return {sorted.values, sorted.indices}; }

void bind_views(nb::module_& m) {
  m.def("reshape", &reshape, "x"_a, "shape"_a, Released(), "One size may be -1. A view where the strides allow it, a copy otherwise.");
  m.def("flatten", &flatten, "x"_a, "first"_a = 0, "last"_a = -1, Released(), "Dimensions first .. last (inclusive) merged into one.");
  m.def("transpose", &transpose, "x"_a, "a"_a, "b"_a);
  m.def("permute", &permute, "x"_a, "order"_a);
  m.def("broadcast_to", &broadcast_to, "x"_a, "shape"_a);
  m.def("expand", &expand, "x"_a, "shape"_a, "As broadcast_to, where -1 keeps a size.");
  m.def("slice", &slice, "x"_a, "dim"_a, "start"_a, "stop"_a = nb::none(), "step"_a = 1);
  m.def("select", &select, "x"_a, "dim"_a, "index"_a, "The slice at one index, without the dimension.");
  m.def("squeeze", nb::overload_cast<const Tensor&, int>(&squeeze), "x"_a, "dim"_a);
  m.def("squeeze", nb::overload_cast<const Tensor&>(&squeeze), "x"_a);
  m.def("unsqueeze", &unsqueeze, "x"_a, "dim"_a);
  m.def("split", nb::overload_cast<const Tensor&, std::int64_t, int>(&split), "x"_a, "size"_a, "dim"_a = 0);
  m.def("split", nb::overload_cast<const Tensor&, const std::vector<std::int64_t>&, int>(&split), "x"_a, "sizes"_a, "dim"_a = 0);
  m.def("unstack", &unstack, "x"_a, "dim"_a = 0, "The slices of x along a dimension, without it.");
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
  m.def("nonzero", &nonzero, "x"_a, Released(), "The indices (N, dims) of the elements that are not 0, i64.");
  m.def("masked_select", &masked_select, "x"_a, "mask"_a, Released());
  m.def("embedding", &embedding, "table"_a, "indices"_a, Released());
  m.def("one_hot", &one_hot, "indices"_a, "classes"_a, "dtype"_a = DType::f32, Released());
  m.def("tril", &tril, "x"_a, "diagonal"_a = 0, Released());
  m.def("triu", &triu, "x"_a, "diagonal"_a = 0, Released());
  m.def(
      "sort", [](const Tensor& x, int dim, bool descending) { return pair_of(sort(x, dim, descending)); }, "x"_a, "dim"_a = -1,
      "descending"_a = false, Released(), "(values, indices). Stable; NaN counts as largest.");
  m.def(
      "topk", [](const Tensor& x, std::int64_t k, int dim) { return pair_of(topk(x, k, dim)); }, "x"_a, "k"_a, "dim"_a = -1, Released(),
      "(values, indices) of the k largest along a dimension, in descending order.");
}

}  // namespace

void bind_shapes(nb::module_& m) {
  bind_views(m);
  bind_indices(m);
  m.def("cat", [](const Tensors& xs, int dim) { return cat(xs, dim); }, "xs"_a, "dim"_a = 0, Released());
  m.def("stack", [](const Tensors& xs, int dim) { return stack(xs, dim); }, "xs"_a, "dim"_a = 0, Released());
  m.def(
      "pad",
      [](const Tensor& x, int dim, std::int64_t before, std::int64_t after, const Number& value) {
        return pad(x, dim, before, after, value);
      },
      "x"_a, "dim"_a, "before"_a, "after"_a, "value"_a = Number{}, Released());
  m.def("flip", &flip, "x"_a, "dims"_a = Dims(), Released());
  m.def("roll", &roll, "x"_a, "shift"_a, "dim"_a, Released());
  m.def("repeat", &repeat, "x"_a, "count"_a, "dim"_a, Released(), "Each element `count` times in a row along a dimension, as in NumPy.");
  m.def("tile", &tile, "x"_a, "counts"_a, Released());
  m.def("diag", &diag, "x"_a, "offset"_a = 0, Released());
  m.def("sliding_window", &sliding_window, "x"_a, "dim"_a, "size"_a, "step"_a = 1, Released());

  m.def("clone", &clone, "x"_a, Released(), "A contiguous copy in new memory.");
  m.def("contiguous", &contiguous, "x"_a, Released());
  m.def("cast", &cast, "x"_a, "dtype"_a, Released(),
        "x with another dtype; x itself where it has it. Gradients flow between floating dtypes.");
  m.def("copy_", &copy_, "target"_a, "source"_a, Released(), "Writes source into target in place, on any device. Returns target.");
  m.def(
      "fill_", [](const Tensor& x, const Number& value) { return fill_(x, value); }, "x"_a, "value"_a, Released(),
      "Sets every element, in place. Returns x.");
}

}  // namespace tern::python
