#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "ops/factory.h"
#include "ops/index.h"
#include "ops/kernels/index.h"
#include "ops/op.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"

namespace tern {

namespace {

/// Positions of the true elements of flags (N), i64; not recorded. A running sum gives each true element its rank, where its position is
/// written. Memory: the running sum, 8 bytes for each element.
Tensor positions(const Tensor& flags_) {
  const NoGrad unrecorded;
  const Tensor flags = contiguous(flags_);
  const std::int64_t n = flags.numel();
  if (n == 0) return zeros({0}, DType::i64, flags.device());
  const Tensor ends = cumsum(flags, 0);
  const Tensor found = empty({select(ends, 0, n - 1).item<std::int64_t>()}, DType::i64, flags.device());
  launch(found.device(), kernels::Positions{flags, ends, found});
  return found;
}

/// Coordinates (N) of a mask's true elements, one tensor for each of its dimensions.
Tensors points_of(const Tensor& mask) {
  const NoGrad unrecorded;
  Tensor rest = positions(reshape(mask, {mask.numel()}));
  Tensors result(static_cast<std::size_t>(mask.dims()));
  for (int i = mask.dims() - 1; i > 0; --i) {
    const auto size = static_cast<double>(std::max<std::int64_t>(mask.shape()[i], 1));  // of nothing there are no positions
    result[static_cast<std::size_t>(i)] = remainder(rest, size);
    rest = floor_divide(rest, size);
  }
  if (!result.empty()) result[0] = rest;
  return result;
}

/// Converts an index tensor to i64 and counts negative indices from the end of a dimension.
Tensor counted_from_start(const Tensor& index, std::int64_t size) {
  const Tensor i = cast(index, DType::i64);
  return where(lt(i, 0), i + static_cast<double>(size), i);
}

/// x at index tensors for some of its dimensions: `at[i]` is undefined for a dimension that is not indexed.
Tensor pick(const Tensor& x, const Tensors& at) {
  Dims picked, order;
  Shape points;
  for (int i = 0; i < x.dims(); ++i)
    if (at[static_cast<std::size_t>(i)].defined()) {
      picked.push_back(i);
      points = broadcast_shapes(points, at[static_cast<std::size_t>(i)].shape(), "index");
    }
  // The indexed dimensions are made neighbours and merged into one.
  const bool are_neighbours = picked.back() - picked[0] + 1 == picked.size();
  const int place = are_neighbours ? picked[0] : 0;
  for (int i = 0; i < x.dims(); ++i)
    if (!at[static_cast<std::size_t>(i)].defined()) order.push_back(i);
  for (int i = 0; i < picked.size(); ++i) order.insert(place + i, picked[i]);
  const Tensor y = permute(x, order);
  std::int64_t count = 1;
  Tensor linear, is_outside;
  for (int i = picked.size() - 1; i >= 0; --i) {
    const std::int64_t size = x.shape()[picked[i]];
    const Tensor index = counted_from_start(at[static_cast<std::size_t>(picked[i])], size);
    const Tensor outside = logical_or(lt(index, 0), ge(index, static_cast<double>(size)));
    linear = linear.defined() ? linear + index * static_cast<double>(count) : index;
    is_outside = is_outside.defined() ? logical_or(is_outside, outside) : outside;
    count *= size;
  }
  // An index that is outside of one dimension may be inside of the merged one: it becomes -1, which the kernel refuses or reads as 0.
  if (picked.size() > 1) linear = where(is_outside, -1.0, linear);
  Shape merged(y.shape().begin(), y.shape().begin() + place), result = merged;
  merged.push_back(count);
  for (std::int64_t size : points) result.push_back(size);
  for (int i = place + picked.size(); i < y.dims(); ++i) {
    merged.push_back(y.shape()[i]);
    result.push_back(y.shape()[i]);
  }
  return reshape(index_select(reshape(y, merged), place, reshape(broadcast_to(linear, points), {numel(points)})), result);
}

/// Number of x's dimensions that an index covers.
int dims_of(const Index& index) {
  switch (index.kind) {
    case Index::Kind::new_axis:
    case Index::Kind::rest: return 0;
    case Index::Kind::tensor: return index.tensor.dtype() == DType::boolean ? index.tensor.dims() : 1;
    default: return 1;
  }
}

void check_index_tensor(const Tensor& x, const Tensor& index, int dim) {
  check_one_device("index", {&x, &index});
  if (index.dtype() == DType::boolean) {
    for (int i = 0; i < index.dims(); ++i)
      if (index.shape()[i] != x.shape()[dim + i])
        fail("index", fmt::format("expected a mask of x's shape {} from dimension {} on but got {}", to_string(x.shape()), dim,
                                  to_string(index.shape())));
  } else if (index.dtype() != DType::i64 && index.dtype() != DType::i32) {
    fail("index", fmt::format("expected an index tensor of i64, i32 or bool but got {}", name(index.dtype())));
  }
}

/// Applies all indices but tensors; these are added to `at`, at their dimensions.
Tensor take_views(const Tensor& x, std::span<const Index> indices, Tensors& at) {
  int given = 0, ellipses = 0;
  for (const Index& index : indices) {
    given += dims_of(index);
    ellipses += index.kind == Index::Kind::rest;
    if (index.kind == Index::Kind::tensor && index.tensor.dtype() == DType::boolean && index.tensor.dims() == 0)
      fail("index", "expected a mask of at least one dimension but got ()");
  }
  if (given > x.dims() || ellipses > 1)
    fail("index", fmt::format("expected indices for at most {} dimensions and at most one ellipsis but got {} and {} for {}", x.dims(),
                              given, ellipses, to_string(x.shape())));
  Tensor y = x;
  int dim = 0;  // of y
  const auto keep = [&](int count) {
    dim += count;
    at.resize(static_cast<std::size_t>(dim));
  };
  for (const Index& index : indices) switch (index.kind) {
      case Index::Kind::integer: y = select(y, dim, index.integer); break;
      case Index::Kind::slice:
        y = slice(y, dim, index.slice.start.value_or(0), index.slice.stop, index.slice.step);
        keep(1);
        break;
      case Index::Kind::new_axis:
        y = unsqueeze(y, dim);
        keep(1);
        break;
      case Index::Kind::rest: keep(x.dims() - given); break;
      case Index::Kind::tensor: {
        check_index_tensor(y, index.tensor, dim);
        const Tensors points = index.tensor.dtype() == DType::boolean ? points_of(index.tensor) : Tensors{index.tensor};
        for (const Tensor& point : points) {
          at.push_back(point);
          ++dim;
        }
      }
    }
  at.resize(static_cast<std::size_t>(y.dims()));
  return y;
}

Tensor indexed(const Tensor& x, std::span<const Index> indices) {
  Tensors at;
  const Tensor y = take_views(x, indices, at);
  for (const Tensor& index : at)
    if (index.defined()) return pick(y, at);
  return y;
}

}  // namespace

Tensor Tensor::operator[](std::int64_t index) const { return select(*this, 0, index); }
Tensor Tensor::operator[](const Index& index) const { return indexed(*this, {&index, 1}); }
Tensor Tensor::operator[](std::initializer_list<Index> indices) const { return indexed(*this, {indices.begin(), indices.size()}); }
Tensor Index::apply(const Tensor& x, std::span<const Index> indices) { return indexed(x, indices); }

Tensor nonzero(const Tensor& x) {
  const NoGrad unrecorded;
  const Tensor mask = x.dtype() == DType::boolean ? x : ne(x, 0);
  if (x.dims() == 0) return zeros({positions(reshape(mask, {1})).numel(), 0}, DType::i64, x.device());
  return stack(points_of(mask), 1);
}

Tensor masked_select(const Tensor& x, const Tensor& mask) {
  check_one_device("masked_select", {&x, &mask});
  if (mask.dtype() != DType::boolean) fail("masked_select", fmt::format("expected a mask of bool but got {}", name(mask.dtype())));
  const Shape shape = broadcast_shapes(x.shape(), mask.shape(), "masked_select");
  const Tensor at = positions(reshape(broadcast_to(mask, shape), {numel(shape)}));
  return index_select(reshape(broadcast_to(x, shape), {numel(shape)}), 0, at);
}

}  // namespace tern
