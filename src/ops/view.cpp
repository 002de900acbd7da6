#include "ops/view.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "autodiff/node.h"
#include "ops/copy.h"
#include "ops/factory.h"
#include "ops/join.h"
#include "ops/kernels/copy.h"
#include "ops/pointwise.h"
#include "tensor/checked.h"

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
  const auto strides = view_strides(x.shape(), x.strides(), shape);
  if (!strides) return reshape(clone(x), shape);
  return record("reshape", x.window(shape, *strides, x.offset()), {x}, {},
                Linear{[&](const Tensors& t) -> Tensors { return {reshape(t[0], shape)}; }},
                [from = x.shape()](const Backward& call) -> Tensors { return {reshape(call.grad(), from)}; });
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
  Shape shape;
  Strides strides;
  Dims inverse = Dims::filled(x.dims(), 0);
  for (int i = 0; i < order.size(); ++i) {
    shape.push_back(x.shape()[order[i]]);
    strides.push_back(x.strides()[order[i]]);
    inverse[order[i]] = i;
  }
  return record("permute", x.window(shape, strides, x.offset()), {x}, {},
                Linear{[&](const Tensors& t) -> Tensors { return {permute(t[0], order)}; }},
                [inverse](const Backward& call) -> Tensors { return {permute(call.grad(), inverse)}; });
}

Tensor transpose(const Tensor& x, int a, int b) {
  Dims order;
  for (int i = 0; i < x.dims(); ++i) order.push_back(i);
  std::swap(order[normalize_dim(a, x.dims(), "transpose")], order[normalize_dim(b, x.dims(), "transpose")]);
  return permute(x, order);
}

static Tensor broadcast_as(const char* op, const Tensor& x, const Shape& shape) {
  if (shape == x.shape()) return x;
  const int lead = shape.size() - x.dims();
  Strides strides = Strides::filled(shape.size(), 0);
  bool fits = lead >= 0 && checked_product(shape);
  for (int i = 0; fits && i < x.dims(); ++i) {
    fits = x.shape()[i] == shape[lead + i] || x.shape()[i] == 1;
    if (x.shape()[i] == shape[lead + i]) strides[lead + i] = x.strides()[i];
  }
  if (!fits) fail(op, fmt::format("expected a shape that {} broadcasts to but got {}", to_string(x.shape()), to_string(shape)));
  return record(op, x.window(shape, strides, x.offset()), {x}, {},
                Linear{[&](const Tensors& t) -> Tensors { return {broadcast_as(op, t[0], shape)}; }},
                [from = x.shape()](const Backward& call) -> Tensors { return {sum_to(call.grad(), from)}; });
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

/// The adjoint of slice: zeros of the given shape with x written to the slice.
static Tensor embed_slice(const Tensor& x, const Shape& shape, int dim, std::int64_t start, std::int64_t step) {
  Tensor y = zeros(shape, x.dtype(), x.device());
  Strides strides = y.strides();
  const std::int64_t offset = x.numel() == 0 ? 0 : start * strides[dim];
  strides[dim] *= step;
  const Tensor window = y.window(x.shape(), strides, offset);
  on(x.device(), [&](auto dev) { kernels::copy(dev, x.view(), window.view()); });
  const std::int64_t stop = start + x.shape()[dim] * step;
  return record("embed_slice", y, {x}, {}, [=, length = shape[dim]](const Backward& call) -> Tensors {
    return {slice(call.grad(), dim, start, std::min(stop, length), step)};
  });
}

Tensor slice(const Tensor& x, int dim, std::int64_t start, std::optional<std::int64_t> stop, std::int64_t step) {
  dim = normalize_dim(dim, x.dims(), "slice");
  if (step < 1) fail("slice", fmt::format("expected a step >= 1 but got {}", step));
  const std::int64_t length = x.shape()[dim];
  const auto bound = [&](std::int64_t i) { return std::clamp<std::int64_t>(i < 0 ? i + length : i, 0, length); };
  const std::int64_t first = bound(start), last = std::max(first, bound(stop.value_or(length)));
  if (first == 0 && last == length && step == 1) return x;
  Shape shape = x.shape();
  Strides strides = x.strides();
  shape[dim] = last == first ? 0 : (last - first - 1) / step + 1;
  step = std::min(step, std::max<std::int64_t>(length, 1));  // a longer step would also leave one element
  strides[dim] *= step;
  const std::int64_t offset = x.offset() + (numel(shape) == 0 ? 0 : first * x.strides()[dim]);
  return record("slice", x.window(shape, strides, offset), {x}, {},
                Linear{[&](const Tensors& t) -> Tensors { return {slice(t[0], dim, first, last, step)}; }},
                [=, from = x.shape()](const Backward& call) -> Tensors {
                  if (GradientTarget to = call.sink(0)) {
                    start_from_zeros({&to});
                    add_(slice(to.gradient, dim, first, last, step), call.grad());
                    return {to.result()};
                  }
                  return {embed_slice(call.grad(), from, dim, first, step)};
                });
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
  Strides strides = x.strides();
  shape.erase(dim);
  strides.erase(dim);
  return record("squeeze", x.window(shape, strides, x.offset()), {x}, {},
                Linear{[&](const Tensors& t) -> Tensors { return {squeeze(t[0], dim)}; }},
                [dim](const Backward& call) -> Tensors { return {unsqueeze(call.grad(), dim)}; });
}

Tensor squeeze(const Tensor& x) {
  Shape shape;
  for (std::int64_t size : x.shape())
    if (size != 1) shape.push_back(size);
  return reshape(x, shape);
}

Tensor unsqueeze(const Tensor& x, int dim) {
  dim = normalize_dim(dim, x.dims() + 1, "unsqueeze");
  Shape shape = x.shape();
  Strides strides = x.strides();
  const std::int64_t stride = dim < x.dims() ? shape[dim] * strides[dim] : 1;
  shape.insert(dim, 1);
  strides.insert(dim, stride);
  return record("unsqueeze", x.window(shape, strides, x.offset()), {x}, {},
                Linear{[&](const Tensors& t) -> Tensors { return {unsqueeze(t[0], dim)}; }},
                [dim](const Backward& call) -> Tensors { return {squeeze(call.grad(), dim)}; });
}

/// Gradients of several outputs, zeros if none arrived.
static Tensors filled_gradients(const Backward& call, const std::vector<Shape>& shapes) {
  Tensors gradients(call.grads().begin(), call.grads().end());
  const Tensor& known = *std::find_if(gradients.begin(), gradients.end(), [](const Tensor& g) { return g.defined(); });
  for (std::size_t i = 0; i < gradients.size(); ++i)
    if (!gradients[i].defined()) gradients[i] = zeros(shapes[i], known.dtype(), known.device());
  return gradients;
}

/// The gradients of pieces along a dimension as one tensor. Pieces that already are the slices of one tensor are not copied: see Note
/// [Packed projection].
static Tensor joined(const Tensors& pieces, int dim) {
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
  Tensors pieces;
  std::vector<Shape> shapes;
  std::int64_t start = 0;
  for (std::int64_t size : sizes) {
    Shape shape = x.shape();
    shape[dim] = size;
    pieces.push_back(x.window(shape, x.strides(), x.offset() + (numel(shape) == 0 ? 0 : start * x.strides()[dim])));
    shapes.push_back(shape);
    start += size;
  }
  return record_all("split", std::move(pieces), {x}, {}, Linear{[&](const Tensors& t) { return split(t[0], sizes, dim); }},
                    [dim, shapes](const Backward& call) -> Tensors { return {joined(filled_gradients(call, shapes), dim)}; });
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
  Shape shape = x.shape();
  Strides strides = x.strides();
  shape.erase(dim);
  strides.erase(dim);
  Tensors slices;
  for (std::int64_t i = 0; i < x.shape()[dim]; ++i)
    slices.push_back(x.window(shape, strides, x.offset() + (numel(shape) == 0 ? 0 : i * x.strides()[dim])));
  const std::vector<Shape> shapes(slices.size(), shape);
  return record_all("unstack", std::move(slices), {x}, {}, Linear{[&](const Tensors& t) { return unstack(t[0], dim); }},
                    [dim, shapes](const Backward& call) -> Tensors {
                      Tensors rows = filled_gradients(call, shapes);
                      for (Tensor& row : rows) row = unsqueeze(row, dim);
                      return {joined(rows, dim)};
                    });
}

}  // namespace tern
