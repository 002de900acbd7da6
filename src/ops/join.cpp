#include <fmt/format.h>

#include <algorithm>

#include "ops/factory.h"
#include "ops/kernels/copy.h"
#include "ops/op.h"
#include "ops/view.h"

namespace tern {

namespace {

/// Copies x into y, at `start`, start + step, ... of a dimension.
void write(const Tensor& x, const Tensor& y, int dim, std::int64_t start, std::int64_t step = 1) {
  Strides strides = y.strides();
  const std::int64_t offset = x.numel() == 0 ? 0 : start * strides[dim];
  strides[dim] *= step;
  const Tensor place = y.window(x.shape(), strides, offset);
  launch(y.device(), kernels::Copy{x, place});
}

struct Cat {
  static constexpr Op op{.name = "cat", .autocast = CastTo::widest, .tangent = Tangent::linear};
  int dim;

  struct Kept {
    std::vector<std::int64_t> lengths;
  };
  Result<Tensor, Kept> forward(const Tensors& xs) const {
    const Tensor& first = xs[0];
    Shape shape = first.shape();
    shape[dim] = 0;
    Kept kept;
    for (const Tensor& x : xs) {
      Shape others = x.shape();
      if (x.dims() == first.dims()) others[dim] = shape[dim];
      if (others != shape || x.dtype() != first.dtype())
        fail(op.name, fmt::format("expected tensors like the first, {} {}, but for dimension {}; tensor {} is {} {}", name(first.dtype()),
                                  to_string(first.shape()), dim, kept.lengths.size(), name(x.dtype()), to_string(x.shape())));
      kept.lengths.push_back(x.shape()[dim]);
      shape[dim] = checked_add(op.name, shape[dim], kept.lengths.back());
    }
    const Tensor y = empty(shape, first.dtype(), first.device());
    std::int64_t start = 0;
    for (const Tensor& x : xs) {
      write(x, y, dim, start);
      start += x.shape()[dim];
    }
    return {y, std::move(kept)};
  }
  Tensors backward(const Backward& call, const Kept& kept) const { return split(call.grad(), kept.lengths, dim); }
};

struct Stack {
  static constexpr Op op{.name = "stack", .autocast = CastTo::widest};
  int dim;

  Tensor forward(const Tensors& xs) const {
    Tensors rows;
    for (const Tensor& x : xs) {
      if (x.shape() != xs[0].shape() || x.dtype() != xs[0].dtype())
        fail(op.name, fmt::format("expected tensors like the first, {} {}, but got {} {}", name(xs[0].dtype()), to_string(xs[0].shape()),
                                  name(x.dtype()), to_string(x.shape())));
      rows.push_back(unsqueeze(x, dim));
    }
    return cat(rows, dim);
  }
};

/// x as the elements start, start + step, ... before stop of a longer dimension whose other elements are `value`.
struct Embed {
  Op op;
  int dim;
  std::int64_t start, stop, step, length;
  double value;

  Result<Tensor> forward(const Tensor& x) const {
    Shape shape = x.shape();
    shape[dim] = length;
    const Tensor y = full(shape, value, x.dtype(), x.device());
    write(x, y, dim, start, step);
    return {y};
  }
  Tensors backward(const Backward& call) const { return {slice(call.grad(), dim, start, stop, step)}; }
  Tensors tangents(const Tensors& t, const Nothing&) const { return {tern::call(Embed{op, dim, start, stop, step, length, 0}, t[0])}; }
};

}  // namespace

Tensor cat(TensorList list, int dim) {
  if (list.size() == 0) fail("cat", "expected at least one tensor but got none");
  return call(Cat{normalize_dim(dim, list[0].dims(), "cat")}, Tensors(list.begin(), list.end()));
}

Tensor stack(TensorList list, int dim) {
  if (list.size() == 0) fail("stack", "expected at least one tensor but got none");
  return call(Stack{normalize_dim(dim, list[0].dims() + 1, "stack")}, Tensors(list.begin(), list.end()));
}

Tensor pad(const Tensor& x, int dim, std::int64_t before, std::int64_t after, double value) {
  dim = normalize_dim(dim, x.dims(), "pad");
  if (before < 0 || after < 0) fail("pad", fmt::format("expected sizes >= 0 but got {} and {}", before, after));
  if (!detail::takes(x.dtype(), value)) fail("pad", fmt::format("expected a number that {} holds but got {}", name(x.dtype()), value));
  const std::int64_t end = checked_add("pad", x.shape()[dim], before);
  return call(Embed{{.name = "pad", .tangent = Tangent::linear}, dim, before, end, 1, checked_add("pad", end, after), value}, x);
}

Tensor detail::embed_slice(const Tensor& x, int dim, std::int64_t start, std::int64_t step, std::int64_t length) {
  const std::int64_t stop = start + x.shape()[dim] * step;
  return call(Embed{{.name = "embed_slice", .tangent = Tangent::linear}, dim, start, stop, step, length, 0}, x);
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
