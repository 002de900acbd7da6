#pragma once
#include "tensor/view.h"

namespace tern::kernels {

enum class Reduce : std::uint8_t { sum, prod, max, min, logsumexp, any, all };

/// y = scale * reduction of x over the dimensions in which y has size 1 and x has not; x and y have the same number of dimensions, any
/// strides. `scale` applies to sum only, in f64, so that the mean of equal numbers is that number. Dtypes: sum, prod: y has x's floating
/// dtype, or i64 for integers and bool; max, min: x's numeric dtype; logsumexp: a floating one; any, all: x of any dtype, y bool. 16-bit
/// floats are reduced in float32. Over no elements: sum 0, prod 1, logsumexp -inf, any false, all true (max and min of nothing are refused
/// by the op). NaN propagates. Sums are pairwise or tree-shaped, and deterministic.
void reduce(Cpu, Reduce f, const View& x, const View& y, double scale);
void reduce(Cuda, Reduce f, const View& x, const View& y, double scale);

/// y (i64) = the index of the largest (or smallest) element along `dim`, the first among equals; NaN counts as largest
/// (smallest). y has size 1 in that dimension.
void arg_reduce(Cpu, bool largest, const View& x, const View& y, int dim);
void arg_reduce(Cuda, bool largest, const View& x, const View& y, int dim);

/// y = cumulative sum of x along `dim`, from the end if `reverse`; same shape, any strides. y has x's floating dtype, or i64 for integers
/// and bool.
void cumsum(Cpu, const View& x, const View& y, int dim, bool reverse);
void cumsum(Cuda, const View& x, const View& y, int dim, bool reverse);

}  // namespace tern::kernels
