// The only file that includes Eigen: it compiles for 40 s, and for 120 s with BDCSVD, which is faster than JacobiSVD for hundreds of rows.
// In a build without Eigen only has_linalg may be called.
#include "ops/kernels/linalg.h"

#ifdef TERN_EIGEN
#include <Eigen/Cholesky>
#include <Eigen/Eigenvalues>
#include <Eigen/LU>
#include <Eigen/QR>
#include <Eigen/SVD>
#include <algorithm>
#include <cmath>
#include <limits>

#include "tensor/dispatch.h"

namespace tern::kernels {

namespace {

template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Matrices of a view (..., M, N), numbered over its leading dimensions.
class Matrices {
 public:
  explicit Matrices(const View& x) : x_(x), last_(x.dims() - 1) {}
  std::int64_t rows() const { return x_.shape[last_ - 1]; }
  std::int64_t columns() const { return x_.shape[last_]; }
  std::int64_t count() const {
    std::int64_t n = 1;
    for (int d = 0; d < last_ - 1; ++d) n *= x_.shape[d];
    return n;
  }
  /// A copy of matrix i.
  template <class T>
  Matrix<T> take(std::int64_t i) const {
    const T* first = x_.as<const T>();
    for (int d = last_ - 2; d >= 0; --d) {
      first += i % x_.shape[d] * x_.strides[d];
      i /= x_.shape[d];
    }
    Matrix<T> y(rows(), columns());
    for (std::int64_t row = 0; row < rows(); ++row)
      for (std::int64_t column = 0; column < columns(); ++column)
        y(row, column) = first[row * x_.strides[last_ - 1] + column * x_.strides[last_]];
    return y;
  }

 private:
  const View& x_;
  int last_;
};

/// Matrix i of a contiguous result.
template <class T>
Eigen::Map<Matrix<T>> part(const View& y, std::int64_t i, std::int64_t rows, std::int64_t columns) {
  return {y.as<T>() + i * rows * columns, rows, columns};
}
template <class T>
void fill_part(const View& y, std::int64_t i, std::int64_t size, T value) {
  std::fill_n(y.as<T>() + i * size, size, value);
}

/// Calls f.operator()<T>(i) for every matrix until one fails: returns its index, or -1.
template <class F>
std::int64_t for_each(const View& a, F f) {
  const Matrices all(a);
  if (all.rows() == 0 || all.columns() == 0) return -1;
  return dispatch_f32_f64(a.dtype, "linalg", [&]<class T>() -> std::int64_t {
    for (std::int64_t i = 0; i < all.count(); ++i)
      if (!f.template operator()<T>(i)) return i;
    return -1;
  });
}

/// True if a vector has to be negated, see Note [Signs].
template <class V>
bool is_to_be_negated(const V& vector) {
  using T = typename V::Scalar;
  const T large = vector.cwiseAbs().maxCoeff() * static_cast<T>(large_element);
  for (Eigen::Index i = 0; i < vector.size(); ++i)
    if (std::abs(vector[i]) >= large) return vector[i] < 0;
  return false;
}

}  // namespace

bool has_linalg(Cpu) { return true; }

std::int64_t Cholesky::run(Cpu) const {
  const Matrices all(a);
  return for_each(a, [&]<class T>(std::int64_t i) {
    const Eigen::LLT<Matrix<T>> decomposition(all.take<T>(i));
    auto y = part<T>(l, i, all.rows(), all.rows());
    y = decomposition.matrixL();
    return decomposition.info() == Eigen::Success && (y.diagonal().array() > T(0)).all();  // false for a NaN
  });
}

void Qr::run(Cpu) const {
  const Matrices all(a);
  const std::int64_t k = std::min(all.rows(), all.columns());
  for_each(a, [&]<class T>(std::int64_t i) {
    const Eigen::HouseholderQR<Matrix<T>> decomposition(all.take<T>(i));
    const Matrix<T> first_columns = Matrix<T>::Identity(all.rows(), k);
    auto y = part<T>(q, i, all.rows(), k), triangle = part<T>(r, i, k, all.columns());
    y = decomposition.householderQ() * first_columns;
    const Matrix<T> top = decomposition.matrixQR().topRows(k);
    triangle = top.template triangularView<Eigen::Upper>();
    for (std::int64_t j = 0; j < k; ++j) {
      if (!(triangle(j, j) < 0)) continue;
      y.col(j) *= T(-1);
      triangle.row(j).tail(all.columns() - j) *= T(-1);
    }
    return true;
  });
}

void Eigh::run(Cpu) const {
  const Matrices all(a);
  const std::int64_t n = all.rows();
  for_each(a, [&]<class T>(std::int64_t i) {
    Matrix<T> x = all.take<T>(i);
    x.template triangularView<Eigen::StrictlyUpper>().setZero();
    constexpr T nan = std::numeric_limits<T>::quiet_NaN();
    Eigen::SelfAdjointEigenSolver<Matrix<T>> solver;
    // The iteration does not terminate for numbers that are not finite.
    if (!x.allFinite() || solver.compute(x).info() != Eigen::Success) {
      fill_part<T>(values, i, n, nan);
      fill_part<T>(vectors, i, n * n, nan);
      return true;
    }
    part<T>(values, i, n, 1) = solver.eigenvalues();
    auto y = part<T>(vectors, i, n, n);
    y = solver.eigenvectors();
    for (std::int64_t j = 0; j < n; ++j)
      if (is_to_be_negated(y.col(j))) y.col(j) *= T(-1);
    return true;
  });
}

void Svd::run(Cpu) const {
  const Matrices all(a);
  const std::int64_t m = all.rows(), n = all.columns(), k = std::min(m, n);
  for_each(a, [&]<class T>(std::int64_t i) {
    const Matrix<T> x = all.take<T>(i);
    if (!x.allFinite()) {  // Eigen would leave its results unset
      constexpr T nan = std::numeric_limits<T>::quiet_NaN();
      fill_part<T>(u, i, m * k, nan);
      fill_part<T>(s, i, k, nan);
      fill_part<T>(vt, i, k * n, nan);
      return true;
    }
    const Eigen::JacobiSVD<Matrix<T>> decomposition(x, Eigen::ComputeThinU | Eigen::ComputeThinV);
    auto left = part<T>(u, i, m, k), right = part<T>(vt, i, k, n);
    left = decomposition.matrixU();
    part<T>(s, i, k, 1) = decomposition.singularValues();
    right = decomposition.matrixV().transpose();
    for (std::int64_t j = 0; j < k; ++j) {
      if (!is_to_be_negated(left.col(j))) continue;
      left.col(j) *= T(-1);
      right.row(j) *= T(-1);
    }
    return true;
  });
}

std::int64_t Solve::run(Cpu) const {
  const Matrices all(a), sides(b);
  if (sides.columns() == 0) return -1;  // Eigen takes no null pointers
  return for_each(a, [&]<class T>(std::int64_t i) {
    const Eigen::PartialPivLU<Matrix<T>> decomposition(all.take<T>(i));
    part<T>(x, i, all.rows(), sides.columns()) = decomposition.solve(sides.take<T>(i));
    return !(decomposition.matrixLU().diagonal().array() == T(0)).any();
  });
}

void Det::run(Cpu) const {
  const Matrices all(a);
  const auto one = [&]<class T>() { fill_part<T>(values, 0, all.count(), T(1)); };  // for matrices without elements
  if (all.rows() == 0) dispatch_f32_f64(values.dtype, "det", one);
  for_each(a, [&]<class T>(std::int64_t i) {
    values.as<T>()[i] = Eigen::PartialPivLU<Matrix<T>>(all.take<T>(i)).determinant();
    return true;
  });
}

}  // namespace tern::kernels

#else

namespace tern::kernels {

bool has_linalg(Cpu) { return false; }
std::int64_t Cholesky::run(Cpu) const { fail_without_linalg(); }
void Qr::run(Cpu) const { fail_without_linalg(); }
void Eigh::run(Cpu) const { fail_without_linalg(); }
void Svd::run(Cpu) const { fail_without_linalg(); }
std::int64_t Solve::run(Cpu) const { fail_without_linalg(); }
void Det::run(Cpu) const { fail_without_linalg(); }

}  // namespace tern::kernels

#endif
