#pragma once
#include "tensor/tensor.h"

namespace tern {

/// @file
/// Indices are i64 tensors; embedding, fused_embedding and one_hot take i32 as well. On the CPU an index outside the range throws Error. On
/// a GPU, where a check would wait for the device, it reads as zero and its gradient is dropped.

/// Rows of a table (V, D) at indices (...): (..., D). The gradient is deterministic.
Tensor embedding(const Tensor& table, const Tensor& indices);
/// dropout(embedding(table, ids) + positions[:T], p, training) for ids (B, T): the input of a transformer, (B, T, D), with one kernel each
/// way on a GPU. positions (P, D) with P >= T, or undefined.
Tensor fused_embedding(const Tensor& table, const Tensor& positions, const Tensor& ids, double p = 0, bool training = true);
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

}  // namespace tern
