#include "ops/view.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "ops/factory.h"
#include "ops/index.h"
#include "ops/op.h"
#include "ops/pointwise.h"

namespace tern {

/// Strides of x in another shape, or nothing if that needs a copy. Dimensions of x that are contiguous among themselves are merged into
/// segments, and the new dimensions must divide these segments.
static std::optional<Strides> view_strides(const Shape& from, const Strides& strides, const Shape& into) {
  if (numel(from) == 0) return contiguous_strides(into);
  Strides result = Strides::filled(into.size(), 1);
  int next = into.size() - 1;
  for (int last = from.size() - 1; last >= 0;) {
    std::int64_t run = from[last];
    int first = last;
    while (first > 0 && (from[first - 1] == 1 || run == 1 || strides[first - 1] == strides[last] * run)) {
      // A segment that so far has only one element takes the stride of the dimension that joins it.
      if (run == 1 && from[first - 1] != 1) last = first - 1;
      run *= from[--first];
    }
    std::int64_t stride = strides[last], covered = 1;
    while (next >= 0 && covered < run) {
      result[next] = stride;
      covered *= into[next];
      stride *= into[next--];
    }
    if (covered != run) return std::nullopt;
    while (next >= 0 && into[next] == 1) result[next--] = stride;
    last = first - 1;
  }
  return result;
}

namespace {

struct Reshape {
  static constexpr Op op{.name = "reshape", .tangent = Tangent::linear};
  Shape from, shape;

  Result<Tensor> forward(const Tensor& x) const {
    if (const auto strides = view_strides(from, x.strides(), shape)) return {x.window(shape, *strides, x.offset())};
    const NoGrad unrecorded;
    const Tensor copy = clone(x);
    return {copy.window(shape, contiguous_strides(shape), copy.offset())};
  }
  Tensors backward(const Backward& call) const { return {reshape(call.grad(), from)}; }
};

struct Permute {
  static constexpr Op op{.name = "permute", .tangent = Tangent::linear};
  Dims order;

  Result<Tensor> forward(const Tensor& x) const {
    Shape shape;
    Strides strides;
    for (int dim : order) {
      shape.push_back(x.shape()[dim]);
      strides.push_back(x.strides()[dim]);
    }
    return {x.window(shape, strides, x.offset())};
  }
  Tensors backward(const Backward& call) const {
    Dims inverse = order;
    for (int i = 0; i < order.size(); ++i) inverse[order[i]] = i;
    return {permute(call.grad(), inverse)};
  }
};

struct Broadcast {
  Op op;
  Shape from, shape;

  Result<Tensor> forward(const Tensor& x) const {
    const int lead = shape.size() - x.dims();
    bool fits = lead >= 0 && checked_product(shape);
    for (int i = 0; fits && i < x.dims(); ++i) fits = x.shape()[i] == shape[lead + i] || x.shape()[i] == 1;
    if (!fits) fail(op.name, fmt::format("expected a shape that {} broadcasts to but got {}", to_string(x.shape()), to_string(shape)));
    return {x.window(shape, broadcast_strides(x, shape), x.offset())};
  }
  Tensors backward(const Backward& call) const { return {sum_to(call.grad(), from)}; }
};

/// Elements start, start + step, ... before stop, all within the dimension.
struct Section {
  static constexpr Op op{.name = "slice", .tangent = Tangent::linear};
  Shape from;
  int dim;
  std::int64_t start, stop, step;

  Result<Tensor> forward(const Tensor& x) const {
    Shape shape = from;
    Strides strides = x.strides();
    shape[dim] = ceil_div(stop - start, step);
    strides[dim] *= step;
    return {x.window(shape, strides, x.offset() + (numel(shape) == 0 ? 0 : start * x.strides()[dim]))};
  }
  Tensors backward(const Backward& call) const {
    if (GradientTarget to = call.sink(0)) {
      start_from_zeros({&to});
      add_(slice(to.gradient, dim, start, stop, step), call.grad());
      return {to.result()};
    }
    return {detail::embed_slice(call.grad(), dim, start, step, from[dim])};
  }
};

/// The gradients of pieces along a dimension as one tensor. Pieces that already are the slices of one tensor are not copied: see Note
/// [Packed projection].
Tensor joined(const Tensors& pieces, int dim) {
  const Tensor& first = pieces[0];
  Shape shape = first.shape();
  std::int64_t next = first.offset();
  bool fits = !context().grad;
  shape[dim] = 0;
  for (const Tensor& piece : pieces) {
    fits = fits && piece.numel() > 0 && piece.impl().storage == first.impl().storage && piece.strides() == first.strides() &&
           piece.offset() == next;
    shape[dim] += piece.shape()[dim];
    next += piece.shape()[dim] * piece.strides()[dim];
  }
  return fits && is_contiguous(shape, first.strides()) ? first.window(shape, first.strides(), first.offset()) : cat(pieces, dim);
}

/// Pieces of the given sizes along a dimension, or, if `unstacks`, slices of size 1 without that dimension.
struct Split {
  Op op;
  std::vector<std::int64_t> sizes;
  int dim;
  bool unstacks = false;

  Result<Tensors> forward(const Tensor& x) const {
    Tensors pieces;
    std::int64_t start = 0;
    for (std::int64_t size : sizes) {
      Shape shape = x.shape();
      Strides strides = x.strides();
      shape[dim] = size;
      const std::int64_t offset = x.offset() + (numel(shape) == 0 ? 0 : start * strides[dim]);
      if (unstacks) {
        shape.erase(dim);
        strides.erase(dim);
      }
      pieces.push_back(x.window(shape, strides, offset));
      start += size;
    }
    return {std::move(pieces)};
  }
  Tensors backward(const Backward& call) const {
    Tensors pieces(call.grads().begin(), call.grads().end());
    if (unstacks)
      for (Tensor& piece : pieces) piece = piece.defined() ? unsqueeze(piece, dim) : piece;
    const Tensor known = *std::find_if(pieces.begin(), pieces.end(), [](const Tensor& g) { return g.defined(); });
    Shape shape = known.shape();
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      shape[dim] = sizes[i];
      if (!pieces[i].defined()) pieces[i] = zeros(shape, known.dtype(), known.device());
    }
    return {joined(pieces, dim)};
  }
};

struct Flip {
  static constexpr Op op{"flip"};
  Dims dims;

  Result<Tensor> forward(const Tensor& x) const {
    Strides strides = x.strides();
    std::int64_t offset = x.offset();
    for (int dim : dims) {
      if (x.numel() > 0) offset += (x.shape()[dim] - 1) * strides[dim];
      strides[dim] = -strides[dim];
    }
    return {x.window(x.shape(), strides, offset)};
  }
  Tensors backward(const Backward& call) const { return {tern::call(*this, call.grad())}; }
};

struct SlidingWindow {
  static constexpr Op op{"sliding_window"};
  Shape from;
  int dim;
  std::int64_t windows, size, step;

  Result<Tensor> forward(const Tensor& x) const {
    Shape shape = from;
    Strides strides = x.strides();
    shape[dim] = windows;
    strides[dim] *= std::min(step, from[dim]);  // a longer step leaves one window
    shape.push_back(size);
    strides.push_back(x.strides()[dim]);
    return {x.window(shape, strides, x.offset())};
  }
  Tensors backward(const Backward& call) const {
    const Tensor& g = call.grad();
    const Tensor starts = arange(windows, DType::i64, g.device()) * static_cast<double>(step);
    const Tensor at = reshape(reshape(starts, {windows, 1}) + arange(size, DType::i64, g.device()), {windows * size});
    return {index_add(zeros(from, g.dtype(), g.device()), dim, at, flatten(movedim(g, -1, dim + 1), dim, dim + 1))};
  }
};

}  // namespace

Tensor reshape(const Tensor& x, const Shape& requested) {
  Shape shape = requested;
  std::int64_t known = 0;
  int unknown = -1;
  const auto reject = [&] {
    fail("reshape",
         fmt::format("expected a shape with {} elements but got {} for {}", x.numel(), to_string(requested), to_string(x.shape())));
  };
  for (int i = 0; i < shape.size() && unknown < 0; ++i)
    if (shape[i] == -1) shape[unknown = i] = 1;
  if (!checked_product(shape)) reject();
  known = numel(shape);
  if (unknown >= 0) {
    if (known == 0 || x.numel() % known != 0) reject();
    shape[unknown] = x.numel() / known;
  }
  if (numel(shape) != x.numel()) reject();
  if (shape == x.shape()) return x;
  return call(Reshape{x.shape(), shape}, x);
}

Tensor flatten(const Tensor& x, int first, int last) {
  const auto is_any = [](int dim) { return dim == 0 || dim == -1; };
  if (x.dims() == 0 && is_any(first) && is_any(last)) return reshape(x, {1});
  first = normalize_dim(first, x.dims(), "flatten");
  last = normalize_dim(last, x.dims(), "flatten");
  if (first > last) fail("flatten", fmt::format("expected first <= last but got {} and {}", first, last));
  Shape shape(x.shape().begin(), x.shape().begin() + first);
  shape.push_back(numel(Shape(x.shape().begin() + first, x.shape().begin() + last + 1)));
  for (int i = last + 1; i < x.dims(); ++i) shape.push_back(x.shape()[i]);
  return reshape(x, shape);
}

Tensor permute(const Tensor& x, const Dims& requested) {
  Dims order;
  bool used[max_dims] = {};
  for (int dim : requested) {
    order.push_back(normalize_dim(dim, x.dims(), "permute"));
    if (std::exchange(used[order.back()], true)) break;
  }
  if (order.size() != x.dims() || std::count(used, used + x.dims(), true) != x.dims())
    fail("permute", fmt::format("expected each of {} dimensions once but got {}", x.dims(), to_string(requested)));
  return call(Permute{order}, x);
}

Tensor transpose(const Tensor& x, int a, int b) {
  Dims order;
  for (int i = 0; i < x.dims(); ++i) order.push_back(i);
  std::swap(order[normalize_dim(a, x.dims(), "transpose")], order[normalize_dim(b, x.dims(), "transpose")]);
  return permute(x, order);
}

static Tensor broadcast_as(const char* op, const Tensor& x, const Shape& shape) {
  return shape == x.shape() ? x : call(Broadcast{{.name = op, .tangent = Tangent::linear}, x.shape(), shape}, x);
}

Tensor broadcast_to(const Tensor& x, const Shape& shape) { return broadcast_as("broadcast_to", x, shape); }

Tensor expand(const Tensor& x, const Shape& requested) {
  Shape shape = requested;
  const int lead = shape.size() - x.dims();
  for (int i = 0; i < shape.size(); ++i) {
    if (shape[i] != -1) continue;
    if (i < lead) fail("expand", fmt::format("expected a size for the new dimension {} but got -1", i));
    shape[i] = x.shape()[i - lead];
  }
  return broadcast_as("expand", x, shape);
}

Tensor slice(const Tensor& x, int dim, std::int64_t start, std::optional<std::int64_t> stop, std::int64_t step) {
  dim = normalize_dim(dim, x.dims(), "slice");
  if (step < 1) fail("slice", fmt::format("expected a step >= 1 but got {}", step));
  const std::int64_t length = x.shape()[dim];
  const auto bound = [&](std::int64_t i) { return std::clamp<std::int64_t>(i < 0 ? i + length : i, 0, length); };
  const std::int64_t first = bound(start), last = std::max(first, bound(stop.value_or(length)));
  if (first == 0 && last == length && step == 1) return x;
  step = std::min(step, std::max<std::int64_t>(length, 1));  // a longer step would also leave one element
  return call(Section{x.shape(), dim, first, last, step}, x);
}

Tensor select(const Tensor& x, int dim, std::int64_t index) {
  dim = normalize_dim(dim, x.dims(), "select");
  const std::int64_t length = x.shape()[dim], at = index < 0 ? index + length : index;
  if (at < 0 || at >= length) fail("select", fmt::format("expected an index in [{}, {}) but got {}", -length, length, index));
  return squeeze(slice(x, dim, at, at + 1), dim);
}

Tensor squeeze(const Tensor& x, int dim) {
  dim = normalize_dim(dim, x.dims(), "squeeze");
  if (x.shape()[dim] != 1) fail("squeeze", fmt::format("expected size 1 in dimension {} but got {}", dim, to_string(x.shape())));
  Shape shape = x.shape();
  shape.erase(dim);
  return call(Reshape{x.shape(), shape}, x);
}

Tensor squeeze(const Tensor& x) {
  Shape shape;
  for (std::int64_t size : x.shape())
    if (size != 1) shape.push_back(size);
  return reshape(x, shape);
}

Tensor unsqueeze(const Tensor& x, int dim) {
  Shape shape = x.shape();
  shape.insert(normalize_dim(dim, x.dims() + 1, "unsqueeze"), 1);
  return call(Reshape{x.shape(), shape}, x);
}

Tensors split(const Tensor& x, const std::vector<std::int64_t>& sizes, int dim) {
  dim = normalize_dim(dim, x.dims(), "split");
  std::int64_t total = 0;
  bool valid = true;
  for (std::int64_t size : sizes) {
    valid = valid && size >= 0 && size <= x.shape()[dim] - total;
    total += valid ? size : 0;
  }
  if (!valid || total != x.shape()[dim])
    fail("split", fmt::format("expected sizes >= 0 that add up to {} but got ({})", x.shape()[dim], fmt::join(sizes, ", ")));
  return call(Split{{.name = "split", .tangent = Tangent::linear}, sizes, dim}, x);
}

Tensors split(const Tensor& x, std::int64_t size, int dim) {
  dim = normalize_dim(dim, x.dims(), "split");
  if (size < 1) fail("split", fmt::format("expected a size >= 1 but got {}", size));
  std::vector<std::int64_t> sizes;
  for (std::int64_t rest = x.shape()[dim]; rest > 0; rest -= size) sizes.push_back(std::min(size, rest));
  if (sizes.empty()) sizes.push_back(0);
  return split(x, sizes, dim);
}

Tensors unstack(const Tensor& x, int dim) {
  dim = normalize_dim(dim, x.dims(), "unstack");
  const std::vector<std::int64_t> ones(static_cast<std::size_t>(x.shape()[dim]), 1);
  return call(Split{{.name = "unstack", .tangent = Tangent::linear}, ones, dim, true}, x);
}

/// Number of elements of dimensions [first, last).
static std::int64_t extent(const Tensor& x, int first, int last) {
  return numel(Shape(x.shape().begin() + first, x.shape().begin() + last));
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
  return call(Flip{dims}, x);
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
  return call(SlidingWindow{x.shape(), dim, windows, size, step}, x);
}

Tensor Tensor::reshape(const Shape& shape) const { return tern::reshape(*this, shape); }
Tensor Tensor::T() const {
  if (dims() < 2) fail("T", fmt::format("expected at least two dimensions but got {}", to_string(shape())));
  return transpose(*this, -2, -1);
}

}  // namespace tern
