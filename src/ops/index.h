#pragma once
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>

#include "tensor/tensor.h"

namespace tern {

/// @file
/// Indices are i64 tensors; embedding and one_hot take i32 as well. On the CPU an index outside the range throws Error. On
/// a GPU, where a check would wait for the device, it reads as zero and its gradient is dropped.

/// Rows of a table (V, D) at indices (...): (..., D). The gradient is deterministic.
Tensor embedding(const Tensor& table, const Tensor& indices);
/// dropout(embedding(table, ids) + positions[:T], p, training) for ids (B, T): the input of a transformer, (B, T, D), with one kernel each
/// way on a GPU, except in a PlainKernels scope. positions (P, D) with P >= T, or undefined.
Tensor embedding(const Tensor& table, const Tensor& positions, const Tensor& ids, double p = 0, bool training = true);
/// result[.., i, ..] = x[.., index[.., i, ..], ..] along a dimension; x and index have the same sizes in the other dimensions.
Tensor gather(const Tensor& x, int dim, const Tensor& index);
/// Copy of x with source added at the given indices along a dimension. Repeated indices add up, on a GPU in no fixed order.
Tensor scatter_add(const Tensor& x, int dim, const Tensor& index, const Tensor& source);
/// The slices of x at the indices (I) along a dimension.
Tensor index_select(const Tensor& x, int dim, const Tensor& index);
/// Copy of x with slices of source added at the indices (I) along a dimension; deterministic.
Tensor index_add(const Tensor& x, int dim, const Tensor& index, const Tensor& source);
/// Writes slices of source over those of x at the indices (I) along a dimension, in place. Of repeated indices one slice is kept. Returns
/// x.
Tensor index_copy_(const Tensor& x, int dim, const Tensor& index, const Tensor& source);

/// Lower triangle (column - row <= diagonal) of the last two dimensions, zero elsewhere.
Tensor tril(const Tensor& x, std::int64_t diagonal = 0);
/// Upper triangle (column - row >= diagonal) of the last two dimensions, zero elsewhere.
Tensor triu(const Tensor& x, std::int64_t diagonal = 0);

/// One-hot encoding of indices (...): (..., classes) of `dtype`, 1 at the index and 0 elsewhere (all 0 for an index outside the range).
Tensor one_hot(const Tensor& indices, std::int64_t classes, DType dtype = DType::f32);

/// Values of a sort or topk, with their positions in x.
struct Sorted {
  Tensor values;   ///< values, of x's dtype
  Tensor indices;  ///< i64, along the dimension, of the same shape
};
/// Sorts along a dimension. Stable; NaN counts as largest. Gradients flow to the elements that the values come from.
Sorted sort(const Tensor& x, int dim = -1, bool descending = false);
/// The k largest elements along a dimension in descending order: the first k of a descending sort, equal ones and NaN included. Up to 64
/// elements, of a dtype of at most 32 bits, are selected in one pass. Throws Error if the dimension is shorter than k.
Sorted topk(const Tensor& x, std::int64_t k, int dim = -1);
/// Places, i64, at which the elements of x would be inserted into ascending rows so that these stay sorted: before equal elements, or
/// with `right` behind them. `sorted` is (N), for x of any shape, or (..., N) for x (..., M); of x's numeric dtype; NaN counts as largest,
/// as in sort. An unsorted row gives places without meaning. Throws Error if shapes or dtypes do not fit.
Tensor searchsorted(const Tensor& sorted, const Tensor& x, bool right = false);

/// Elements start, start + step, ... before stop of a dimension; without a bound, from the first or to the last. As in slice(), bounds are
/// clamped, negative ones count from the end, and step >= 1. Slice() is the whole dimension, ":" in Python.
struct Slice {
  /// Slice(1, 3) is 1:3, Slice(std::nullopt, 3) is :3, and Slice(0, 8, 2) is 0:8:2 in Python.
  Slice(std::optional<std::int64_t> start_ = std::nullopt, std::optional<std::int64_t> stop_ = std::nullopt, std::int64_t step_ = 1)
      : start(start_), stop(stop_), step(step_) {}
  std::optional<std::int64_t> start;  ///< the first element; none: from the beginning
  std::optional<std::int64_t> stop;   ///< one past the last element; none: to the end
  std::int64_t step;                  ///< 1 or more
};

/// A new dimension of size 1, None in Python.
struct NewAxis {};
inline constexpr NewAxis newaxis{};  ///< x[{newaxis, Slice()}]
/// All dimensions that the other indices leave, "..." in Python.
struct Ellipsis {};
inline constexpr Ellipsis ellipsis{};  ///< x[{ellipsis, 0}]

/// An index in the brackets of x[...], after NumPy's basic and advanced indexing:
///
///     x[2]   x[-1]   x[Slice(1, 3)]   x[{ellipsis, 0}]   x[{Slice(), newaxis, Slice(0, 8, 2)}]    views
///     x[mask]   x[ids]   x[{Slice(), ids}]   x[{rows, columns}]                                   copies
///
/// A bool tensor, a mask of the shape of the dimensions that it indexes, selects the elements where it is true; it waits for the device to
/// count them. An integer tensor selects at its elements, negative ones counting from the end, and gives its own shape. Several integer
/// tensors are broadcast together and select points; the dimensions of that shape take the place of the first of them if they are
/// neighbours, else come first. Gradients flow to x. Throws Error for more indices than dimensions, for a mask of another shape, and, on
/// the CPU, for an index outside the range.
///
/// x[...] is a new handle, so x[0] = y does not compile. copy_(x[0], y), fill_(x[0], 1) and x[0] += 1 write to a view; masked_fill, where
/// and scatter return a new tensor.
class Index {
 public:
  /// Kind of an index, by the type that it was made from.
  enum class Kind : std::uint8_t { integer, slice, new_axis, rest, tensor };

  /// One element; negative ones count from the end.
  template <std::integral I>
    requires(!std::same_as<I, bool>)
  Index(I i) : kind(Kind::integer), integer(static_cast<std::int64_t>(i)) {}
  Index(const Slice& s) : kind(Kind::slice), slice(s) {}     ///< a range of elements, as a view
  Index(NewAxis) : kind(Kind::new_axis) {}                   ///< a new dimension of size 1
  Index(Ellipsis) : kind(Kind::rest) {}                      ///< all remaining dimensions; at most once in x[...]
  Index(const Tensor& x) : kind(Kind::tensor), tensor(x) {}  ///< a bool mask, or integers

  /// x[...] with a number of indices that is known only at run time, for instance those of a language binding.
  static Tensor apply(const Tensor& x, std::span<const Index> indices);

  Kind kind;                 ///< the member below that is valid
  std::int64_t integer = 0;  ///< for Kind::integer
  Slice slice;               ///< for Kind::slice
  Tensor tensor;             ///< for Kind::tensor: bool, or of an integer dtype
};

/// Indices (N, dims) of the nonzero elements, in row-major order, i64. Waits for the device to count them. Takes 8 bytes for each element
/// of x in addition to the result, and one more unless x is bool.
Tensor nonzero(const Tensor& x);
/// The elements of x (N) where mask (bool) is true, in row-major order; x and mask are broadcast. Waits for the device.
Tensor masked_select(const Tensor& x, const Tensor& mask);
/// Copy of x with y[.., index[.., i, ..], ..] = source[.., i, ..] along a dimension; index (i64) and source have one shape, and the sizes
/// of x in the other dimensions. Of repeated indices one source is kept, any of them, but the gradient goes to all.
Tensor scatter(const Tensor& x, int dim, const Tensor& index, const Tensor& source);
/// scatter() of one value.
Tensor scatter(const Tensor& x, int dim, const Tensor& index, double value);

}  // namespace tern
