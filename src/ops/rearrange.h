#pragma once
#include "tensor/tensor.h"

namespace tern {

/// @file
/// The elements of x in another order, or more than once. Gradients flow to x. Where a line does not say "view", the result is a copy by
/// one to three kernels. Negative dimensions count from the last.

/// With the order of the elements reversed along the dimensions, all where none is named; a view.
Tensor flip(const Tensor& x, const Dims& dims = {});
/// Shifted along a dimension: element i comes to (i + shift) mod size.
Tensor roll(const Tensor& x, std::int64_t shift, int dim);
/// Each element `count` times in a row along a dimension, as in NumPy (repeat_interleave in PyTorch). Throws Error unless count >= 0.
Tensor repeat(const Tensor& x, std::int64_t count, int dim);
/// repeat() by PyTorch's name.
inline Tensor repeat_interleave(const Tensor& x, std::int64_t count, int dim) { return repeat(x, count, dim); }
/// x again and again, counts[i] times along dimension i; missing counts, in front, are 1, as missing dimensions of x are. Tensor.repeat in
/// PyTorch. Throws Error for a negative count.
Tensor tile(const Tensor& x, const Shape& counts);
/// The diagonal (column - row = offset) of dimensions a and b, as the last dimension; a view where these two lie as one. Empty outside.
Tensor diagonal(const Tensor& x, std::int64_t offset = 0, int a = -2, int b = -1);
/// Of a matrix its diagonal; of x (N) the matrix (N + |offset|, N + |offset|) with x as that diagonal and zeros elsewhere.
Tensor diag(const Tensor& x, std::int64_t offset = 0);
/// `count` pieces of equal size along a dimension, the last one smaller, or fewer of them, where it does not divide; views. Throws Error
/// unless count >= 1.
Tensors chunk(const Tensor& x, std::int64_t count, int dim = 0);
/// Dimension `from` comes to place `to`, and the others keep their order; a view.
Tensor movedim(const Tensor& x, int from, int to);
/// Along a dimension every window of `size` elements, in steps of `step`: (..., windows, ..., size); a view, in which neighbours
/// share elements. x.unfold in PyTorch. Throws Error unless 1 <= size <= the dimension and step >= 1.
Tensor sliding_window(const Tensor& x, int dim, std::int64_t size, std::int64_t step = 1);

}  // namespace tern
