#pragma once
#include "tensor/kernel.h"
#include "tensor/random.h"

namespace tern::kernels {

/// Indices are i64. On the CPU an index outside the range throws Error that names it before anything is written. On a GPU, where a check
/// would wait for the device, it reads as zero and writes nothing.

/// y[.., i, ..] = x[.., index[.., i, ..], ..] along `dim`; index and y have one shape, x has it except for `dim`.
struct Gather {
  In x, index;
  Out y;
  int dim;
  void run(Cpu) const;
  void run(Cuda) const;
};

/// y[.., index[.., i, ..], ..] += source[.., i, ..] along `dim`; index and source have one shape; y floating or integer.
/// The order in which repeated indices add up on a GPU is not fixed.
struct ScatterAdd {
  InOut y;
  In index, source;
  int dim;
  void run(Cpu) const;
  void run(Cuda) const;
};

/// y (A, I, C) = x (A, N, C) at index (I), any strides, any dtype.
struct IndexSelect {
  In x, index;
  Out y;
  void run(Cpu) const;
  void run(Cuda) const;
};

/// y (A, N, C) at index (I) = source (A, I, C), any strides, any dtype.
struct IndexCopy {
  InOut y;
  In index, source;
  void run(Cpu) const;
  void run(Cuda) const;
};

/// y (A, N, C) += source (A, I, C) at index (I). Deterministic: equal indices are added in ascending order of position.
struct IndexAdd {
  InOut y;
  In index, source;
  void run(Cpu) const;
  void run(Cuda) const;
};

/// found (count), i64: the positions of the true elements of flags (N), bool, in ascending order; ends (N), i64, is flags' cumulative sum.
/// Everything contiguous.
struct Positions {
  In flags, ends;
  Out found;
  void run(Cpu) const;
  void run(Cuda) const;
};

/// Stable sort of the last dimension of x: values, and indices (i64) of their positions in x. Numeric dtypes; NaN counts as largest. x has
/// any strides; the outputs are contiguous.
struct Sort {
  In x;
  Out values, indices;
  bool descending;
  void run(Cpu) const;
  void run(Cuda) const;
};

/// The k largest of the last dimension of x in descending order, the first among equals first: values (..., k) and indices (i64) of their
/// positions, the first k of a stable descending sort. 1 <= k <= topk_limit, and k is at most the dimension, which is below 2^32; numeric
/// dtypes of at most 32 bits; NaN counts as largest. x has any strides; the outputs are contiguous.
inline constexpr std::int64_t topk_limit = 64;
struct Topk {
  In x;
  Out values, indices;
  void run(Cpu) const;
  void run(Cuda) const;
};

/// places (R, M), i64: how many elements of an ascending row (N) of `sorted` (R, N) are before x (R, M): those that are smaller, or with
/// `right` those that are not larger. Numeric dtypes; NaN counts as largest. Everything contiguous.
struct Searchsorted {
  In sorted, x;
  Out places;
  bool right;
  void run(Cpu) const;
  void run(Cuda) const;
};
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
/// uses the random numbers of Dropout; p may be 0.
struct Embed {
  In table, positions, ids;
  double p;
  PhiloxState draws;
  Out y;
  void run(Cuda) const;
};

/// dsum (B, T, D) = dropout(g), the gradient of the sum; dsum is aligned and may be g; it is not written if p = 0. dpositions (T, D) += the
/// sum of dsum over the batch, in ascending order, before rounding; without data it is not computed.
struct EmbedGrad {
  In g;
  double p;
  PhiloxState draws;
  Out dsum;
  InOut dpositions;
  void run(Cuda) const;
};

}  // namespace tern::kernels
