#pragma once
#include <optional>

#include "tensor/tensor.h"

namespace tern {

/// @file
/// Views share memory with x, and gradients flow through them. Negative dimensions count from the last.

/// Reshapes x: the same elements in row-major order; one size may be -1, for the rest. A view where the strides allow it, a copy otherwise.
/// Throws Error if the sizes do not fit.
Tensor reshape(const Tensor& x, const Shape& shape);
/// Merges dimensions first .. last (inclusive) into one.
Tensor flatten(const Tensor& x, int first = 0, int last = -1);
/// Exchanges dimensions a and b.
Tensor transpose(const Tensor& x, int a, int b);
/// Reorders dimensions: dimension i of the result is dimension order[i] of x.
Tensor permute(const Tensor& x, const Dims& order);
/// Repeats dimensions of size 1, and leading ones, without copying. Throws Error if a size does not fit.
Tensor broadcast_to(const Tensor& x, const Shape& shape);
/// As broadcast_to, where -1 keeps a size.
Tensor expand(const Tensor& x, const Shape& shape);
/// Elements start, start + step, ... before stop along a dimension. Bounds are clamped as Python does, negative ones count
/// from the end. Throws Error unless step >= 1.
Tensor slice(const Tensor& x, int dim, std::int64_t start, std::optional<std::int64_t> stop = std::nullopt, std::int64_t step = 1);
/// The slice at one index, without that dimension. Throws Error for an index outside the range.
Tensor select(const Tensor& x, int dim, std::int64_t index);
/// Removes a dimension, which must have size 1.
Tensor squeeze(const Tensor& x, int dim);
/// Removes every dimension of size 1.
Tensor squeeze(const Tensor& x);
/// Adds a dimension of size 1 at `dim`, in [-dims - 1, dims].
Tensor unsqueeze(const Tensor& x, int dim);

/// @{
/// Splits x along a dimension into pieces of the given size (the last one may be smaller) or sizes; views.
Tensors split(const Tensor& x, std::int64_t size, int dim = 0);
Tensors split(const Tensor& x, const std::vector<std::int64_t>& sizes, int dim = 0);
/// @}
/// The slices of x along a dimension, without that dimension.
Tensors unstack(const Tensor& x, int dim = 0);

// Ops that reorder or repeat the elements of x. Gradients flow to x. Unless marked as a view, the result is a copy made by one to three
// kernels. Negative dimensions count from the last.

/// Reverses the order of the elements along the given dimensions, all of them if none is given; a view.
Tensor flip(const Tensor& x, const Dims& dims = {});
/// Rolls along a dimension: element i moves to (i + shift) mod size.
Tensor roll(const Tensor& x, std::int64_t shift, int dim);
/// Repeats each element `count` times in a row along a dimension, as in NumPy (repeat_interleave in PyTorch). Throws Error unless count >=
/// 0.
Tensor repeat(const Tensor& x, std::int64_t count, int dim);
/// repeat() by PyTorch's name.
inline Tensor repeat_interleave(const Tensor& x, std::int64_t count, int dim) { return repeat(x, count, dim); }
/// Tiles x: repeats all of it counts[i] times along dimension i; missing counts, in front, are 1, as are missing dimensions of x.
/// Tensor.repeat in PyTorch. Throws Error for a negative count.
Tensor tile(const Tensor& x, const Shape& counts);
/// Diagonal (column - row = offset) of dimensions a and b, as the last dimension; a view where the strides allow it. Empty if it is outside
/// of the matrix.
Tensor diagonal(const Tensor& x, std::int64_t offset = 0, int a = -2, int b = -1);
/// For a matrix, its diagonal; for x (N), the matrix (N + |offset|, N + |offset|) with x as that diagonal and zeros elsewhere.
Tensor diag(const Tensor& x, std::int64_t offset = 0);
/// Splits into `count` pieces of equal size along a dimension; if it does not divide, the last one is smaller, or there are fewer; views.
/// Throws Error unless count >= 1.
Tensors chunk(const Tensor& x, std::int64_t count, int dim = 0);
/// Moves dimension `from` to position `to`; the others keep their order; a view.
Tensor movedim(const Tensor& x, int from, int to);
/// Sliding windows of `size` elements along a dimension, in steps of `step`: (..., windows, ..., size); a view in which neighbouring
/// windows share elements. Tensor.unfold in PyTorch. Throws Error unless 1 <= size <= the dimension and step >= 1.
Tensor sliding_window(const Tensor& x, int dim, std::int64_t size, std::int64_t step = 1);

// Joins: copies.

/// Joins tensors along an existing dimension; their other sizes and their dtypes must agree. Throws Error that names the first that does
/// not fit.
Tensor cat(TensorList xs, int dim = 0);
/// Joins tensors of one shape along a new dimension.
Tensor stack(TensorList xs, int dim = 0);
/// x with `before` and `after` elements of `value` added along a dimension.
Tensor pad(const Tensor& x, int dim, std::int64_t before, std::int64_t after, double value = 0);

/// Sequences (T_i, ...) of different lengths, equal in dtype and in their other sizes, as one batch (B, T, ...): each is padded at its end
/// with `value` to the length of the longest. Throws Error for an empty list.
Tensor pad_sequence(TensorList sequences, double value = 0);

namespace detail {
/// The adjoint of slice: zeros with x as the elements start, start + step, ... of a dimension of `length` elements.
Tensor embed_slice(const Tensor& x, int dim, std::int64_t start, std::int64_t step, std::int64_t length);
}  // namespace detail

}  // namespace tern
