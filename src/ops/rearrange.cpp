#include <fmt/format.h>

#include <algorithm>

#include "autodiff/node.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/join.h"
#include "ops/pointwise.h"
#include "ops/view.h"
#include "tensor/ceil_div.h"
#include "tensor/checked.h"

namespace tern {

/// Number of elements of dimensions [first, last).
static std::int64_t extent(const Tensor& x, int first, int last) {
  return numel(Shape(x.shape().begin() + first, x.shape().begin() + last));
}

static Tensor flipped(const Tensor& x, const Dims& dims) {
  Strides strides = x.strides();
  std::int64_t offset = x.offset();
  for (int dim : dims) {
    if (x.numel() > 0) offset += (x.shape()[dim] - 1) * strides[dim];
    strides[dim] = -strides[dim];
  }
  return record("flip", x.window(x.shape(), strides, offset), {x}, {},
                [dims](const Backward& call) -> Tensors { return {flipped(call.grad(), dims)}; });
}

Tensor flip(const Tensor& x, const Dims& requested) {
  Dims dims;
  bool used[max_dims] = {};
  for (int dim : requested) {
    dims.push_back(normalize_dim(dim, x.dims(), "flip"));
    if (std::exchange(used[dims.back()], true)) fail("flip", fmt::format("expected each dimension once but got {}", to_string(requested)));
  }
  if (requested.empty())
    for (int i = 0; i < x.dims(); ++i) dims.push_back(i);
  return flipped(x, dims);
}

Tensor roll(const Tensor& x, std::int64_t shift, int dim) {
  dim = normalize_dim(dim, x.dims(), "roll");
  const std::int64_t size = x.shape()[dim];
  const std::int64_t start = size == 0 ? 0 : ((-(shift % size)) % size + size) % size;  // index of the element that comes first
  if (start == 0) return x;
  return cat({slice(x, dim, start), slice(x, dim, 0, start)}, dim);
}

/// Repeats the elements of dimensions [first, dims) `count` times each, so that dimension `dim` is `count` times as long.
static Tensor repeated(const char* op, const Tensor& x, int first, std::int64_t count, int dim) {
  const std::int64_t before = extent(x, 0, first), after = extent(x, first, x.dims());
  Shape shape = x.shape();
  shape[dim] = checked_mul(op, shape[dim], count);
  return reshape(broadcast_to(reshape(x, {before, 1, after}), {before, count, after}), shape);
}

Tensor repeat(const Tensor& x, std::int64_t count, int dim) {
  dim = normalize_dim(dim, x.dims(), "repeat");
  if (count < 0) fail("repeat", fmt::format("expected a count >= 0 but got {}", count));
  return repeated("repeat", x, dim + 1, count, dim);
}

Tensor tile(const Tensor& x, const Shape& counts) {
  for (std::int64_t count : counts)
    if (count < 0) fail("tile", fmt::format("expected counts >= 0 but got {}", to_string(counts)));
  Shape shape;
  for (int i = x.dims(); i < counts.size(); ++i) shape.push_back(1);
  for (std::int64_t size : x.shape()) shape.push_back(size);
  Tensor y = reshape(x, shape);
  const int lead = y.dims() - counts.size();
  for (int i = lead; i < y.dims(); ++i)
    if (const std::int64_t count = counts[i - lead]; count != 1) y = repeated("tile", y, i, count, i);
  return y;
}

Tensor diagonal(const Tensor& x, std::int64_t offset, int a, int b) {
  a = normalize_dim(a, x.dims(), "diagonal");
  b = normalize_dim(b, x.dims(), "diagonal");
  if (a == b) fail("diagonal", fmt::format("expected two dimensions of {} but got {} twice", to_string(x.shape()), a));
  Dims order;
  for (int i = 0; i < x.dims(); ++i)
    if (i != a && i != b) order.push_back(i);
  order.push_back(a);
  order.push_back(b);
  const Tensor y = permute(x, order);
  const std::int64_t rows = y.size(-2), columns = y.size(-1);
  offset = std::clamp(offset, -rows, columns);  // further out there is nothing either
  const std::int64_t row = std::max<std::int64_t>(-offset, 0), column = std::max<std::int64_t>(offset, 0);
  const std::int64_t count = std::min(rows - row, columns - column);
  // Neighbours on the diagonal are columns + 1 elements apart.
  const Tensor flat = flatten(y, -2, -1);
  if (count <= 0) return slice(flat, -1, 0, 0);
  const std::int64_t first = row * columns + column;
  return slice(flat, -1, first, first + (count - 1) * (columns + 1) + 1, columns + 1);
}

Tensor diag(const Tensor& x, std::int64_t offset) {
  if (x.dims() == 2) return diagonal(x, offset);
  if (x.dims() != 1) fail("diag", fmt::format("expected one or two dimensions but got {}", to_string(x.shape())));
  const std::int64_t away = offset < 0 ? checked_mul("diag", offset, -1) : offset, n = checked_add("diag", x.numel(), away);
  const Tensor rows = offset >= 0 ? pad(x, 0, 0, away) : pad(x, 0, away, 0);
  const Tensor is_diagonal = eye(n, n, offset, DType::boolean, x.device());
  return where(is_diagonal, reshape(rows, {n, 1}), zeros({}, x.dtype(), x.device()));
}

Tensors chunk(const Tensor& x, std::int64_t count, int dim) {
  if (count < 1) fail("chunk", fmt::format("expected a count >= 1 but got {}", count));
  const std::int64_t size = x.shape()[normalize_dim(dim, x.dims(), "chunk")];
  return split(x, std::max<std::int64_t>(1, ceil_div(size, std::min(count, std::max<std::int64_t>(size, 1)))), dim);
}

Tensor movedim(const Tensor& x, int from, int to) {
  from = normalize_dim(from, x.dims(), "movedim");
  to = normalize_dim(to, x.dims(), "movedim");
  Dims order;
  for (int i = 0; i < x.dims(); ++i)
    if (i != from) order.push_back(i);
  order.insert(to, from);
  return permute(x, order);
}

Tensor sliding_window(const Tensor& x, int dim, std::int64_t size, std::int64_t step) {
  dim = normalize_dim(dim, x.dims(), "sliding_window");
  const std::int64_t length = x.shape()[dim];
  if (size < 1 || size > length || step < 1)
    fail("sliding_window", fmt::format("expected a size in [1, {}] and a step >= 1 but got {} and {}", length, size, step));
  const std::int64_t windows = (length - size) / step + 1;
  Shape shape = x.shape();
  Strides strides = x.strides();
  shape[dim] = windows;
  strides[dim] *= std::min(step, length);  // a longer step leaves one window
  shape.push_back(size);
  strides.push_back(x.strides()[dim]);
  return record("sliding_window", x.window(shape, strides, x.offset()), {x}, {}, [=, from = x.shape()](const Backward& call) -> Tensors {
    const Tensor& g = call.grad();
    const Tensor starts = arange(windows, DType::i64, g.device()) * static_cast<double>(step);
    const Tensor at = reshape(reshape(starts, {windows, 1}) + arange(size, DType::i64, g.device()), {windows * size});
    return {index_add(zeros(from, g.dtype(), g.device()), dim, at, flatten(movedim(g, -1, dim + 1), dim, dim + 1))};
  });
}

}  // namespace tern
