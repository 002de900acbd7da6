#pragma once
#include "tensor/tensor.h"

namespace tern {

/// @file
/// Indices are i64 tensors; embedding, fused_embedding and one_hot take i32 as well. On the CPU an index outside the range throws Error; on
/// a GPU, where checking would have to wait, it reads as zero and its gradient is dropped.

/// Rows of a table (V, D) at indices (...): (..., D). The gradient is deterministic.
Tensor embedding(const Tensor& table, const Tensor& indices);
/// dropout(embedding(table, ids) + positions[:T], p, training) for ids (B, T): what enters a transformer, (B, T, D), with a kernel each way
/// on a GPU. positions (P, D) with P >= T, or undefined.
Tensor fused_embedding(const Tensor& table, const Tensor& positions, const Tensor& ids, double p = 0, bool training = true);
/// result[.., i, ..] = x[.., index[.., i, ..], ..] along a dimension; x and index agree in the other sizes.
Tensor gather(const Tensor& x, int dim, const Tensor& index);
/// A copy of x with source added at the given indices along a dimension. Repeated indices add up, on a GPU in no fixed order.
Tensor scatter_add(const Tensor& x, int dim, const Tensor& index, const Tensor& source);
/// The slices of x at the indices (I) along a dimension.
Tensor index_select(const Tensor& x, int dim, const Tensor& index);
/// A copy of x with slices of source added at the indices (I) along a dimension; deterministic.
Tensor index_add(const Tensor& x, int dim, const Tensor& index, const Tensor& source);
/// Writes slices of source over those of x at the indices (I) along a dimension, in place. Of equal indices one slice is kept. Returns x.
Tensor index_copy_(const Tensor& x, int dim, const Tensor& index, const Tensor& source);

/// The lower (column - row <= diagonal) or upper (>= diagonal) triangle of the last two dimensions, zero elsewhere.
Tensor tril(const Tensor& x, std::int64_t diagonal = 0);
/// The upper triangle (column - row >= diagonal), zero elsewhere.
Tensor triu(const Tensor& x, std::int64_t diagonal = 0);

/// indices (...) as (..., classes) of `dtype`, 1 at the index and 0 elsewhere (0 throughout for an index outside the range).
Tensor one_hot(const Tensor& indices, std::int64_t classes, DType dtype = DType::f32);

/// Values, and where they came from (i64).
struct Sorted {
  Tensor values;   ///< of x's dtype
  Tensor indices;  ///< i64, along the dimension, of the same shape
};
/// Stable; NaN counts as largest. Gradients flow to where the values came from.
Sorted sort(const Tensor& x, int dim = -1, bool descending = false);
/// The k largest along a dimension, in descending order: what sort begins with, NaN and equal ones too. Up to 64 of them, of a dtype of at
/// most 32 bits, are selected in one pass. Throws Error if the dimension is shorter.
Sorted topk(const Tensor& x, std::int64_t k, int dim = -1);

}  // namespace tern
