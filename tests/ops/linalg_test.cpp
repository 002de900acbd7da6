// Cases of ops/linalg.h that the table cannot show: signs, numbers that are not finite, and on a GPU sizes and batches on both sides of
// each choice between functions of cuSOLVER. Matrices have a known condition: orthogonal ones times a spectrum.
#include "ops/linalg.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "autodiff/engine.h"
#include "catch.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "skip.h"

namespace tern {

namespace {

using Doubles = std::vector<double>;
constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();

Doubles list(const Tensor& x) { return cast(to(x.detach(), cpu), DType::f64).to_vector<double>(); }
Tensor mt(const Tensor& x) { return transpose(x, -2, -1); }

/// The largest difference, of the largest magnitude or 1; infinite where one is NaN and the other is not, or shapes differ.
double error(const Tensor& got, const Tensor& want) {
  if (got.shape() != want.shape()) return infinity;
  const Doubles a = list(got), b = list(want);
  double largest = 1, off = 0;
  for (const double value : b) largest = std::max(largest, std::isfinite(value) ? std::abs(value) : 0);
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    const double difference = std::abs(a[i] - b[i]);
    off = std::isnan(difference) ? infinity : std::max(off, difference);
  }
  return off / largest;
}

Shape shape_of(std::int64_t batch, std::int64_t rows, std::int64_t columns) {
  return batch < 0 ? Shape{rows, columns} : Shape{batch, rows, columns};
}
/// f64, on the CPU; a negative batch is a single matrix.
Tensor noise(std::int64_t batch, std::int64_t rows, std::int64_t columns, int seed) {
  manual_seed(static_cast<std::uint64_t>(seed));
  return randn(shape_of(batch, rows, columns), 0, 1, DType::f64, cpu);
}
/// With singular values 1, 1 + 1 / k, ... 2: far from each other and from 0.
Tensor regular(std::int64_t batch, std::int64_t rows, std::int64_t columns, int seed) {
  const std::int64_t k = std::min(rows, columns);
  const Tensor spectrum = arange(k, DType::f64) / double(std::max<std::int64_t>(k, 1)) + 1;
  return matmul(qr(noise(batch, rows, k, seed)).q * spectrum, mt(qr(noise(batch, columns, k, seed + 1)).q));
}
/// Symmetric, with eigenvalues that lie so, of both signs where told.
Tensor symmetric(std::int64_t batch, std::int64_t n, int seed, bool both_signs) {
  const Tensor q = qr(noise(batch, n, n, seed)).q;
  const Tensor line = arange(n, DType::f64) / double(n);
  const Tensor a = matmul(q * (both_signs ? line - 0.4 : line + 1), mt(q));
  return (a + mt(a)) * 0.5;
}

/// Whether each column's first element of at least 0.9 of its largest magnitude is positive.
bool has_signs(const Tensor& vectors) {
  const Tensor lines = contiguous(mt(vectors));
  const Doubles all = list(lines);
  const auto length = static_cast<std::size_t>(lines.size(-1));
  // Of a float the rule takes 0.9 as a float; a double holds both.
  const auto large = [&](double largest) {
    return vectors.dtype() == DType::f32 ? double(static_cast<float>(largest) * static_cast<float>(0.9)) : largest * 0.9;
  };
  for (std::size_t start = 0; start < all.size(); start += length) {
    double largest = 0;
    for (std::size_t i = 0; i < length; ++i) largest = std::max(largest, std::abs(all[start + i]));
    for (std::size_t i = 0; i < length; ++i)
      if (std::abs(all[start + i]) >= large(largest)) {
        if (all[start + i] < 0) return false;
        break;
      }
  }
  return true;
}
bool has_no_negative(const Tensor& x) {
  for (const double value : list(x))
    if (value < 0) return false;
  return true;
}
Tensor unit(const Tensor& like) { return eye(like.size(-1), {.dtype = DType::f64, .device = cpu}) + zeros(like.shape(), DType::f64, cpu); }
Tensor doubled(const Tensor& x) { return cast(to(x.detach(), cpu), DType::f64); }

bool all_nan(const Tensor& x) {
  for (const double value : list(x))
    if (!std::isnan(value)) return false;
  return true;
}

/// A batch, with one number in one of its matrices replaced.
Tensor with_number(const Tensor& x, std::int64_t matrix, std::int64_t row, std::int64_t column, double value) {
  const Tensor y = clone(x);
  fill_(y[{matrix, row, column}], value);
  return y;
}

void check_numbers_that_are_not_finite(Device device, std::int64_t n, DType dtype) {
  CAPTURE(n);
  const Tensor good = to(cast(symmetric(3, n, 5, false), dtype), device);
  for (const double number : {nan, infinity}) {
    const Tensor spoilt = with_number(good, 1, n - 1, 0, number);
    const Eigh spectrum = eigh(spoilt), want = eigh(good);
    CHECK((all_nan(spectrum.values[1]) && all_nan(spectrum.vectors[1])));
    CHECK(list(spectrum.values[0]) == list(want.values[0]));
    CHECK(list(spectrum.vectors[2]) == list(want.vectors[2]));
    const Svd parts = svd(spoilt), whole = svd(good);
    CHECK((all_nan(parts.u[1]) && all_nan(parts.s[1]) && all_nan(parts.vt[1])));
    CHECK(list(parts.s[0]) == list(whole.s[0]));
    CHECK(list(parts.vt[2]) == list(whole.vt[2]));
  }
  // Above the diagonal nothing is read.
  if (n > 1) {
    const Tensor above = with_number(good, 1, 0, n - 1, nan);
    CHECK(list(eigh(above).values) == list(eigh(good).values));
    CHECK(list(cholesky(above)) == list(cholesky(good)));
  }
  CHECK_THROWS_WITH(cholesky(with_number(good, 1, n - 1, 0, nan)), "[cholesky] expected positive definite matrices but matrix 1 is not");
  CHECK(std::isnan(list(det(with_number(good, 2, n - 1, n - 1, nan)))[2]));
}

void check_refusals(Device device, std::int64_t batch, std::int64_t n, DType dtype) {
  CAPTURE(batch, n);
  const Tensor good = to(cast(symmetric(batch, n, 9, false), dtype), device);
  Tensor bad = clone(good);
  for (const std::int64_t matrix : {batch - 1, batch / 2}) fill_(bad[{matrix, n - 1, n - 1}], -9);
  const std::string first = "matrix " + std::to_string(batch / 2) + " is not";
  CHECK_THROWS_WITH(cholesky(bad), "[cholesky] expected positive definite matrices but " + first);
  bad = clone(good);
  for (const std::int64_t matrix : {batch - 1, batch / 2}) fill_(bad[{matrix, ellipsis, n / 2}], 0);
  CHECK_THROWS_WITH(solve(bad, bad), "[solve] expected regular matrices but " + first);
  CHECK_THROWS_WITH(inverse(bad), "[solve] expected regular matrices but " + first);
  const Doubles values = list(det(bad));
  for (std::int64_t i = 0; i < batch; ++i) CHECK((values[static_cast<std::size_t>(i)] == 0) == (i == batch - 1 || i == batch / 2));
}

}  // namespace

TEST_CASE("Decompositions have one choice of signs") {
  if (!has_linalg()) return;
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const std::int64_t n : {1, 3, 17}) {
      const Tensor a = cast(noise(4, n, n, 3), dtype);
      const Qr parts = qr(a);
      CHECK(has_no_negative(diagonal(parts.r)));
      CHECK(error(matmul(parts.q, parts.r), a) < (dtype == DType::f64 ? 1e-14 : 1e-5));
      const Eigh spectrum = eigh(a + mt(a));
      CHECK(has_signs(spectrum.vectors));
      const Svd values = svd(a);
      CHECK(has_signs(values.u));
      CHECK(error(matmul(values.u * unsqueeze(values.s, -2), values.vt), a) < (dtype == DType::f64 ? 1e-14 : 1e-5));
    }
  }
  // Elements of equal magnitude: the first one decides, and not their roundings.
  const Doubles vectors = list(eigh(Tensor::from(Doubles{2, 1, 1, 2}, {2, 2}, cpu)).vectors);
  const double half = std::sqrt(0.5);
  const Doubles want = {half, half, -half, half};
  for (std::size_t i = 0; i < 4; ++i) CHECK(vectors[i] == Approx(want[i]));
}

TEST_CASE("Linear algebra refuses a matrix and keeps NaN within one") {
  if (!has_linalg()) return;
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const std::int64_t n : {1, 3, 33}) check_numbers_that_are_not_finite(cpu, n, dtype);
    check_refusals(cpu, 5, 3, dtype);
  }
}

/// Decompositions of a matrix on a GPU have the properties that define them, and numbers that are the CPU's.
static void check_square(std::int64_t batch, std::int64_t n, DType dtype) {
  CAPTURE(batch, n, name(dtype));
  const double limit = (dtype == DType::f64 ? 1e-13 : 2e-5) * (n > 64 ? 4 : 1);
  const auto given = [&](const Tensor& x) { return cast(x, dtype); };
  const auto there = [](const Tensor& x) { return to(x, cuda()); };
  const bool is_empty = batch == 0;

  const Tensor a = given(regular(batch, n, n, 11)), definite = given(symmetric(batch, n, 12, false)),
               indefinite = given(symmetric(batch, n, 13, true)), b = given(noise(batch, n, 5, 14));
  const Tensor l = cholesky(there(definite));
  CHECK(l.device() == cuda());
  CHECK(error(l, cholesky(definite)) < limit);
  CHECK(error(triu(l, 1), zeros_like(l)) == 0);
  CHECK(error(solve(there(a), there(b)), solve(a, b)) < 10 * limit);
  CHECK(error(solve(there(mt(a)), there(b)), solve(mt(a), b)) < 10 * limit);
  // Transposed on the GPU: the kernels meet the strides themselves.
  CHECK(error(solve(mt(there(a)), mt(there(contiguous(mt(b))))), solve(mt(a), b)) < 10 * limit);
  const Tensor column = slice(b, -1, 0, 1);
  CHECK(error(solve(there(a), slice(there(b), -1, 0, 1)), solve(a, column)) < 10 * limit);
  CHECK(error(inverse(there(a)), inverse(a)) < 10 * limit);
  const Tensor determinants = det(there(a)), want = det(a);
  CHECK(error(determinants / to(want, cuda()), ones_like(want)) < 10 * limit * double(n));

  const Tensor upper = there(mt(indefinite));
  const Eigh spectrum = eigh(upper);
  CHECK(spectrum.vectors.device() == cuda());
  CHECK(error(spectrum.values, eigh(indefinite).values) < limit);
  const Tensor v = doubled(spectrum.vectors);
  if (!is_empty) {
    CHECK(error(matmul(v * unsqueeze(doubled(spectrum.values), -2), mt(v)), doubled(indefinite)) < 10 * limit);
    CHECK(error(matmul(mt(v), v), unit(v)) < 10 * limit);
  }
  CHECK(has_signs(spectrum.vectors));
}

static void check_oblong(std::int64_t batch, std::int64_t rows, std::int64_t columns, DType dtype) {
  CAPTURE(batch, rows, columns, name(dtype));
  const double limit = dtype == DType::f64 ? 1e-12 : 1e-4;
  const Tensor a = cast(regular(batch, rows, columns, 21), dtype), there = to(a, cuda()), strided = mt(to(contiguous(mt(a)), cuda()));
  for (const Tensor& x : {there, strided}) {
    const Qr parts = qr(x), want = qr(a);
    CHECK(parts.r.device() == cuda());
    CHECK(error(parts.q, want.q) < limit);
    CHECK(error(parts.r, want.r) < limit);
    CHECK(error(tril(parts.r, -1), zeros_like(parts.r)) == 0);
    CHECK(has_no_negative(diagonal(parts.r)));
    const Svd values = svd(x);
    CHECK(error(values.s, svd(a).s) < limit);
    CHECK(has_signs(values.u));
    if (batch == 0) continue;
    const Tensor q = doubled(parts.q), u = doubled(values.u), vt = doubled(values.vt);
    CHECK(error(matmul(mt(q), q), unit(matmul(mt(q), q))) < limit);
    CHECK(error(matmul(mt(u), u), unit(matmul(mt(u), u))) < limit);
    CHECK(error(matmul(vt, mt(vt)), unit(matmul(vt, mt(vt)))) < limit);
    CHECK(error(matmul(u * unsqueeze(doubled(values.s), -2), vt), doubled(a)) < limit);
  }
}

TEST_CASE("Linear algebra on a GPU is the CPU's at odd sizes and batches", "[cuda]") {
  if (!has_linalg() || !has_linalg(cuda())) return test::skip("a build without Eigen or cuSOLVER");
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const std::int64_t n : {1, 3, 17, 33, 130})
      for (const std::int64_t batch : {-1, 0, 1, 3}) check_square(batch, n, dtype);
    for (const std::int64_t n : {1, 3, 17, 33}) check_square(70, n, dtype);
  }
}

TEST_CASE("Oblong matrices on a GPU have the CPU's decompositions", "[cuda]") {
  if (!has_linalg() || !has_linalg(cuda())) return test::skip("a build without Eigen or cuSOLVER");
  struct Size {
    std::int64_t rows, columns;
  };
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const Size& size : {Size{1, 1}, {1, 7}, {7, 1}, {17, 5}, {5, 17}, {33, 33}, {130, 33}, {33, 130}})
      for (const std::int64_t batch : {-1, 0, 3}) check_oblong(batch, size.rows, size.columns, dtype);
    for (const Size& size : {Size{1, 1}, {32, 9}, {9, 32}, {33, 17}, {17, 33}}) check_oblong(70, size.rows, size.columns, dtype);
  }
}

TEST_CASE("Linear algebra on a GPU refuses a matrix and keeps NaN within one", "[cuda]") {
  if (!has_linalg() || !has_linalg(cuda())) return test::skip("a build without Eigen or cuSOLVER");
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const std::int64_t n : {1, 3, 33, 130}) check_numbers_that_are_not_finite(cuda(), n, dtype);
    check_refusals(cuda(), 5, 3, dtype);
    check_refusals(cuda(), 70, 33, dtype);
    check_refusals(cuda(), 3, 130, dtype);
    check_refusals(cuda(), 1, 40, dtype);
  }
}

TEST_CASE("Without cuSOLVER linear algebra on a GPU says what to install", "[cuda]") {
  const Tensor x = eye(2, {.dtype = DType::f32, .device = cuda()});
  if (has_linalg(cuda())) {
    CHECK(list(inverse(x)) == Doubles{1, 0, 0, 1});
  } else {
    CHECK_THROWS_WITH(inverse(x), "[inverse] expected a build with cuSOLVER: install libcusolver-dev, and configure and build again");
  }
}

TEST_CASE("Matrices without full rank have singular values on a GPU", "[cuda]") {
  if (!has_linalg(cuda())) return test::skip("a build without cuSOLVER");
  for (const std::int64_t n : {3, 40}) {
    for (const std::int64_t batch : {-1, 4}) {
      CAPTURE(n, batch);
      const Tensor thin = noise(batch, n, 2, 31), a = matmul(thin, mt(thin));
      for (const Tensor& x : {a, zeros_like(a)}) {
        const Svd parts = svd(to(x, cuda()));
        const Tensor u = doubled(parts.u), vt = doubled(parts.vt);
        CHECK(error(matmul(u * unsqueeze(doubled(parts.s), -2), vt), x) < 1e-12);
        CHECK(error(matmul(mt(u), u), unit(u)) < 1e-12);
        CHECK(error(matmul(vt, mt(vt)), unit(vt)) < 1e-12);
        const Eigh spectrum = eigh(to(x, cuda()));
        const Tensor v = doubled(spectrum.vectors);
        CHECK(error(matmul(v * unsqueeze(doubled(spectrum.values), -2), mt(v)), x) < 1e-12);
        const Qr triangular = qr(to(x, cuda()));
        CHECK(error(matmul(doubled(triangular.q), doubled(triangular.r)), x) < 1e-12);
      }
    }
  }
}

}  // namespace tern
