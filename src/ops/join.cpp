#include "ops/join.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/detail/autocast.h"
#include "ops/factory.h"
#include "ops/kernels/copy.h"
#include "ops/view.h"
#include "tensor/checked.h"
#include "tensor/holds.h"

namespace tern {

/// View of the part of y from `start` along a dimension with x's size there, without history.
static Tensor window(const Tensor& y, const Tensor& x, int dim, std::int64_t start) {
  return y.window(x.shape(), y.strides(), x.numel() == 0 ? 0 : start * y.strides()[dim]);
}

Tensor cat(TensorList list, int dim) {
  if (list.size() == 0) fail("cat", "expected at least one tensor but got none");
  const Tensors xs = detail::autocast_all("cat", {list.begin(), list.size()});
  check_one_device("cat", xs);
  const Tensor& first = xs[0];
  dim = normalize_dim(dim, first.dims(), "cat");
  Shape shape = first.shape();
  shape[dim] = 0;
  std::vector<std::int64_t> lengths;
  for (const Tensor& x : xs) {
    Shape others = x.shape();
    if (x.dims() == first.dims()) others[dim] = shape[dim];
    if (others != shape || x.dtype() != first.dtype())
      fail("cat", fmt::format("expected tensors like the first, {} {}, but for dimension {}; tensor {} is {} {}", name(first.dtype()),
                              to_string(first.shape()), dim, lengths.size(), name(x.dtype()), to_string(x.shape())));
    lengths.push_back(x.shape()[dim]);
    shape[dim] = checked_add("cat", shape[dim], lengths.back());
  }
  Tensor y = empty(shape, first.dtype(), first.device());
  std::int64_t start = 0;
  for (const Tensor& x : xs) {
    const Tensor place = window(y, x, dim, start);
    on(y.device(), [&](auto dev) { kernels::copy(dev, x.view(), place.view()); });
    start += x.shape()[dim];
  }
  return record("cat", y, xs, {}, Linear{[&](const Tensors& t) -> Tensors { return {cat(t, dim)}; }},
                [dim, lengths](const Backward& call) -> Tensors { return split(call.grad(), lengths, dim); });
}

Tensor stack(TensorList list, int dim) {
  if (list.size() == 0) fail("stack", "expected at least one tensor but got none");
  const Tensors xs = detail::autocast_all("stack", {list.begin(), list.size()});
  check_one_device("stack", xs);
  dim = normalize_dim(dim, xs[0].dims() + 1, "stack");
  Tensors rows;
  for (const Tensor& x : xs) {
    if (x.shape() != xs[0].shape() || x.dtype() != xs[0].dtype())
      fail("stack", fmt::format("expected tensors like the first, {} {}, but got {} {}", name(xs[0].dtype()), to_string(xs[0].shape()),
                                name(x.dtype()), to_string(x.shape())));
    rows.push_back(unsqueeze(x, dim));
  }
  return cat(rows, dim);
}

Tensor pad(const Tensor& x, int dim, std::int64_t before, std::int64_t after, double value) {
  dim = normalize_dim(dim, x.dims(), "pad");
  if (before < 0 || after < 0) fail("pad", fmt::format("expected sizes >= 0 but got {} and {}", before, after));
  if (!detail::takes(x.dtype(), value)) fail("pad", fmt::format("expected a number that {} holds but got {}", name(x.dtype()), value));
  Shape shape = x.shape();
  shape[dim] = checked_add("pad", checked_add("pad", shape[dim], before), after);
  Tensor y = full(shape, value, x.dtype(), x.device());
  const Tensor place = window(y, x, dim, before);
  on(y.device(), [&](auto dev) { kernels::copy(dev, x.view(), place.view()); });
  return record("pad", y, {x}, {}, Linear{[&](const Tensors& t) -> Tensors { return {pad(t[0], dim, before, after, 0)}; }},
                [dim, before, length = x.shape()[dim]](const Backward& call) -> Tensors {
                  return {slice(call.grad(), dim, before, before + length)};
                });
}

Tensor pad_sequence(TensorList sequences, double value) {
  if (sequences.size() == 0) fail("pad_sequence", "expected at least one sequence but got none");
  check_one_device("pad_sequence", std::span<const Tensor>(sequences));
  std::int64_t longest = 0;
  for (const Tensor& x : sequences) {
    Shape shape = x.shape();
    if (x.dims() > 0 && x.dims() == sequences[0].dims()) shape[0] = sequences[0].size(0);
    if (x.dims() == 0 || shape != sequences[0].shape() || x.dtype() != sequences[0].dtype())
      fail("pad_sequence", fmt::format("expected sequences (T, ...) like the first, {} {}, but for T, but got {} {}",
                                       name(sequences[0].dtype()), to_string(sequences[0].shape()), name(x.dtype()), to_string(x.shape())));
    longest = std::max(longest, x.size(0));
  }
  Tensors rows;
  for (const Tensor& x : sequences) rows.push_back(pad(x, 0, 0, longest - x.size(0), value));
  return stack(rows);
}

}  // namespace tern
