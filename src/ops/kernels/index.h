#pragma once
#include "tensor/random.h"
#include "tensor/view.h"

namespace tern::kernels {

/// Indices are i64. On the CPU an index outside the range throws Error that names it before anything is written. On a GPU, where a check
/// would wait for the device, it reads as zero and writes nothing.

/// y[.., i, ..] = x[.., index[.., i, ..], ..] along `dim`; index and y have one shape, x has it except for `dim`.
void gather(Cpu, const View& x, const View& index, const View& y, int dim);
void gather(Cuda, const View& x, const View& index, const View& y, int dim);

/// y[.., index[.., i, ..], ..] += source[.., i, ..] along `dim`; index and source have one shape; y floating or integer.
/// The order in which repeated indices add up on a GPU is not fixed.
void scatter_add(Cpu, const View& y, const View& index, const View& source, int dim);
void scatter_add(Cuda, const View& y, const View& index, const View& source, int dim);

/// y (A, I, C) = x (A, N, C) at index (I), any strides, any dtype.
void index_select(Cpu, const View& x, const View& index, const View& y);
void index_select(Cuda, const View& x, const View& index, const View& y);

/// y (A, N, C) at index (I) = source (A, I, C), any strides, any dtype.
void index_copy(Cpu, const View& y, const View& index, const View& source);
void index_copy(Cuda, const View& y, const View& index, const View& source);

/// y (A, N, C) += source (A, I, C) at index (I). Deterministic: equal indices are added in ascending order of position.
void index_add(Cpu, const View& y, const View& index, const View& source);
void index_add(Cuda, const View& y, const View& index, const View& source);

/// found (count), i64: the positions of the true elements of flags (N), bool, in ascending order; ends (N), i64, is flags' cumulative sum.
/// Everything contiguous.
void positions(Cpu, const View& flags, const View& ends, const View& found);
void positions(Cuda, const View& flags, const View& ends, const View& found);

/// Stable sort of the last dimension of x: values, and indices (i64) of their positions in x. Numeric dtypes; NaN counts as largest. x has
/// any strides; the outputs are contiguous.
void sort(Cpu, const View& x, const View& values, const View& indices, bool descending);
void sort(Cuda, const View& x, const View& values, const View& indices, bool descending);

/// The k largest of the last dimension of x in descending order, the first among equals first: values (..., k) and indices (i64) of their
/// positions, the first k of a stable descending sort. 1 <= k <= topk_limit, and k is at most the dimension, which is below 2^32; numeric
/// dtypes of at most 32 bits; NaN counts as largest. x has any strides; the outputs are contiguous.
inline constexpr std::int64_t topk_limit = 64;
void topk(Cpu, const View& x, const View& values, const View& indices);
void topk(Cuda, const View& x, const View& values, const View& indices);

/// places (R, M), i64: how many elements of an ascending row (N) of `sorted` (R, N) are before x (R, M): those that are smaller, or with
/// `right` those that are not larger. Numeric dtypes; NaN counts as largest. Everything contiguous.
void searchsorted(Cpu, const View& sorted, const View& x, const View& places, bool right);
void searchsorted(Cuda, const View& sorted, const View& x, const View& places, bool right);
/// The number of elements of an ascending row that are before x, by halving.
template <class T>
TERN_HOST_DEVICE std::int64_t place_in(const T* row, std::int64_t count, T x, bool right) {
  using C = compute_t<T>;
  const auto is_less = [](T a, T b) { return C(b) != C(b) ? C(a) == C(a) : C(a) < C(b); };
  std::int64_t first = 0;
  while (count > 0) {
    const std::int64_t half = count / 2;
    const T middle = row[first + half];
    const bool is_before = right ? !is_less(x, middle) : is_less(middle, x);
    first = is_before ? first + half + 1 : first;
    count = is_before ? count - half - 1 : half;
  }
  return first;
}

// Token and position embeddings at a transformer's input, fused into one kernel each way. Only CUDA has them: they are called through
// on_cuda, and queried through cuda_has.

/// True if there are such kernels for `count` elements in rows of `width`.
inline bool has_embed(Cuda, std::int64_t count, std::int64_t width) { return width % 4 == 0 && count < (std::int64_t{1} << 31); }

/// y (B, T, D) = dropout(table[ids] + positions[:T]) for ids (B, T), i64, table (V, D) and positions (P, D), P >= T, or without data for
/// zeros. Indices outside the table read as zero. Contiguous, y aligned, one floating dtype. The sum is rounded before the dropout, which
/// uses the random numbers of kernels::dropout; p may be 0.
void embed(Cuda, const View& table, const View& positions, const View& ids, double p, PhiloxState draws, const View& y);

/// dsum (B, T, D) = dropout(g), the gradient of the sum; dsum is aligned and may be g; it is not written if p = 0. dpositions (T, D) += the
/// sum of dsum over the batch, in ascending order, before rounding; without data it is not computed.
void embed_grad(Cuda, const View& g, double p, PhiloxState draws, const View& dsum, const View& dpositions);

}  // namespace tern::kernels
