#include "ops/index.h"

#include <fmt/format.h>

#include <algorithm>

#include "autodiff/vjp.h"
#include "ops/copy.h"
#include "ops/detail/dropout_at.h"
#include "ops/factory.h"
#include "ops/kernels/copy.h"
#include "ops/kernels/embedding.h"
#include "ops/kernels/index.h"
#include "ops/op.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "tensor/view_of.h"

namespace tern {

namespace {

/// The indices of an op on x, as i64.
Tensor checked_indices(const char* op, const Tensor& x, const Tensor& index) {
  check_one_device(op, {&x, &index});
  return detail::as_indices(op, index);
}

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

}  // namespace

/// Adds slices of source to y, contiguous, at the indices, in place.
static void add_slices_to(const Tensor& y, int dim, const Tensor& index, const Tensor& source) {
  const NoGrad unrecorded;
  const Tensor from = merged_around(source, dim), into = merged_around(y, dim);
  on(y.device(), [&](auto dev) { kernels::index_add(dev, into.view(), index.view(), from.view()); });
}

/// Zeros of a shape with slices of source added at the indices: the derivative of index_select.
static Tensor add_slices(const Shape& shape, int dim, const Tensor& index, const Tensor& source) {
  Tensor y = zeros(shape, source.dtype(), source.device());
  add_slices_to(y, dim, index, source);
  return record("index_add", y, {source}, {index},
                [dim](const Backward& call) -> Tensors { return {index_select(call.grad(), dim, call.saved(0))}; });
}

Tensor index_select(const Tensor& x, int dim, const Tensor& indices) {
  const Tensor index = checked_indices("index_select", x, indices);
  dim = normalize_dim(dim, x.dims(), "index_select");
  if (index.dims() != 1) fail("index_select", fmt::format("expected indices (I) but got {}", to_string(index.shape())));
  Tensor y = empty(with_size(x.shape(), dim, index.size(0)), x.dtype(), x.device());
  {
    const NoGrad unrecorded;
    const Tensor from = merged_around(x, dim), into = merged_around(y, dim);
    on(x.device(), [&](auto dev) { kernels::index_select(dev, from.view(), index.view(), into.view()); });
  }
  return record("index_select", y, {x}, {index}, Linear{[&](const Tensors& t) -> Tensors { return {index_select(t[0], dim, index)}; }},
                [dim, shape = x.shape()](const Backward& call) -> Tensors {
                  if (context().grad) return {add_slices(shape, dim, call.saved(0), call.grad())};
                  GradientTarget to = call.sink(0, shape, call.grad());
                  start_from_zeros({&to});
                  add_slices_to(to.gradient, dim, call.saved(0), call.grad());
                  return {to.result()};
                });
}

/// Checks an op that writes or adds slices of a source at indices (I) along x's dimension `dim`. Returns the dimension counted from 0.
static int check_slices(const char* op, const Tensor& x, int dim, const Tensor& index, const Tensor& source) {
  check_one_device(op, {&x, &source});
  dim = normalize_dim(dim, x.dims(), op);
  if (index.dims() != 1 || source.shape() != with_size(x.shape(), dim, index.size(0)) || source.dtype() != x.dtype())
    fail(op, fmt::format("expected indices (I) and a source like x {} {} with I slices along dimension {} but got {} and {} {}",
                         name(x.dtype()), to_string(x.shape()), dim, to_string(index.shape()), name(source.dtype()),
                         to_string(source.shape())));
  return dim;
}

Tensor index_add(const Tensor& x, int dim, const Tensor& indices, const Tensor& source) {
  const Tensor index = checked_indices("index_add", x, indices);
  dim = check_slices("index_add", x, dim, index, source);
  Tensor y;
  {
    const NoGrad unrecorded;
    y = clone(x);
    const Tensor from = merged_around(source, dim), into = merged_around(y, dim);
    on(x.device(), [&](auto dev) { kernels::index_add(dev, into.view(), index.view(), from.view()); });
  }
  return record("index_add", y, {x, source}, {index}, [dim](const Backward& call) -> Tensors {
    return {call.needs(0) ? call.grad() : Tensor(), call.needs(1) ? index_select(call.grad(), dim, call.saved(0)) : Tensor()};
  });
}

Tensor index_copy_(const Tensor& x, int dim, const Tensor& indices, const Tensor& source) {
  const Tensor index = checked_indices("index_copy_", x, indices);
  dim = check_slices("index_copy_", x, dim, index, source);
  begin_in_place("index_copy_", x, {index, source});
  const NoGrad unrecorded;
  const Tensor from = merged_around(source, dim), into = merged_around(x, dim);
  on(x.device(), [&](auto dev) { kernels::index_copy(dev, into.view(), index.view(), from.view()); });
  if (into.impl().storage != x.impl().storage) copy_(x, reshape(into, x.shape()));  // its dimensions could not be merged without a copy
  return x;
}

Tensor embedding(const Tensor& table, const Tensor& ids) {
  if (table.dims() != 2) fail("embedding", fmt::format("expected a table (V, D) but got {}", to_string(table.shape())));
  const Tensor indices = checked_indices("embedding", table, ids);
  Shape shape = indices.shape();
  shape.push_back(table.size(1));
  return reshape(index_select(table, 0, reshape(indices, {indices.numel()})), shape);
}

/// Rows of the table at ids (B, T), plus those of the positions.
static Tensor embedding_sum(const Tensor& table, const Tensor& positions, const Tensor& ids) {
  const Tensor x = embedding(table, ids);
  return positions.defined() ? x + slice(positions, 0, 0, ids.size(1)) : x;
}

Tensor fused_embedding(const Tensor& table, const Tensor& positions, const Tensor& ids_, double p, bool training) {
  check_one_device("fused_embedding", {&table, &positions});
  const Tensor ids = checked_indices("fused_embedding", table, ids_);
  if (table.dims() != 2 || ids.dims() != 2)
    fail("fused_embedding",
         fmt::format("expected a table (V, D) and indices (B, T) but got {} and {}", to_string(table.shape()), to_string(ids.shape())));
  if (positions.defined() && (positions.dims() != 2 || positions.size(0) < ids.size(1) || positions.size(1) != table.size(1) ||
                              positions.dtype() != table.dtype()))
    fail("fused_embedding", fmt::format("expected positions (at least {}, {}) of the table's dtype {} but got {} {}", ids.size(1),
                                        table.size(1), name(table.dtype()), name(positions.dtype()), to_string(positions.shape())));
  if (!(p >= 0 && p < 1)) fail("fused_embedding", fmt::format("expected a probability in [0, 1) but got {}", p));
  const std::int64_t count = ids.numel() * table.size(1);
  const bool has_kernel = is_floating(table.dtype()) && count > 0 &&
                          cuda_has(table.device(), [&](auto dev) { return kernels::has_embed(dev, count, table.size(1)); });
  if (!has_kernel) return dropout(embedding_sum(table, positions, ids), p, training);

  const Tensor rows = contiguous(table), places = positions.defined() ? contiguous(positions) : positions, index = contiguous(ids);
  const double probability = training ? p : 0;
  const PhiloxState draws = probability > 0 ? context().generator.reserve(count) : PhiloxState{};
  const Tensor y = empty({ids.size(0), ids.size(1), table.size(1)}, table.dtype(), table.device());
  on_cuda("fused_embedding", y.device(),
          [&](auto dev) { kernels::embed(dev, rows.view(), view_of(places), index.view(), probability, draws, y.view()); });
  const Shape table_shape = table.shape(), positions_shape = positions.defined() ? positions.shape() : Shape{};
  return record("fused_embedding", y, {rows, places}, {reshape(index, {ids.numel()})}, [=](const Backward& call) -> Tensors {
    const Tensor g = contiguous(call.grad());
    if (context().grad) {
      // Linear in both tables, so zeros take their place.
      const auto like = [&](const Shape& shape) { return zeros(shape, g.dtype(), g.device()); };
      const Tensor at = reshape(call.saved(0), {g.size(0), g.size(1)});
      return vjp(call, {like(table_shape), call.needs(1) ? like(positions_shape) : Tensor()}, [&](const Tensors& in) -> Tensors {
        const Tensor x = embedding_sum(in[0], in[1], at);
        return {probability > 0 ? detail::dropout_at(x, probability, draws) : x};
      });
    }
    GradientTarget to_table = call.sink(0, table_shape, g), to_positions = call.sink(1, positions_shape, g);
    start_from_zeros({&to_table, &to_positions});
    const Tensor dsum = probability > 0 ? empty_like(g) : g;
    on_cuda("fused_embedding", g.device(),
            [&](auto dev) { kernels::embed_grad(dev, g.view(), probability, draws, dsum.view(), to_positions.view()); });
    if (to_table) add_slices_to(to_table.gradient, 0, call.saved(0), reshape(dsum, {call.saved(0).numel(), table_shape[1]}));
    return {to_table.result(), to_positions.result()};
  });
}

static void check_along(const char* op, const Tensor& x, int dim, const Tensor& index) {
  if (index.dims() != x.dims() || with_size(index.shape(), dim, 0) != with_size(x.shape(), dim, 0))
    fail(op,
         fmt::format("expected indices like x {} but for dimension {}, but got {}", to_string(x.shape()), dim, to_string(index.shape())));
}

/// Zeros of a shape with source added at the indices along a dimension: the derivative of gather.
static Tensor scatter(const Shape& shape, int dim, const Tensor& index, const Tensor& source) {
  Tensor y = zeros(shape, source.dtype(), source.device());
  on(y.device(), [&](auto dev) { kernels::scatter_add(dev, y.view(), index.view(), source.view(), dim); });
  return record("scatter_add", y, {source}, {index},
                [dim](const Backward& call) -> Tensors { return {gather(call.grad(), dim, call.saved(0))}; });
}

Tensor gather(const Tensor& x, int dim, const Tensor& indices) {
  const Tensor index = checked_indices("gather", x, indices);
  dim = normalize_dim(dim, x.dims(), "gather");
  check_along("gather", x, dim, index);
  Tensor y = empty(index.shape(), x.dtype(), x.device());
  on(x.device(), [&](auto dev) { kernels::gather(dev, x.view(), index.view(), y.view(), dim); });
  return record("gather", y, {x}, {index}, Linear{[&](const Tensors& t) -> Tensors { return {gather(t[0], dim, index)}; }},
                [dim, shape = x.shape()](const Backward& call) -> Tensors { return {scatter(shape, dim, call.saved(0), call.grad())}; });
}

Tensor scatter_add(const Tensor& x, int dim, const Tensor& indices, const Tensor& source) {
  check_one_device("scatter_add", {&x, &source});
  const Tensor index = checked_indices("scatter_add", x, indices);
  dim = normalize_dim(dim, x.dims(), "scatter_add");
  check_along("scatter_add", x, dim, index);
  if (source.shape() != index.shape() || source.dtype() != x.dtype())
    fail("scatter_add", fmt::format("expected a source {} {} but got {} {}", name(x.dtype()), to_string(index.shape()),
                                    name(source.dtype()), to_string(source.shape())));
  Tensor y;
  {
    const NoGrad unrecorded;
    y = clone(x);
    on(x.device(), [&](auto dev) { kernels::scatter_add(dev, y.view(), index.view(), source.view(), dim); });
  }
  return record("scatter_add", y, {x, source}, {index}, [dim](const Backward& call) -> Tensors {
    return {call.needs(0) ? call.grad() : Tensor(), call.needs(1) ? gather(call.grad(), dim, call.saved(0)) : Tensor()};
  });
}

static Tensor triangle(const char* op, const Tensor& x, std::int64_t diagonal, bool upper) {
  if (x.dims() < 2) fail(op, fmt::format("expected at least two dimensions but got {}", to_string(x.shape())));
  diagonal = std::clamp(diagonal, -x.size(-2), x.size(-1));  // further out, nothing or everything is kept
  Tensor y = empty_like(x);
  on(x.device(), [&](auto dev) { kernels::triangle(dev, x.view(), y.view(), diagonal, upper); });
  return record(op, y, {x}, {}, [=](const Backward& call) -> Tensors { return {triangle(op, call.grad(), diagonal, upper)}; });
}
Tensor tril(const Tensor& x, std::int64_t diagonal) { return triangle("tril", x, diagonal, false); }
Tensor triu(const Tensor& x, std::int64_t diagonal) { return triangle("triu", x, diagonal, true); }

Tensor one_hot(const Tensor& indices_, std::int64_t classes, DType dtype) {
  const Tensor indices = detail::as_indices("one_hot", indices_);
  if (classes < 0) fail("one_hot", fmt::format("expected a number of classes >= 0 but got {}", classes));
  return cast(eq(unsqueeze(indices, -1), arange(classes, DType::i64, indices.device())), dtype);
}

Sorted sort(const Tensor& x, int dim, bool descending) {
  if (x.dtype() == DType::boolean) fail("sort", "expected a numeric dtype but got bool");
  if (x.dims() == 0 && (dim == 0 || dim == -1)) return {x, zeros({}, DType::i64, x.device())};
  dim = normalize_dim(dim, x.dims(), "sort");
  Sorted result;
  {
    const NoGrad unrecorded;
    const Tensor rows = transpose(x, dim, -1);
    Tensor values = empty_like(rows), indices = empty(rows.shape(), DType::i64, x.device());
    on(x.device(), [&](auto dev) { kernels::sort(dev, rows.view(), values.view(), indices.view(), descending); });
    result = {transpose(values, dim, -1), transpose(indices, dim, -1)};
  }
  result.values = record("sort", result.values, {x}, {result.indices}, [dim, shape = x.shape()](const Backward& call) -> Tensors {
    return {scatter(shape, dim, call.saved(0), call.grad())};
  });
  return result;
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
  Sorted result;
  {
    const NoGrad unrecorded;
    const Tensor rows = transpose(x, dim, -1);
    Shape shape = rows.shape();
    shape.back() = k;
    const Tensor values = empty(shape, x.dtype(), x.device()), indices = empty(shape, DType::i64, x.device());
    on(x.device(), [&](auto dev) { kernels::topk(dev, rows.view(), values.view(), indices.view()); });
    result = {transpose(values, dim, -1), transpose(indices, dim, -1)};
  }
  result.values = record("topk", result.values, {x}, {result.indices}, [dim, shape = x.shape()](const Backward& call) -> Tensors {
    return {scatter(shape, dim, call.saved(0), call.grad())};
  });
  return result;
}

}  // namespace tern
