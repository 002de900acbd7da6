// Rows of ops/linalg.h. Note [The table] in op_cases.h. Matrices are made dominant or definite within the call, so that errors are small
// and gradients of symmetric arguments those of the whole; signs, which are a decomposition's own, are made those of a diagonal.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "autodiff/engine.h"
#include "catch.h"
#include "op_cases.h"
#include "ops/factory.h"
#include "ops/linalg.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "skip.h"

namespace tern::op_cases {

using namespace reference;

namespace {

/// A matrix in float64, by rows.
struct Matrix {
  std::int64_t rows, columns;
  std::vector<double> values = std::vector<double>(static_cast<std::size_t>(rows * columns));
  double& operator()(std::int64_t i, std::int64_t j) { return values[static_cast<std::size_t>(i * columns + j)]; }
  double operator()(std::int64_t i, std::int64_t j) const { return values[static_cast<std::size_t>(i * columns + j)]; }
};

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix y{a.rows, b.columns};
  for (std::int64_t i = 0; i < a.rows; ++i)
    for (std::int64_t j = 0; j < b.columns; ++j)
      for (std::int64_t k = 0; k < a.columns; ++k) y(i, j) += a(i, k) * b(k, j);
  return y;
}
Matrix transposed(const Matrix& a) {
  Matrix y{a.columns, a.rows};
  for (std::int64_t i = 0; i < a.rows; ++i)
    for (std::int64_t j = 0; j < a.columns; ++j) y(j, i) = a(i, j);
  return y;
}

/// f(matrix) for each matrix of x, joined: f gives a list of matrices; those with one column are vectors of the result where told.
template <class F>
Arrays each_matrix(const Array& x, const std::vector<Shape>& shapes, F f) {
  const std::int64_t rows = x.size(-2), columns = x.size(-1);
  Shape lead = x.shape;
  lead.pop_back();
  lead.pop_back();
  Arrays results;
  for (const Shape& shape : shapes) {
    Shape whole = lead;
    for (std::int64_t size : shape) whole.push_back(size);
    results.push_back({whole, x.dtype, {}});
  }
  for (std::int64_t i = 0; i < numel(lead); ++i) {
    const auto first = x.values.begin() + i * rows * columns;
    const std::vector<Matrix> made = f(Matrix{rows, columns, {first, first + rows * columns}}, i);
    for (std::size_t k = 0; k < made.size(); ++k)
      results[k].values.insert(results[k].values.end(), made[k].values.begin(), made[k].values.end());
  }
  return results;
}

/// Eigenvalues in ascending order and vectors of a symmetric matrix, by Jacobi's rotations.
std::pair<std::vector<double>, Matrix> jacobi(Matrix a) {
  const std::int64_t n = a.rows;
  Matrix v{n, n};
  for (std::int64_t i = 0; i < n; ++i) v(i, i) = 1;
  for (int sweep = 0; sweep < 60; ++sweep)
    for (std::int64_t p = 0; p < n; ++p)
      for (std::int64_t q = p + 1; q < n; ++q) {
        if (std::abs(a(p, q)) < 1e-300) continue;
        const double angle = 0.5 * std::atan2(2 * a(p, q), a(q, q) - a(p, p)), c = std::cos(angle), s = std::sin(angle);
        Matrix turn{n, n};
        for (std::int64_t i = 0; i < n; ++i) turn(i, i) = 1;
        turn(p, p) = turn(q, q) = c;
        turn(p, q) = s;
        turn(q, p) = -s;
        a = product(product(transposed(turn), a), turn);
        v = product(v, turn);
      }
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::int64_t i, std::int64_t j) { return a(i, i) < a(j, j); });
  std::pair<std::vector<double>, Matrix> result{{}, Matrix{n, n}};
  for (std::int64_t k = 0; k < n; ++k) {
    const std::int64_t from = order[static_cast<std::size_t>(k)];
    result.first.push_back(a(from, from));
    for (std::int64_t i = 0; i < n; ++i) result.second(i, k) = v(i, from);
  }
  return result;
}

/// a^-1 b and the determinant of a, by elimination with pivots.
std::pair<Matrix, double> eliminated(Matrix a, Matrix b) {
  double determinant = 1;
  for (std::int64_t k = 0; k < a.rows; ++k) {
    std::int64_t pivot = k;
    for (std::int64_t i = k; i < a.rows; ++i)
      if (std::abs(a(i, k)) > std::abs(a(pivot, k))) pivot = i;
    if (pivot != k) {
      determinant = -determinant;
      for (std::int64_t j = 0; j < a.columns; ++j) std::swap(a(k, j), a(pivot, j));
      for (std::int64_t j = 0; j < b.columns; ++j) std::swap(b(k, j), b(pivot, j));
    }
    determinant *= a(k, k);
    for (std::int64_t i = 0; i < a.rows; ++i) {
      if (i == k) continue;
      const double factor = a(i, k) / a(k, k);
      for (std::int64_t j = 0; j < a.columns; ++j) a(i, j) -= factor * a(k, j);
      for (std::int64_t j = 0; j < b.columns; ++j) b(i, j) -= factor * b(k, j);
    }
  }
  for (std::int64_t i = 0; i < a.rows; ++i)
    for (std::int64_t j = 0; j < b.columns; ++j) b(i, j) /= a(i, i);
  return {b, determinant};
}

Matrix unit(std::int64_t n) {
  Matrix y{n, n};
  for (std::int64_t i = 0; i < n; ++i) y(i, i) = 1;
  return y;
}

/// x plus a diagonal first, first + step, ...: singular values and eigenvalues that are far from each other, or from 0.
Tensor dominant(T x, double first = 3, double step = 0) {
  const std::int64_t k = std::min(x.size(-2), x.size(-1));
  const Tensor line = cast(arange(x.size(-1), DType::i64, x.device()), x.dtype()) * step + first;
  return x + eye(x.size(-2), x.size(-1), 0, x.dtype(), x.device()) * (k > 0 ? line : zeros_like(line));
}
Matrix dominant(Matrix x, double first = 3, double step = 0) {
  for (std::int64_t i = 0; i < std::min(x.rows, x.columns); ++i) x(i, i) += first + step * double(i);
  return x;
}
Tensor symmetric(T x) { return (x + transpose(x, -2, -1)) * 0.5; }
Matrix symmetric(const Matrix& x) {
  Matrix y = x;
  for (std::int64_t i = 0; i < x.rows; ++i)
    for (std::int64_t j = 0; j < x.rows; ++j) y(i, j) = (x(i, j) + x(j, i)) / 2;
  return y;
}

const std::vector<Shape> squares = {{0, 2, 2}, {1, 1}, {31, 2, 2}, {33, 1, 1}, {1025, 1, 1}, {3, 3}, {2, 2, 2}, {0, 0}, {33, 33}};
const std::vector<Shape> oblongs = {{0, 3, 2}, {1, 1}, {31, 2, 2}, {33, 2, 1}, {1025, 1, 1}, {4, 3}, {2, 3, 2}, {3, 0}};

Row row_of(const char* name, void (*f)(T), bool is_square = true) {
  Row row{name, {}};
  row.dtypes = {DType::f64, DType::f32};
  row.slack = 60;
  row.mistakes = {{[=] { f(sample({3})); }, {"(3,)"}}, {[=] { f(sample({2, 2}, DType::bf16)); }, {"f32 or f64", "bf16"}}};
  if (is_square) row.mistakes.push_back({[=] { f(sample({2, 3})); }, {"square", "(2, 3)"}});
  return row;
}

template <class F, class G>
void add(Row& row, const std::vector<Shape>& shapes, F f, G g) {
  for (const Shape& shape : shapes)
    row.cases.push_back({{value(shape, -0.8, 0.8)}, [=](In in) { return f(in[0]); }, [=](Ref in) { return g(in[0]); }});
}

void add_solutions(Rows& rows) {
  Row row = row_of("inverse", [](T x) { inverse(x); });
  add(
      row, squares, [](T x) -> Tensors { return {inverse(dominant(x))}; },
      [](const Array& x) {
        return each_matrix(x, {{x.size(-2), x.size(-2)}},
                           [](const Matrix& a, std::int64_t) { return std::vector{eliminated(dominant(a), unit(a.rows)).first}; });
      });
  row.mistakes.push_back({[] { inverse(sample({2, 2})); }, {"regular", "matrix 0"}, "solve"});
  rows.push_back(row);

  row = row_of("det", [](T x) { det(x); });
  add(
      row, squares, [](T x) -> Tensors { return {det(dominant(x, 1))}; },
      [](const Array& x) {
        return each_matrix(x, {{}}, [](const Matrix& a, std::int64_t) {
          return std::vector{Matrix{1, 1, {eliminated(dominant(a, 1), unit(a.rows)).second}}};
        });
      });
  std::erase_if(row.cases, [](const Case& op) { return op.inputs[0].shape == Shape{33, 33}; });  // whose determinant says little
  rows.push_back(row);

  row = row_of("solve", [](T x) { solve(x, sample({2})); });
  struct Sides {
    Shape a, b;
  };
  for (const Sides& s : {Sides{{0, 2, 2}, {2, 3}},
                         {{1, 1}, {1}},
                         {{31, 2, 2}, {31, 2, 1}},
                         {{33, 1, 1}, {1, 2}},
                         {{1025, 1, 1}, {1025, 1, 1}},
                         {{3, 3}, {3, 2}},
                         {{3, 3}, {3}},
                         {{2, 2}, {3, 2, 2}},
                         {{2, 2, 2}, {2, 1}}})
    row.cases.push_back({{value(s.a, -0.8, 0.8), value(s.b)},
                         [](In in) -> Tensors { return {solve(in[0].device() == in[1].device() ? dominant(in[0]) : in[0], in[1])}; },
                         [=](Ref in) {
                           const bool is_vector = s.b.size() == 1;
                           const std::int64_t n = s.a.back(), m = is_vector ? 1 : s.b.back();
                           // One of the two may have leading dimensions that the other lacks.
                           const std::int64_t count =
                               n * n == 0 ? 0 : std::max(numel(s.a) / (n * n), numel(s.a) == 0 ? 0 : numel(s.b) / (n * m));
                           Array y{{}, in.dtype, {}};
                           if (s.a.size() == 3 || s.b.size() == 3) y.shape.push_back(count);
                           y.shape.push_back(n);
                           if (!is_vector) y.shape.push_back(m);
                           for (std::int64_t i = 0; i < count; ++i) {
                             const auto part = [&](const Array& x, std::int64_t size) {
                               const std::int64_t at = std::int64_t(x.values.size()) > size ? i * size : 0;
                               return std::vector<double>(x.values.begin() + at, x.values.begin() + at + size);
                             };
                             const Matrix x =
                                 eliminated(dominant(Matrix{n, n, part(in[0], n * n)}), Matrix{n, m, part(in[1], n * m)}).first;
                             y.values.insert(y.values.end(), x.values.begin(), x.values.end());
                           }
                           return one(y);
                         }});
  row.mistakes.push_back({[] { solve(sample({2, 2}), sample({3, 2})); }, {"(3, 2)"}});
  row.mistakes.push_back({[] { solve(sample({2, 2}), sample({2}, DType::f64)); }, {"f32", "f64"}});
  row.mistakes.push_back({[] { solve(sample({2, 2}), sample({2})); }, {"regular", "matrix 0"}});
  row.mistakes.push_back({[] { solve(sample({3, 2, 2}), sample({4, 2, 2})); }, {"(3,)", "(4,)"}});
  rows.push_back(row);
}

void add_decompositions(Rows& rows) {
  Row row = row_of("cholesky", [](T x) { cholesky(x); });
  const auto definite = [](T x) { return dominant(matmul(x, transpose(x, -2, -1)), 1); };
  add(
      row, squares, [=](T x) -> Tensors { return {cholesky(definite(x))}; },
      [](const Array& x) {
        return each_matrix(x, {{x.size(-2), x.size(-2)}}, [](const Matrix& given, std::int64_t) {
          const Matrix a = dominant(product(given, transposed(given)), 1);
          Matrix l{a.rows, a.rows};
          for (std::int64_t i = 0; i < a.rows; ++i)
            for (std::int64_t j = 0; j <= i; ++j) {
              double rest = a(i, j);
              for (std::int64_t k = 0; k < j; ++k) rest -= l(i, k) * l(j, k);
              l(i, j) = i == j ? std::sqrt(rest) : rest / l(j, j);
            }
          return std::vector{l};
        });
      });
  row.mistakes.push_back({[] { cholesky(neg(eye(2))); }, {"positive definite", "matrix 0"}});
  rows.push_back(row);

  row = row_of("qr", [](T x) { qr(x); }, false);
  const auto signed_qr = [](T x) -> Tensors {
    const Qr y = qr(dominant(x));
    const Tensor signs = sign(diagonal(y.r)).detach();
    return {y.q * unsqueeze(signs, -2), y.r * unsqueeze(signs, -1)};
  };
  const auto gram_schmidt = [](const Array& x) {
    const std::int64_t k = std::min(x.size(-2), x.size(-1));
    return each_matrix(x, {{x.size(-2), k}, {k, x.size(-1)}}, [k](const Matrix& given, std::int64_t) {
      const Matrix a = dominant(given);
      Matrix q{a.rows, k};
      for (std::int64_t j = 0; j < k; ++j) {
        std::vector<double> column;
        for (std::int64_t i = 0; i < a.rows; ++i) column.push_back(a(i, j));
        for (std::int64_t before = 0; before < j; ++before) {
          double along_it = 0;
          for (std::int64_t i = 0; i < a.rows; ++i) along_it += q(i, before) * column[std::size_t(i)];
          for (std::int64_t i = 0; i < a.rows; ++i) column[std::size_t(i)] -= along_it * q(i, before);
        }
        const double length = std::sqrt(std::inner_product(column.begin(), column.end(), column.begin(), 0.0));
        for (std::int64_t i = 0; i < a.rows; ++i) q(i, j) = column[std::size_t(i)] / length;
      }
      return std::vector{q, product(transposed(q), a)};
    });
  };
  add(row, oblongs, signed_qr, gram_schmidt);
  add(row, {{2, 3}}, signed_qr, gram_schmidt);
  row.cases.back().inputs[0].differentiable = false;  // with more columns than rows there is none
  rows.push_back(row);

  row = row_of("eigh", [](T x) { eigh(x); });
  const auto signed_eigh = [](T x) -> Tensors {
    const Eigh y = eigh(dominant(symmetric(x), 1, 4));
    return {y.values, y.vectors * unsqueeze(sign(diagonal(y.vectors)).detach(), -2)};
  };
  add(row, squares, signed_eigh, [](const Array& x) {
    return each_matrix(x, {{x.size(-1)}, {x.size(-1), x.size(-1)}}, [](const Matrix& a, std::int64_t) {
      auto [values, vectors] = jacobi(dominant(symmetric(a), 1, 4));
      for (std::int64_t j = 0; j < a.rows; ++j)
        for (std::int64_t i = 0, is_negative = vectors(j, j) < 0; i < a.rows; ++i)
          vectors(i, j) = is_negative ? -vectors(i, j) : vectors(i, j);
      return std::vector{Matrix{a.rows, 1, values}, vectors};
    });
  });
  std::erase_if(row.cases, [](const Case& op) { return op.inputs[0].shape == Shape{33, 33}; });
  rows.push_back(row);

  row = row_of("svd", [](T x) { svd(x); }, false);
  add(
      row, {{0, 3, 2}, {1, 1}, {31, 2, 2}, {33, 2, 1}, {1025, 1, 1}, {4, 3}, {2, 4}, {2, 3, 2}, {3, 0}},
      [](T x) -> Tensors {
        const Svd y = svd(dominant(x, 2, 3));
        // Each output and the product of all, in forms that do not depend on signs.
        return {y.s, matmul(y.u * unsqueeze(square(y.s), -2), y.vt), square(y.u), square(y.vt)};
      },
      [](const Array& x) {
        const std::int64_t k = std::min(x.size(-2), x.size(-1));
        return each_matrix(x, {{k}, {x.size(-2), x.size(-1)}, {x.size(-2), k}, {k, x.size(-1)}}, [k](const Matrix& given, std::int64_t) {
          const Matrix a = dominant(given, 2, 3);
          const auto [squared, v] = jacobi(product(transposed(a), a));
          Matrix s{k, 1}, u2{a.rows, k}, vt2{k, a.columns}, weighted{a.rows, a.columns};
          for (std::int64_t j = 0; j < k; ++j) {
            const std::int64_t from = a.columns - 1 - j;
            s(j, 0) = std::sqrt(squared[std::size_t(from)]);
            Matrix line{a.columns, 1};
            for (std::int64_t i = 0; i < a.columns; ++i) {
              line(i, 0) = v(i, from);
              vt2(j, i) = line(i, 0) * line(i, 0);
            }
            const Matrix image = product(a, line);
            for (std::int64_t i = 0; i < a.rows; ++i) {
              u2(i, j) = std::pow(image(i, 0) / s(j, 0), 2);
              for (std::int64_t c = 0; c < a.columns; ++c) weighted(i, c) += image(i, 0) * s(j, 0) * line(c, 0);
            }
          }
          return std::vector{s, weighted, u2, vt2};
        });
      });
  rows.push_back(row);
}

}  // namespace

void add_linalg(Rows& rows) {
  add_solutions(rows);
  add_decompositions(rows);
}

TEST_CASE("Without Eigen linear algebra says what to install") {
  if (has_linalg()) {
    CHECK(inverse(eye(2, {.dtype = DType::f64})).to_vector<double>() == std::vector<double>{1, 0, 0, 1});
    return;
  }
  test::skip("a build without Eigen");
  CHECK_THROWS_WITH(inverse(eye(2)), "[inverse] expected a build with Eigen: install libeigen3-dev, and configure and build again");
}

}  // namespace tern::op_cases
