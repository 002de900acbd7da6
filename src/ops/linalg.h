#pragma once
#include "tensor/tensor.h"

namespace tern {

/// Linear algebra of matrices (..., N, M), one for each index of the leading dimensions, by Eigen; f32 and f64. A tensor on a GPU is
/// copied to the CPU, and the result back, which waits: there is no cuSOLVER here. Gradients are written in ops and can be differentiated
/// again. Throw Error for other shapes and dtypes, and in a build without Eigen (has_linalg). All name the first matrix that they cannot
/// take.

/// Whether this build has Eigen.
bool has_linalg();

/// The lower triangle L with L L^T = a, for symmetric positive definite a (..., N, N), of which the lower triangle is read. Throws Error
/// for a matrix that is not positive definite. The gradient is symmetric. Murray, "Differentiation of the Cholesky decomposition", 2016.
Tensor cholesky(const Tensor& a);

struct Qr {
  Tensor q;  ///< (..., M, K) with orthonormal columns, K = min(M, N)
  Tensor r;  ///< (..., K, N), an upper triangle
};
/// a (..., M, N) = q r, by Householder's reflections; signs are as those give them. The gradient wants M >= N and full rank. Walter &
/// Lehmann, 2018.
Qr qr(const Tensor& a);

struct Eigh {
  Tensor values;   ///< (..., N), ascending
  Tensor vectors;  ///< (..., N, N), a column each
};
/// Of symmetric a (..., N, N) = vectors diag(values) vectors^T, of which the lower triangle is read. The gradient of the vectors is
/// infinite or NaN where values are equal, and is symmetric. Giles, 2008. NaN for a matrix with a number that is not finite.
Eigh eigh(const Tensor& a);

struct Svd {
  Tensor u;   ///< (..., M, K), K = min(M, N)
  Tensor s;   ///< (..., K), descending
  Tensor vt;  ///< (..., K, N)
};
/// a (..., M, N) = u diag(s) vt, with orthonormal columns of u and rows of vt, by Jacobi's rotations: exact, and slow for hundreds of rows.
/// Their gradient is infinite or NaN where singular values are equal, or 0. Townsend, "Differentiating the singular value decomposition",
/// 2016.
Svd svd(const Tensor& a);

/// x with a x = b, for a (..., N, N) and b (..., N, M), or (N) for one matrix a; by LU with partial pivots. Leading dimensions are
/// broadcast. Throws Error for a singular matrix.
Tensor solve(const Tensor& a, const Tensor& b);
/// solve(a, 1).
Tensor inverse(const Tensor& a);
/// The determinants (...) of a (..., N, N). The gradient throws for a singular matrix.
Tensor det(const Tensor& a);

}  // namespace tern
