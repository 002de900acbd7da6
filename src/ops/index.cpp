#include "ops/index.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/factory.h"
#include "ops/kernels/copy.h"
#include "ops/kernels/index.h"
#include "ops/op.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/view.h"

namespace tern {

namespace {

/// Kept of the ops of this file.
struct Kept {
  Tensor index;  ///< of i64
};

/// x as (A, N, C) around a dimension of length N. The dimensions on either side are merged, which may take a copy.
Tensor merged_around(const Tensor& x, int dim) {
  const std::int64_t before = numel(Shape(x.shape().begin(), x.shape().begin() + dim));
  const std::int64_t after = numel(Shape(x.shape().begin() + dim + 1, x.shape().end()));
  return reshape(x, {before, x.shape()[dim], after});
}

Shape with_size(Shape shape, int dim, std::int64_t size) {
  shape[dim] = size;
  return shape;
}

/// Adds slices of source to y, contiguous, at the indices, in place.
void add_slices_to(const Tensor& y, int dim, const Tensor& index, const Tensor& source) {
  const NoGrad unrecorded;
  const Tensor from = merged_around(source, dim), into = merged_around(y, dim);
  launch(y.device(), kernels::IndexAdd{into, index, from});
}

/// x with a source added at the indices along a dimension, or zeros with it if x is undefined: whole slices as the derivative of
/// index_select, or single elements as that of gather.
struct AddAt {
  Op op;
  Shape shape;
  int dim;
  bool slices;

  Result<Tensor, Kept> forward(const Tensor& x, const Tensor& index, const Tensor& source) const {
    const NoGrad unrecorded;
    const Tensor y = x.defined() ? clone(x) : zeros(shape, source.dtype(), source.device());
    if (slices) add_slices_to(y, dim, index, source);
    else launch(y.device(), kernels::ScatterAdd{y, index, source, dim});
    return {y, {index}};
  }
  Tensors backward(const Backward& call, const Kept& kept) const {
    const auto taken = slices ? index_select : gather;
    return {call.needs(0) ? call.grad() : Tensor(), Tensor(), call.needs(2) ? taken(call.grad(), dim, kept.index) : Tensor()};
  }
};
AddAt slices_added(const Shape& shape, int dim) { return {{"index_add"}, shape, dim, true}; }
AddAt elements_added(const Shape& shape, int dim) { return {{"scatter_add"}, shape, dim, false}; }

void check_along(const char* op, const Tensor& x, int dim, const Tensor& index) {
  if (index.dims() != x.dims() || with_size(index.shape(), dim, 0) != with_size(x.shape(), dim, 0))
    fail(op,
         fmt::format("expected indices like x {} but for dimension {}, but got {}", to_string(x.shape()), dim, to_string(index.shape())));
}

/// Elements of x at the indices along a dimension: whole slices, or single elements.
struct TakeAt {
  Op op;
  Shape from;
  int dim;
  bool slices;

  Result<Tensor, Kept> forward(const Tensor& x, const Tensor& indices) const {
    const Tensor index = detail::as_indices(op.name, indices);
    if (!slices) check_along(op.name, x, dim, index);
    else if (index.dims() != 1) fail(op.name, fmt::format("expected indices (I) but got {}", to_string(index.shape())));
    const Tensor y = empty(slices ? with_size(from, dim, index.size(0)) : index.shape(), x.dtype(), x.device());
    const NoGrad unrecorded;
    if (slices) {
      const Tensor rows = merged_around(x, dim), into = merged_around(y, dim);
      launch(x.device(), kernels::IndexSelect{rows, index, into});
    } else {
      launch(x.device(), kernels::Gather{x, index, y, dim});
    }
    return {y, {index}};
  }
  Tensors backward(const Backward& call, const Kept& kept) const {
    if (!slices) return {tern::call(elements_added(from, dim), Tensor(), kept.index, call.grad())};
    if (context().grad) return {tern::call(slices_added(from, dim), Tensor(), kept.index, call.grad())};
    GradientTarget to = call.sink(0, from, call.grad());
    start_from_zeros({&to});
    add_slices_to(to.gradient, dim, kept.index, call.grad());
    return {to.result()};
  }
};

struct Scatter {
  static constexpr Op op{"scatter"};
  int dim;

  Result<Tensor, Kept> forward(const Tensor& x, const Tensor& index, const Tensor& source) const {
    const NoGrad unrecorded;
    const Tensor y = clone(x);
    // Row-major offset of each source in y. An index outside the range stays outside of y.
    const Strides strides = contiguous_strides(x.shape());
    const Tensor is_outside = logical_or(lt(index, 0), ge(index, static_cast<double>(x.shape()[dim])));
    Tensor at = index * static_cast<double>(strides[dim]);
    for (int i = 0; i < x.dims(); ++i) {
      Shape line = Shape::filled(x.dims(), 1);
      line[i] = x.shape()[i];
      if (i != dim) at = at + reshape(arange(x.shape()[i], DType::i64, x.device()), line) * static_cast<double>(strides[i]);
    }
    index_copy_(reshape(y, {y.numel()}), 0, reshape(where(is_outside, -1.0, at), {at.numel()}), reshape(source, {source.numel()}));
    return {y, {index}};
  }
  Tensors backward(const Backward& call, const Kept& kept) const {
    const auto& [at] = kept;
    const Tensor& g = call.grad();
    return {call.needs(0) ? scatter(g, dim, at, 0.0) : Tensor(), Tensor(), call.needs(2) ? gather(g, dim, at) : Tensor()};
  }
};

struct Triangle {
  Op op;
  std::int64_t diagonal;
  bool upper;

  Result<Tensor> forward(const Tensor& x) const {
    const Tensor y = empty_like(x);
    launch(x.device(), kernels::Triangle{x, y, diagonal, upper});
    return {y};
  }
  Tensors backward(const Backward& call) const { return {tern::call(*this, call.grad())}; }
};

/// The first k of the sorted elements along a dimension, with their indices; in one pass if `selects`.
struct Sort {
  Op op;
  Shape from;
  int dim;
  std::int64_t k;
  bool descending, selects = false;

  Result<Tensors, Kept> forward(const Tensor& x) const {
    const NoGrad unrecorded;
    const Tensor rows = transpose(x, dim, -1);
    Shape shape = rows.shape();
    shape.back() = k;
    const Tensor values = empty(shape, x.dtype(), x.device()), indices = empty(shape, DType::i64, x.device());
    const Tensor places = transpose(indices, dim, -1), y = transpose(values, dim, -1);
    if (selects) launch(x.device(), kernels::Topk{rows, values, indices});
    else launch(x.device(), kernels::Sort{rows, values, indices, descending});
    return {{y, places}, {places.detach()}};  // a kept output would have a history
  }
  Tensors backward(const Backward& call, const Kept& kept) const {
    return {tern::call(elements_added(from, dim), Tensor(), kept.index, call.grad())};
  }
};

/// Of ids (B, T), with positions and dropout.
struct FusedEmbedding {
  static constexpr Op op{"embedding"};
  Shape table_shape, positions_shape;
  double p;
  PhiloxState draws;

  Tensor plain(const Tensor& table, const Tensor& positions, const Tensor& ids) const {
    const Tensor rows = embedding(table, ids), x = positions.defined() ? rows + slice(positions, 0, 0, ids.size(1)) : rows;
    return p > 0 ? detail::dropout_at(x, p, draws) : x;
  }
  Result<Tensor, Kept> forward(const Tensor& table, const Tensor& positions, const Tensor& ids) const {
    const Tensor rows = contiguous(table), places = detail::contiguous_or_none(positions), index = contiguous(ids),
                 flat = reshape(index, {ids.numel()});  // before the kernel, which belongs to the op that ends next
    const Tensor y = empty({ids.size(0), ids.size(1), table.size(1)}, table.dtype(), table.device());
    launch(Cuda{}, kernels::Embed{rows, view_of(places), index, p, draws, y});
    return {y, {flat}};
  }
  Tensors backward(const Backward& call, const Kept& kept) const {
    const Tensor g = contiguous(call.grad());
    if (context().grad) {
      // Linear in both tables, so zeros take their place.
      const auto like = [&](const Shape& shape) { return zeros(shape, g.dtype(), g.device()); };
      const Tensor at = reshape(kept.index, {g.size(0), g.size(1)});
      return vjp(call, {like(table_shape), call.needs(1) ? like(positions_shape) : Tensor()},
                 [&](const Tensors& in) -> Tensors { return {plain(in[0], in[1], at)}; });
    }
    GradientTarget to_table = call.sink(0, table_shape, g), to_positions = call.sink(1, positions_shape, g);
    start_from_zeros({&to_table, &to_positions});
    const Tensor dsum = p > 0 ? empty_like(g) : g;
    launch(Cuda{}, kernels::EmbedGrad{g, p, draws, dsum, to_positions.view()});
    if (to_table) add_slices_to(to_table.gradient, 0, kept.index, reshape(dsum, {kept.index.numel(), table_shape[1]}));
    return {to_table.result(), to_positions.result()};
  }
};

/// Checks an op that writes or adds slices of a source at indices (I) along x's dimension `dim`. Returns the dimension counted from 0.
int check_slices(const char* op, const Tensor& x, int dim, const Tensor& index, const Tensor& source) {
  dim = normalize_dim(dim, x.dims(), op);
  if (index.dims() != 1 || source.shape() != with_size(x.shape(), dim, index.size(0)) || source.dtype() != x.dtype())
    fail(op, fmt::format("expected indices (I) and a source like x {} {} with I slices along dimension {} but got {} and {} {}",
                         name(x.dtype()), to_string(x.shape()), dim, to_string(index.shape()), name(source.dtype()),
                         to_string(source.shape())));
  return dim;
}

}  // namespace

static Tensor taken(const char* op, const Tensor& x, int dim, const Tensor& index, bool slices) {
  return call(TakeAt{{.name = op, .tangent = Tangent::linear}, x.shape(), normalize_dim(dim, x.dims(), op), slices}, x, index);
}
Tensor index_select(const Tensor& x, int dim, const Tensor& index) { return taken("index_select", x, dim, index, true); }
Tensor gather(const Tensor& x, int dim, const Tensor& index) { return taken("gather", x, dim, index, false); }

Tensor index_add(const Tensor& x, int dim, const Tensor& indices, const Tensor& source) {
  const Tensor index = detail::as_indices("index_add", indices);
  return call(slices_added(x.shape(), check_slices("index_add", x, dim, index, source)), x, index, source);
}

Tensor index_copy_(const Tensor& x, int dim, const Tensor& indices, const Tensor& source) {
  check_one_device("index_copy_", {&x, &indices, &source});
  const Tensor index = detail::as_indices("index_copy_", indices);
  dim = check_slices("index_copy_", x, dim, index, source);
  begin_in_place("index_copy_", x, {index, source});
  const NoGrad unrecorded;
  const Tensor from = merged_around(source, dim), into = merged_around(x, dim);
  launch(x.device(), kernels::IndexCopy{into, index, from});
  if (into.impl().storage != x.impl().storage) copy_(x, reshape(into, x.shape()));  // its dimensions could not be merged without a copy
  return x;
}

Tensor embedding(const Tensor& table, const Tensor& ids) {
  if (table.dims() != 2) fail("embedding", fmt::format("expected a table (V, D) but got {}", to_string(table.shape())));
  check_one_device("embedding", {&table, &ids});
  const Tensor indices = detail::as_indices("embedding", ids);
  Shape shape = indices.shape();
  shape.push_back(table.size(1));
  return reshape(index_select(table, 0, reshape(indices, {indices.numel()})), shape);
}

Tensor embedding(const Tensor& table, const Tensor& positions, const Tensor& ids_, double p, bool training) {
  check_one_device("embedding", {&table, &positions, &ids_});
  const Tensor ids = detail::as_indices("embedding", ids_);
  if (table.dims() != 2 || ids.dims() != 2)
    fail("embedding",
         fmt::format("expected a table (V, D) and indices (B, T) but got {} and {}", to_string(table.shape()), to_string(ids.shape())));
  if (positions.defined() && (positions.dims() != 2 || positions.size(0) < ids.size(1) || positions.size(1) != table.size(1) ||
                              positions.dtype() != table.dtype()))
    fail("embedding", fmt::format("expected positions (at least {}, {}) of the table's dtype {} but got {} {}", ids.size(1), table.size(1),
                                  name(table.dtype()), name(positions.dtype()), to_string(positions.shape())));
  detail::check_probability("embedding", p);
  const std::int64_t count = ids.numel() * table.size(1);
  const bool has_kernel = is_floating(table.dtype()) && count > 0 &&
                          cuda_has(table.device(), [&](auto dev) { return kernels::has_embed(dev, count, table.size(1)); });
  const double probability = training ? p : 0;
  const PhiloxState draws = probability > 0 ? context().generator.reserve(count) : PhiloxState{};
  const FusedEmbedding f{table.shape(), positions.defined() ? positions.shape() : Shape{}, probability, draws};
  return has_kernel ? call(f, table, positions, ids) : f.plain(table, positions, ids);
}

Tensor scatter_add(const Tensor& x, int dim, const Tensor& indices, const Tensor& source) {
  const Tensor index = detail::as_indices("scatter_add", indices);
  dim = normalize_dim(dim, x.dims(), "scatter_add");
  check_along("scatter_add", x, dim, index);
  if (source.shape() != index.shape() || source.dtype() != x.dtype())
    fail("scatter_add", fmt::format("expected a source {} {} but got {} {}", name(x.dtype()), to_string(index.shape()),
                                    name(source.dtype()), to_string(source.shape())));
  return call(elements_added(x.shape(), dim), x, index, source);
}

Tensor scatter(const Tensor& x, int dim, const Tensor& indices, const Tensor& source) {
  const Tensor index = detail::as_indices("scatter", indices);
  dim = normalize_dim(dim, x.dims(), "scatter");
  Shape expected = x.shape();
  if (index.dims() == x.dims()) expected[dim] = index.shape()[dim];
  if (index.shape() != expected || source.shape() != expected || source.dtype() != x.dtype())
    fail("scatter",
         fmt::format("expected indices and a source of {}, both like x {} but for dimension {}, but got {} and {} {}", name(x.dtype()),
                     to_string(x.shape()), dim, to_string(index.shape()), name(source.dtype()), to_string(source.shape())));
  return call(Scatter{dim}, x, index, source);
}

Tensor scatter(const Tensor& x, int dim, const Tensor& index, double value) {
  check_one_device("scatter", {&x, &index});
  return scatter(x, dim, index, full(index.shape(), value, x.dtype(), x.device()));
}

static Tensor triangle(const char* op, const Tensor& x, std::int64_t diagonal, bool upper) {
  if (x.dims() < 2) fail(op, fmt::format("expected at least two dimensions but got {}", to_string(x.shape())));
  return call(Triangle{{op}, std::clamp(diagonal, -x.size(-2), x.size(-1)), upper}, x);  // further out, nothing or everything is kept
}
Tensor tril(const Tensor& x, std::int64_t diagonal) { return triangle("tril", x, diagonal, false); }
Tensor triu(const Tensor& x, std::int64_t diagonal) { return triangle("triu", x, diagonal, true); }

Tensor one_hot(const Tensor& indices_, std::int64_t classes, DType dtype) {
  const Tensor indices = detail::as_indices("one_hot", indices_);
  if (classes < 0) fail("one_hot", fmt::format("expected a number of classes >= 0 but got {}", classes));
  return cast(eq(unsqueeze(indices, -1), arange(classes, DType::i64, indices.device())), dtype);
}

namespace {

struct SearchSorted {
  static constexpr Op op{"searchsorted"};
  bool right;

  Result<Tensor> forward(const Tensor& rows, const Tensor& x) const {
    if (rows.dtype() != x.dtype() || x.dtype() == DType::boolean)
      fail(op.name, fmt::format("expected operands of one numeric dtype but got {} and {}", name(rows.dtype()), name(x.dtype())));
    Shape of_rows = rows.shape(), of_x = x.shape();
    if (rows.dims() > 1 && x.dims() == rows.dims()) of_rows.back() = of_x.back() = 0;
    if (rows.dims() < 1 || (rows.dims() > 1 && of_rows != of_x))
      fail(op.name,
           fmt::format("expected rows (N), or (..., N) and x (..., M), but got {} and {}", to_string(rows.shape()), to_string(x.shape())));
    const Tensor places = empty(x.shape(), DType::i64, x.device());
    if (x.numel() == 0) return {places};
    const std::int64_t columns = rows.dims() > 1 ? x.size(-1) : x.numel();
    const auto matrix = [](const Tensor& t, std::int64_t width) { return reshape(t, {width > 0 ? t.numel() / width : 1, width}); };
    const Tensor in = contiguous(matrix(rows.detach(), rows.size(-1))), of = contiguous(matrix(x.detach(), columns)),
                 to = matrix(places, columns);
    launch(x.device(), kernels::Searchsorted{in, of, to, right});
    return {places};
  }
};

}  // namespace

Tensor searchsorted(const Tensor& sorted, const Tensor& x, bool right) { return call(SearchSorted{right}, sorted, x); }

static Sorted sorted(const Sort& f, const Tensor& x) {
  const Tensors y = call(f, x);
  return {y[0], y[1]};
}

Sorted sort(const Tensor& x, int dim, bool descending) {
  if (x.dtype() == DType::boolean) fail("sort", "expected a numeric dtype but got bool");
  if (x.dims() == 0 && (dim == 0 || dim == -1)) return {x, zeros({}, DType::i64, x.device())};
  dim = normalize_dim(dim, x.dims(), "sort");
  return sorted({{"sort"}, x.shape(), dim, x.shape()[dim], descending}, x);
}

Sorted topk(const Tensor& x, std::int64_t k, int dim) {
  if (x.dtype() == DType::boolean) fail("topk", "expected a numeric dtype but got bool");
  dim = normalize_dim(dim, x.dims(), "topk");
  const std::int64_t length = x.shape()[dim];
  if (k < 0 || k > length) fail("topk", fmt::format("expected k in [0, {}] for {} but got {}", length, to_string(x.shape()), k));
  if (k < 1 || k > kernels::topk_limit || size_of(x.dtype()) > 4 || length >= std::int64_t{1} << 32) {
    const Sorted sorted = sort(x, dim, true);
    return {slice(sorted.values, dim, 0, k), slice(sorted.indices, dim, 0, k)};
  }
  return sorted({{"topk"}, x.shape(), dim, k, true, true}, x);
}

}  // namespace tern
