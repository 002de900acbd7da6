#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "tensor/tensor.h"

namespace tern::reference {

/// References that the ops are tested against: row-major numbers in float64, and plain loops over indices. Nothing here calls a
/// kernel or an op.
struct Array {
  Shape shape;
  DType dtype = DType::f64;  ///< what the op should give; integers and bool are kept as whole numbers
  std::vector<double> values;

  double operator()(const Shape& index) const { return values[place(index)]; }
  double& operator()(const Shape& index) { return values[place(index)]; }
  std::int64_t size(int dim) const { return shape[dim < 0 ? dim + shape.size() : dim]; }

 private:
  std::size_t place(const Shape& index) const {
    std::int64_t at = 0;
    for (int i = 0; i < shape.size(); ++i) at = at * shape[i] + index[i];
    return static_cast<std::size_t>(at);
  }
};
using Arrays = std::vector<Array>;

/// Calls f(index) for every index of a shape, in row-major order.
template <class F>
void each(const Shape& shape, F f) {
  const std::int64_t count = numel(shape);
  Shape index = Shape::filled(shape.size(), 0);
  for (std::int64_t i = 0; i < count; ++i) {
    f(static_cast<const Shape&>(index));
    for (int d = shape.size() - 1; d >= 0 && ++index[d] == shape[d]; --d) index[d] = 0;
  }
}

/// The number that a dtype holds for an exact result: integers wrap, bool is 0 or 1. Floats are left exact, so that the
/// comparison's tolerance is one rounding of the op.
inline double held(DType dtype, double value) {
  switch (dtype) {
    case DType::boolean: return value != 0;
    case DType::u8: return value - 256 * std::floor(value / 256);
    case DType::i32: return static_cast<double>(static_cast<std::int32_t>(static_cast<std::uint32_t>(static_cast<std::int64_t>(value))));
    case DType::i64: return std::trunc(value);
    default: return value;
  }
}

/// The array whose element at an index is f(index).
template <class F>
Array make(const Shape& shape, DType dtype, F f) {
  Array y{shape, dtype, {}};
  y.values.reserve(static_cast<std::size_t>(numel(shape)));
  each(shape, [&](const Shape& index) { y.values.push_back(held(dtype, f(index))); });
  return y;
}

template <class F>
Array map(const Array& x, DType dtype, F f) {
  return make(x.shape, dtype, [&](const Shape& i) { return f(x(i)); });
}

/// The index into an operand of a broadcast, from one into the result.
inline Shape inside(const Array& x, const Shape& index) {
  Shape result = Shape::filled(x.shape.size(), 0);
  const int lead = index.size() - x.shape.size();
  for (int i = 0; i < result.size(); ++i) result[i] = x.shape[i] == 1 ? 0 : index[lead + i];
  return result;
}
inline double broadcast_at(const Array& x, const Shape& index) { return x(inside(x, index)); }

inline Shape joint_shape(const Shape& a, const Shape& b) {
  Shape result;
  const int dims = std::max(a.size(), b.size());
  for (int i = 0; i < dims; ++i) {
    const int in_a = i - dims + a.size(), in_b = i - dims + b.size();
    const std::int64_t size_a = in_a < 0 ? 1 : a[in_a], size_b = in_b < 0 ? 1 : b[in_b];
    result.push_back(size_a == 1 ? size_b : size_a);
  }
  return result;
}

template <class F>
Array zip(const Array& a, const Array& b, DType dtype, F f) {
  return make(joint_shape(a.shape, b.shape), dtype, [&](const Shape& i) { return f(broadcast_at(a, i), broadcast_at(b, i)); });
}

inline Array reshaped(Array x, const Shape& shape) {
  x.shape = shape;
  return x;
}

inline bool is_reduced(const Dims& dims, int dim, int all) {
  if (dims.empty()) return true;
  return std::any_of(dims.begin(), dims.end(), [&](int d) { return (d < 0 ? d + all : d) == dim; });
}

/// f(elements of a slice, in order) for every slice over the given dimensions (all where none is named).
template <class F>
Array reduce(const Array& x, const Dims& dims, bool keepdim, DType dtype, F f) {
  Shape kept, result;
  for (int i = 0; i < x.shape.size(); ++i) {
    const bool reduced = is_reduced(dims, i, x.shape.size());
    kept.push_back(reduced ? 1 : x.shape[i]);
    if (!reduced || keepdim) result.push_back(kept.back());
  }
  std::vector<std::vector<double>> slices(static_cast<std::size_t>(numel(kept)));
  each(x.shape, [&](const Shape& index) {
    std::int64_t at = 0;
    for (int i = 0; i < kept.size(); ++i) at = at * kept[i] + (kept[i] == 1 ? 0 : index[i]);
    slices[static_cast<std::size_t>(at)].push_back(x(index));
  });
  Array y{result, dtype, {}};
  for (const std::vector<double>& slice : slices) y.values.push_back(held(dtype, f(slice)));
  return y;
}

/// f(slice) -> slice of the same length, along one dimension.
template <class F>
Array along(const Array& x, int dim, F f) {
  Array y = x;
  if (dim < 0) dim += x.shape.size();
  Shape starts = x.shape;
  starts[dim] = 1;
  if (x.values.empty()) return y;
  each(starts, [&](const Shape& start) {
    std::vector<double> slice;
    Shape at = start;
    for (at[dim] = 0; at[dim] < x.shape[dim]; ++at[dim]) slice.push_back(x(at));
    slice = f(slice);
    for (at[dim] = 0; at[dim] < x.shape[dim]; ++at[dim]) y(at) = slice[static_cast<std::size_t>(at[dim])];
  });
  return y;
}

inline double sum_of(const std::vector<double>& values) {
  double total = 0;
  for (double value : values) total += value;
  return total;
}

inline Array permuted(const Array& x, const Dims& order) {
  Shape shape;
  for (int d : order) shape.push_back(x.size(d));
  return make(shape, x.dtype, [&](const Shape& index) {
    Shape source = index;
    for (int i = 0; i < order.size(); ++i) source[order[i] < 0 ? order[i] + order.size() : order[i]] = index[i];
    return x(source);
  });
}

/// Elements start, start + step, ... of a dimension, `count` of them.
inline Array sliced(const Array& x, int dim, std::int64_t start, std::int64_t count, std::int64_t step = 1) {
  Shape shape = x.shape;
  shape[dim] = count;
  return make(shape, x.dtype, [&](Shape index) {
    index[dim] = start + index[dim] * step;
    return x(index);
  });
}

inline Shape without(Shape shape, int dim) {
  shape.erase(dim);
  return shape;
}

}  // namespace tern::reference
