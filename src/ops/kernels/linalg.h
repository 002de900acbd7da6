#pragma once
#include "backend/error.h"
#include "tensor/kernel.h"

namespace tern::kernels {

// Decompositions of matrices (..., M, N) of f32 or f64, one for each index of the leading dimensions. Input matrices have any strides,
// results are contiguous. On the CPU by Eigen, on a GPU by cuSOLVER and cuBLAS, on the stream of the arguments; cholesky and solve wait for
// it, because they report failures.
//
// Note [Signs]: decompositions are unique only up to signs, and libraries choose them by the order of their sums. Here both devices choose
// alike: qr's R has no negative number on its diagonal, and in an eigenvector, or a column of svd's U, the first element of at least
// `large_element` times the largest magnitude is positive. A factor below 1, because elements of equal magnitude are common, and rounding
// would decide between them.
inline constexpr double large_element = 0.9;

/// True if this build has the library that the functions below need; without it they must not be called.
bool has_linalg(Cpu);
bool has_linalg(Cuda);
/// Called by the functions below in a build without that library: throws Error.
[[noreturn]] inline void fail_without_linalg() {
  fail("linalg", "expected an op that asks has_linalg first: this build has no library for it");
}

/// Cholesky factor: the lower triangle l (..., N, N) with l l^T = a, of which only the lower triangle is read. Returns the index of the
/// first matrix that is not positive definite, or has a NaN, or -1.
struct Cholesky {
  In a;
  Out l;
  std::int64_t run(Cpu) const;
  std::int64_t run(Cuda) const;
};

/// QR: q (..., M, K), r (..., K, N), K = min(M, N).
struct Qr {
  In a;
  Out q, r;
  void run(Cpu) const;
  void run(Cuda) const;
};

/// Eigendecomposition: values (..., N) in ascending order, vectors (..., N, N) by columns; only the lower triangle of a is read. NaN where
/// that is not finite.
struct Eigh {
  In a;
  Out values, vectors;
  void run(Cpu) const;
  void run(Cuda) const;
};

/// SVD: u (..., M, K), s (..., K) in descending order, vt (..., K, N). NaN where a is not finite.
struct Svd {
  In a;
  Out u, s, vt;
  void run(Cpu) const;
  void run(Cuda) const;
};

/// Solution x (..., N, M) of a x = b. Returns the index of the first matrix with a pivot of 0, or -1.
struct Solve {
  In a, b;
  Out x;
  std::int64_t run(Cpu) const;
  std::int64_t run(Cuda) const;
};

/// Determinants: values (...), 1 where N is 0.
struct Det {
  In a;
  Out values;
  void run(Cpu) const;
  void run(Cuda) const;
};

}  // namespace tern::kernels
