#pragma once
#include "tensor/tensor.h"

namespace tern {

/// @file
/// Linear algebra of matrices (..., N, M), one for each index of the leading dimensions, by Eigen on the CPU and by cuSOLVER on a GPU; f32
/// and f64. Gradients are written in ops and can be differentiated again. All throw Error for other shapes and dtypes, and in a build
/// without the library (has_linalg); an error about a matrix names the first one. To know of such a matrix, cholesky, solve and inverse
/// wait for a GPU, and so do the gradients of qr and det, which call solve; the others are asynchronous unless cuSOLVER itself waits. Signs
/// are the same on both devices, except where rounding decides between numbers of almost equal magnitude: see qr, eigh and svd.

/// True if this build has linear algebra on such a device: Eigen for the CPU, cuSOLVER for a GPU.
bool has_linalg(Device device = default_device());

/// Cholesky factor: the lower triangle L with L L^T = a, for symmetric positive definite a (..., N, N), of which only the lower triangle is
/// read. Throws Error for a matrix that is not positive definite, or has a NaN. The gradient is symmetric. Murray, "Differentiation of the
/// Cholesky decomposition", 2016.
Tensor cholesky(const Tensor& a);

/// The result of qr().
struct Qr {
  Tensor q;  ///< (..., M, K) with orthonormal columns, K = min(M, N)
  Tensor r;  ///< (..., K, N), an upper triangle
};
/// QR decomposition a (..., M, N) = q r, by Householder reflections. The diagonal of r has no negative number, so that q and r are unique
/// where a has full rank. The gradient needs M >= N and full rank. Walter & Lehmann, 2018.
Qr qr(const Tensor& a);

/// The result of eigh().
struct Eigh {
  Tensor values;   ///< (..., N), ascending
  Tensor vectors;  ///< (..., N, N), one in each column
};
/// Eigendecomposition of symmetric a (..., N, N) = vectors diag(values) vectors^T, of which only the lower triangle is read. In each
/// vector, the first element of at least 0.9 times the largest magnitude is positive. The gradient of the vectors is infinite or NaN where
/// values are equal; the gradient of a is symmetric. Giles, 2008. NaN for a matrix with a number that is not finite.
Eigh eigh(const Tensor& a);

/// The result of svd().
struct Svd {
  Tensor u;   ///< (..., M, K), K = min(M, N)
  Tensor s;   ///< (..., K), descending
  Tensor vt;  ///< (..., K, N)
};
/// Singular value decomposition a (..., M, N) = u diag(s) vt, with orthonormal columns of u and rows of vt, by Jacobi rotations: accurate,
/// but slow for hundreds of rows. The signs of u's columns are chosen as those of eigh's vectors. The gradient of u and vt is infinite or
/// NaN where singular values are equal, or 0. Townsend, "Differentiating the singular value decomposition", 2016. NaN for a matrix with a
/// number that is not finite.
Svd svd(const Tensor& a);

/// Solution x of a x = b, for a (..., N, N) and b (..., N, M), or (N) for one matrix a; by LU with partial pivoting. Leading dimensions are
/// broadcast. Throws Error for a matrix with a pivot of 0.
Tensor solve(const Tensor& a, const Tensor& b);
/// Inverse of a (..., N, N): solve(a, identity).
Tensor inverse(const Tensor& a);
/// Determinants (...) of a (..., N, N). The gradient throws Error for a singular matrix.
Tensor det(const Tensor& a);

}  // namespace tern
