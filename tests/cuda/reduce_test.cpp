#include "ops/kernels/reduce.h"

#include <cmath>

#include "catch.h"
#include "twin.h"

namespace tern {

using namespace cuda_test;
using kernels::Reduce;

namespace {

constexpr Reduce reductions[] = {Reduce::sum, Reduce::prod, Reduce::max, Reduce::min, Reduce::logsumexp, Reduce::any, Reduce::all};

bool adds(Reduce f) { return f == Reduce::sum || f == Reduce::prod; }
bool takes(Reduce f, DType dtype) {
  if (f == Reduce::any || f == Reduce::all || adds(f)) return true;
  return f == Reduce::logsumexp ? is_floating(dtype) : dtype != DType::boolean;
}

DType summed_dtype(DType dtype) { return is_floating(dtype) ? dtype : DType::i64; }
DType result_dtype(Reduce f, DType dtype) {
  return f == Reduce::any || f == Reduce::all ? DType::boolean : adds(f) ? summed_dtype(dtype) : dtype;
}

/// x's shape with size 1 in the given dimensions.
Shape reduced(Shape shape, std::initializer_list<int> dims) {
  for (int d : dims) shape[d] = 1;
  return shape;
}

std::string difference(Reduce f, Twin x, const Shape& y_shape, Strides y_strides = {}, double scale = 1) {
  const DType dtype = x.host().dtype;
  // Values near 1 for products, mostly 0 (or mostly 1) for any (and all).
  if (f == Reduce::prod) x.randomize(1, is_floating(dtype) ? 0.99 : 1, is_floating(dtype) ? 1.01 : 2.5);
  else if (f == Reduce::any) x.randomize(1, 0, 1.01);
  else if (f == Reduce::all) x.randomize(1, 1, 2);
  else x.randomize(1, -1, 2);
  x.upload();
  if (y_strides.empty()) y_strides = contiguous_strides(y_shape);
  Twin y(result_dtype(f, dtype), y_shape, y_strides);
  y.upload();
  kernels::reduce(Cpu{}, f, x.host(), y.host(), scale);
  kernels::reduce(Cuda{}, f, x.device(), y.device(), scale);
  // The relative error of a product grows with its length.
  const std::string first = y.difference((f == Reduce::prod ? 50 : 10) * tolerance(dtype));
  if (!first.empty()) return first;
  // Once more: the same bits.
  const auto once = y.download();
  kernels::reduce(Cuda{}, f, x.device(), y.device(), scale);
  return once == y.download() ? "" : "not the same twice";
}

}  // namespace

TEST_CASE("reductions of vectors agree with the CPU", "[cuda]") {
  for (Reduce f : reductions)
    for (DType dtype : all_dtypes) {
      if (!takes(f, dtype)) continue;
      for (std::int64_t n : {0, 1, 31, 33, 1025, 10000, 70001}) {
        if (n == 0 && (f == Reduce::max || f == Reduce::min)) continue;
        INFO("reduction " << int(f) << ", " << name(dtype) << ", " << n);
        CHECK(difference(f, Twin(dtype, {n}), {1}) == "");
        if (n > 0) CHECK(difference(f, Twin(dtype, {n}, {1}, 1), {1}) == "");
      }
      CHECK(difference(f, Twin(dtype, {0, 3}), {0, 1}) == "");
      if (f != Reduce::max && f != Reduce::min) CHECK(difference(f, Twin(dtype, {3, 0, 5}), {3, 1, 5}) == "");
    }
}

TEST_CASE("reductions of rows and columns agree with the CPU", "[cuda]") {
  for (Reduce f : reductions)
    for (DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i64, DType::boolean}) {
      if (!takes(f, dtype)) continue;
      const auto check = [&](const Shape& shape, std::initializer_list<int> dims, int shift = 0) {
        INFO("reduction " << int(f) << ", " << name(dtype) << ", " << to_string(shape) << ", shift " << shift);
        CHECK(difference(f, Twin(dtype, shape, contiguous_strides(shape), shift), reduced(shape, dims)) == "");
      };
      check({37, 5}, {1});
      check({37, 129}, {1});
      check({5, 5000}, {1});
      check({5, 5001}, {1}, 1);
      check({2, 40001}, {1});  // two stages
      check({129, 37}, {0});
      check({5000, 8}, {0});  // two stages
      check({3000, 5}, {0}, 1);
      check({515, 260}, {0});
      check({3, 700, 24}, {1});
      check({6, 7, 8, 9}, {0, 2});
      check({6, 7, 8, 9}, {1, 3});
      check({6, 7, 8, 9}, {0, 1, 2, 3});
      check({6, 7, 8, 9}, {});
    }
}

TEST_CASE("large reductions agree with the CPU", "[cuda]") {
  for (Reduce f : {Reduce::sum, Reduce::max, Reduce::logsumexp})
    for (DType dtype : {DType::f32, DType::bf16}) {
      INFO("reduction " << int(f) << ", " << name(dtype));
      CHECK(difference(f, Twin(dtype, {3000001}), {1}) == "");
      CHECK(difference(f, Twin(dtype, {70000, 20}), {70000, 1}) == "");  // more rows than 2^16
      CHECK(difference(f, Twin(dtype, {70000, 12}), {1, 12}) == "");
      CHECK(difference(f, Twin(dtype, {640, 2500}), {1, 2500}) == "");
      CHECK(difference(f, Twin(dtype, {640, 2500}), {640, 1}) == "");
      CHECK(difference(f, Twin(dtype, {5, 3, 20000}), {5, 1, 20000}) == "");  // few rows, many columns
      CHECK(difference(f, Twin(dtype, {5120, 256}), {1, 256}) == "");
      CHECK(difference(f, Twin(dtype, {20, 50257}), {20, 1}) == "");
    }
}

TEST_CASE("reductions take any strides", "[cuda]") {
  const Shape shape{12, 40, 33};
  for (Reduce f : reductions)
    for (DType dtype : {DType::f32, DType::f16, DType::i32}) {
      if (!takes(f, dtype)) continue;
      INFO("reduction " << int(f) << ", " << name(dtype));
      for (const Strides& strides : {permuted(shape, {2, 0, 1}), permuted(shape, {2, 1, 0}), gapped(shape), reversed(shape),
                                     Strides{0, 33, 1}, Strides{33, 0, 1}, Strides{0, 0, 0}})
        for (const Shape& result : {Shape{12, 40, 1}, Shape{12, 1, 33}, Shape{1, 40, 33}, Shape{1, 40, 1}, Shape{1, 1, 1}}) {
          CHECK(difference(f, Twin(dtype, shape, strides), result) == "");
          CHECK(difference(f, Twin(dtype, shape, strides, 1), result, gapped(result)) == "");
        }
      CHECK(difference(f, Twin(dtype, shape), {1, 40, 33}, permuted({1, 40, 33}, {0, 2, 1})) == "");
      CHECK(difference(f, Twin(dtype, {3000, 20}, {40, 2}), {1, 1}) == "");  // strided, in two stages
    }
}

TEST_CASE("sums are scaled, and infinities and NaN go through", "[cuda]") {
  for (DType dtype : floats) {
    CHECK(difference(Reduce::sum, Twin(dtype, {100, 64}), {1, 64}, {}, 0.01) == "");
    CHECK(difference(Reduce::sum, Twin(dtype, {100, 64}), {100, 1}, {}, 0.25) == "");
    CHECK(difference(Reduce::sum, Twin(dtype, {40000}), {1}, {}, 1e-3) == "");
    const double rows[6][3] = {{NAN, 1, 2},        {INFINITY, 1, 2}, {-INFINITY, -INFINITY, -INFINITY}, {INFINITY, -INFINITY, 0},
                               {1, NAN, INFINITY}, {-INFINITY, 3, 1}};
    for (Reduce f : {Reduce::sum, Reduce::max, Reduce::min, Reduce::logsumexp, Reduce::any})
      for (bool by_columns : {false, true}) {
        const Shape shape = by_columns ? Shape{300, 6} : Shape{6, 300};
        Twin x(dtype, shape), y(result_dtype(f, dtype), by_columns ? Shape{1, 6} : Shape{6, 1});
        x.randomize(1);
        for (int r = 0; r < 6; ++r)
          for (int i = 0; i < 300; ++i)
            if (i < 3 || r == 2) x.set(by_columns ? i * 6 + r : r * 300 + i, rows[r][i % 3]);
        x.upload();
        y.upload();
        kernels::reduce(Cpu{}, f, x.host(), y.host(), 1);
        kernels::reduce(Cuda{}, f, x.device(), y.device(), 1);
        INFO("reduction " << int(f) << ", " << name(dtype));
        CHECK(y.difference(10 * tolerance(dtype)) == "");
      }
  }
}

TEST_CASE("arg_reduce agrees with the CPU", "[cuda]") {
  for (DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64, DType::u8})
    for (bool largest : {true, false}) {
      const auto check = [&](const Shape& shape, const Strides& strides, int dim, bool with_nan = false) {
        // Few different values, so that the first among equals is asked for.
        Twin x(dtype, shape, strides), y(DType::i64, reduced(shape, {dim}));
        x.randomize(1, 0, 200);
        for (std::int64_t i = 0; i < numel(shape); ++i) x.set(i, std::floor(x.get(i)));
        if (with_nan)
          for (std::int64_t i = 7; i < numel(shape); i += 97) x.set(i, NAN);
        x.upload();
        y.upload();
        kernels::arg_reduce(Cpu{}, largest, x.host(), y.host(), dim);
        kernels::arg_reduce(Cuda{}, largest, x.device(), y.device(), dim);
        INFO(name(dtype) << " " << to_string(shape) << " along " << dim);
        CHECK(y.difference() == "");
      };
      for (std::int64_t n : {1, 31, 33, 1025, 20000}) check({n}, {1}, 0);
      for (int dim : {0, 1, 2}) {
        const Shape shape{9, 35, 66};
        for (const Strides& strides : {contiguous_strides(shape), permuted(shape, {2, 1, 0}), reversed(shape)})
          check(shape, strides, dim, is_floating(dtype));
      }
      check({3, 10000}, {10000, 1}, 1, is_floating(dtype));
      check({10000, 3}, {3, 1}, 0);
      if (dtype == DType::f32) check({70000, 5}, {5, 1}, 1);
    }
}

TEST_CASE("cumsum agrees with the CPU", "[cuda]") {
  for (DType dtype : all_dtypes)
    for (bool reverse : {false, true}) {
      const auto check = [&](const Shape& shape, const Strides& x_strides, const Strides& y_strides, int dim) {
        Twin x(dtype, shape, x_strides), y(summed_dtype(dtype), shape, y_strides);
        x.randomize(1, -1, 1).upload();
        y.upload();
        kernels::cumsum(Cpu{}, x.host(), y.host(), dim, reverse);
        kernels::cumsum(Cuda{}, x.device(), y.device(), dim, reverse);
        INFO(name(dtype) << " " << to_string(shape) << " along " << dim);
        CHECK(y.difference(tolerance(dtype)) == "");
        const auto once = y.download();
        kernels::cumsum(Cuda{}, x.device(), y.device(), dim, reverse);
        CHECK(once == y.download());
      };
      for (std::int64_t n : {0, 1, 31, 33, 255, 256, 257, 1025, 20000}) check({n}, {1}, {1}, 0);
      for (int dim : {0, 1, 2}) {
        const Shape shape{20, 35, 66};
        check(shape, contiguous_strides(shape), contiguous_strides(shape), dim);
        check(shape, permuted(shape, {2, 1, 0}), contiguous_strides(shape), dim);
        check(shape, contiguous_strides(shape), gapped(shape), dim);
      }
      check({40, 9000}, {1, 40}, {9000, 1}, 0);
      check({3, 9000}, {9000, 1}, {9000, 1}, 1);  // in chunks
    }
}

}  // namespace tern
