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

}  // namespace tern
