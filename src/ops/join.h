#pragma once
#include "tensor/tensor.h"

namespace tern {

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
