// The one file that includes Eigen: it compiles for 40 s, and for 120 with BDCSVD, which is faster than JacobiSVD for hundreds of rows.
// In a build without Eigen nobody calls these functions.
#include "ops/detail/linalg_eigen.h"

#ifdef TERN_EIGEN
#include <Eigen/Cholesky>
#include <Eigen/Eigenvalues>
#include <Eigen/LU>
#include <Eigen/QR>
#include <Eigen/SVD>
#include <algorithm>
#include <limits>

namespace tern::detail::linalg {

namespace {

template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Matrix i of a batch of such.
template <class T>
Eigen::Map<const Matrix<T>> matrix(const void* data, std::int64_t i, std::int64_t rows, std::int64_t columns) {
  return {static_cast<const T*>(data) + i * rows * columns, rows, columns};
}
template <class T>
Eigen::Map<Matrix<T>> matrix(void* data, std::int64_t i, std::int64_t rows, std::int64_t columns) {
  return {static_cast<T*>(data) + i * rows * columns, rows, columns};
}

/// Calls f.operator()<T>(i) for every matrix of the batch until one is refused: its index, or -1.
template <class F>
std::int64_t for_each(const Batch& batch, F f) {
  if (batch.rows == 0 || batch.columns == 0) return -1;
  for (std::int64_t i = 0; i < batch.count; ++i)
    if (!(batch.dtype == DType::f64 ? f.template operator()<double>(i) : f.template operator()<float>(i))) return i;
  return -1;
}

}  // namespace

std::int64_t cholesky(const Batch& b, const void* a, void* l) {
  return for_each(b, [&]<class T>(std::int64_t i) {
    const Eigen::LLT<Matrix<T>> decomposition(matrix<T>(a, i, b.rows, b.rows));
    matrix<T>(l, i, b.rows, b.rows) = decomposition.matrixL();
    return decomposition.info() == Eigen::Success;
  });
}

void qr(const Batch& b, const void* a, void* q, void* r) {
  const std::int64_t k = std::min(b.rows, b.columns);
  for_each(b, [&]<class T>(std::int64_t i) {
    const Eigen::HouseholderQR<Matrix<T>> decomposition(matrix<T>(a, i, b.rows, b.columns));
    const Matrix<T> first_columns = Matrix<T>::Identity(b.rows, k);
    matrix<T>(q, i, b.rows, k) = decomposition.householderQ() * first_columns;
    const Matrix<T> top = decomposition.matrixQR().topRows(k);
    matrix<T>(r, i, k, b.columns) = top.template triangularView<Eigen::Upper>();
    return true;
  });
}

void eigh(const Batch& b, const void* a, void* values, void* vectors) {
  for_each(b, [&]<class T>(std::int64_t i) {
    const Eigen::SelfAdjointEigenSolver<Matrix<T>> solver(matrix<T>(a, i, b.rows, b.rows));
    matrix<T>(values, i, b.rows, 1) = solver.eigenvalues();
    matrix<T>(vectors, i, b.rows, b.rows) = solver.eigenvectors();
    // Of numbers that are not finite the iteration does not end.
    if (solver.info() != Eigen::Success) {
      matrix<T>(values, i, b.rows, 1).setConstant(std::numeric_limits<T>::quiet_NaN());
      matrix<T>(vectors, i, b.rows, b.rows).setConstant(std::numeric_limits<T>::quiet_NaN());
    }
    return true;
  });
}

void svd(const Batch& b, const void* a, void* u, void* s, void* vt) {
  const std::int64_t k = std::min(b.rows, b.columns);
  for_each(b, [&]<class T>(std::int64_t i) {
    const Eigen::JacobiSVD<Matrix<T>> decomposition(matrix<T>(a, i, b.rows, b.columns), Eigen::ComputeThinU | Eigen::ComputeThinV);
    matrix<T>(u, i, b.rows, k) = decomposition.matrixU();
    matrix<T>(s, i, k, 1) = decomposition.singularValues();
    matrix<T>(vt, i, k, b.columns) = decomposition.matrixV().transpose();
    return true;
  });
}

std::int64_t solve(const Batch& b, const void* a, const void* right, std::int64_t width, void* x) {
  if (width == 0) return -1;  // Eigen takes no null pointer
  return for_each(b, [&]<class T>(std::int64_t i) {
    const Eigen::PartialPivLU<Matrix<T>> decomposition(matrix<T>(a, i, b.rows, b.rows));
    matrix<T>(x, i, b.rows, width) = decomposition.solve(matrix<T>(right, i, b.rows, width));
    return !(decomposition.matrixLU().diagonal().array() == T(0)).any();
  });
}

void det(const Batch& b, const void* a, void* values) {
  const auto one = [&]<class T>() { std::fill_n(static_cast<T*>(values), b.count, T(1)); };  // of matrices without elements
  if (b.rows == 0) b.dtype == DType::f64 ? one.template operator()<double>() : one.template operator()<float>();
  for_each(b, [&]<class T>(std::int64_t i) {
    static_cast<T*>(values)[i] = Eigen::PartialPivLU<Matrix<T>>(matrix<T>(a, i, b.rows, b.rows)).determinant();
    return true;
  });
}

}  // namespace tern::detail::linalg

#else

namespace tern::detail::linalg {

std::int64_t cholesky(const Batch&, const void*, void*) { return -1; }
void qr(const Batch&, const void*, void*, void*) {}
void eigh(const Batch&, const void*, void*, void*) {}
void svd(const Batch&, const void*, void*, void*, void*) {}
std::int64_t solve(const Batch&, const void*, const void*, std::int64_t, void*) { return -1; }
void det(const Batch&, const void*, void*) {}

}  // namespace tern::detail::linalg

#endif
