#include "ops/kernels/index.h"

#include <cmath>

#include "catch.h"
#include "twin.h"

namespace tern {

using namespace cuda_test;

namespace {

Twin indices(const Shape& shape, std::int64_t length, unsigned seed, const Strides& strides) {
  Twin index(DType::i64, shape, strides);
  index.randomize(seed, 0, static_cast<double>(length));
  index.upload();
  return index;
}
Twin indices(const Shape& shape, std::int64_t length, unsigned seed) { return indices(shape, length, seed, contiguous_strides(shape)); }

Shape with_size(Shape shape, int dim, std::int64_t size) {
  shape[dim] = size;
  return shape;
}

}  // namespace

TEST_CASE("gather and scatter_add agree with the CPU", "[cuda]") {
  for (DType dtype : all_dtypes) {
    INFO(name(dtype));
    const auto check = [&](const Shape& shape, int dim, std::int64_t picks, bool strided) {
      const Shape picked = with_size(shape, dim, picks);
      const auto strides = [&](const Shape& s) { return strided ? gapped(s) : contiguous_strides(s); };
      const Twin index = indices(picked, shape[dim], 1, strides(picked));
      Twin x(dtype, shape, strides(shape)), y(dtype, picked, strides(picked));
      x.randomize(2).upload();
      y.upload();
      kernels::gather(Cpu{}, x.host(), index.host(), y.host(), dim);
      kernels::gather(Cuda{}, x.device(), index.device(), y.device(), dim);
      CHECK(y.difference() == "");
      if (dtype == DType::boolean) return;
      // Whole numbers, so that the order of addition does not show.
      y.randomize(3, 0, 4);
      for (std::int64_t i = 0; i < numel(picked); ++i) y.set(i, std::floor(y.get(i)));
      for (std::int64_t i = 0; i < numel(shape); ++i) x.set(i, std::floor(std::abs(x.get(i))));
      x.upload();
      y.upload();
      kernels::scatter_add(Cpu{}, x.host(), index.host(), y.host(), dim);
      kernels::scatter_add(Cuda{}, x.device(), index.device(), y.device(), dim);
      CHECK(x.difference() == "");
    };
    for (std::int64_t n : {0, 1, 31, 33, 1025}) check({40}, 0, n, false);
    for (int dim : {0, 1, 2})
      for (bool strided : {false, true}) check({6, 7, 9}, dim, 5, strided);
  }
}

TEST_CASE("index_select agrees with the CPU", "[cuda]") {
  for (DType dtype : all_dtypes) {
    INFO(name(dtype));
    const auto check = [&](Twin x, const Twin& index, Twin y) {
      x.randomize(1).upload();
      y.upload();
      kernels::index_select(Cpu{}, x.host(), index.host(), y.host());
      kernels::index_select(Cuda{}, x.device(), index.device(), y.device());
      CHECK(y.difference() == "");
    };
    for (std::int64_t n : {0, 1, 31, 33, 1025})
      for (std::int64_t c : {1, 5, 64}) check(Twin(dtype, {1, 50, c}), indices({n}, 50, 2), Twin(dtype, {1, n, c}));
    check(Twin(dtype, {3, 50, 64}), indices({20}, 50, 3), Twin(dtype, {3, 20, 64}));
    check(Twin(dtype, {3, 50, 64}, {3200, 64, 1}, 1), indices({20}, 50, 3), Twin(dtype, {3, 20, 64}));
    check(Twin(dtype, {3, 50, 64}, permuted({3, 50, 64}, {2, 0, 1})), indices({20}, 50, 3, {2}),
          Twin(dtype, {3, 20, 64}, gapped({3, 20, 64})));
    check(Twin(dtype, {1, 50, 64}), indices({20}, 50, 3, {0}), Twin(dtype, {1, 20, 64}));
  }
  Twin x(DType::f32, {1, 1000, 32}), y(DType::f32, {1, 70000, 32});
  const Twin index = indices({70000}, 1000, 4);
  x.randomize(1).upload();
  y.upload();
  kernels::index_select(Cpu{}, x.host(), index.host(), y.host());
  kernels::index_select(Cuda{}, x.device(), index.device(), y.device());
  CHECK(y.difference() == "");
}

TEST_CASE("on the GPU an index outside the range reads zero and writes nothing", "[cuda]") {
  Twin index(DType::i64, {4}), x(DType::f32, {3}), y(DType::f32, {4});
  index.set(0, -1).set(1, 3).set(2, 2).set(3, 9e15).upload();
  x.set(0, 5).set(1, 6).set(2, 7).upload();
  y.upload();
  for (int i = 0; i < 4; ++i) y.set(i, i == 2 ? 7 : 0);
  kernels::gather(Cuda{}, x.device(), index.device(), y.device(), 0);
  CHECK(y.difference() == "");
  View x3 = x.device(), y3 = y.device();
  x3.shape = {1, 3, 1};
  y3.shape = {1, 4, 1};
  x3.strides = y3.strides = {0, 1, 1};
  y.upload();
  kernels::index_select(Cuda{}, x3, index.device(), y3);
  CHECK(y.difference() == "");
  x.set(2, 14);
  kernels::index_add(Cuda{}, x3, index.device(), y3);
  CHECK(x.difference() == "");
  x.set(2, 21);
  kernels::scatter_add(Cuda{}, x.device(), index.device(), y.device(), 0);
  CHECK(x.difference() == "");
}

TEST_CASE("index_add agrees with the CPU and repeats to the bit", "[cuda]") {
  for (DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64, DType::u8}) {
    // The CPU rounds a 16-bit sum at each addition, the GPU once: -1, 0 and 1 are added without rounding.
    const bool whole = size_of(dtype) == 2;
    const auto check = [&](Twin y, Twin index, Twin source, double slack = 4) {
      INFO(name(dtype) << " " << to_string(source.host().shape));
      y.randomize(1, 0, 1);
      source.randomize(2, -1, whole ? 2 : 1);
      if (whole) {
        for (Twin* twin : {&y, &source})
          for (std::int64_t i = 0; i < twin->host().numel(); ++i) twin->set(i, std::floor(twin->get(i)));
        slack = 0;
      }
      y.upload();
      source.upload();
      index.upload();
      kernels::index_add(Cpu{}, y.host(), index.host(), source.host());
      kernels::index_add(Cuda{}, y.device(), index.device(), source.device());
      CHECK(y.difference(slack * tolerance(dtype)) == "");
      const auto once = y.download();
      y.upload();  // now the CPU's results: add to both again
      kernels::index_add(Cuda{}, y.device(), index.device(), source.device());
      const auto twice = y.download();
      y.upload();
      kernels::index_add(Cuda{}, y.device(), index.device(), source.device());
      CHECK(twice == y.download());
    };
    for (std::int64_t n : {0, 1, 31, 32, 33, 64, 1025})
      for (std::int64_t c : {1, 33}) check(Twin(dtype, {1, 20, c}), indices({n}, 20, 3), Twin(dtype, {1, n, c}));
    check(Twin(dtype, {1, 1, 5}), indices({100}, 1, 3), Twin(dtype, {1, 100, 5}));
    check(Twin(dtype, {1, 5000, 64}), indices({1500}, 5000, 3), Twin(dtype, {1, 1500, 64}));
    check(Twin(dtype, {3, 20, 40}), indices({200}, 20, 3), Twin(dtype, {3, 200, 40}));
    for (std::int64_t n : {8192, 8193})  // sorted by ranks, and by digits
      check(Twin(dtype, {1, 9000, 2}), indices({n}, 9000, 3), Twin(dtype, {1, n, 2}));
    check(Twin(dtype, {3, 20, 40}, gapped({3, 20, 40})), indices({200}, 20, 3, {2}),
          Twin(dtype, {3, 200, 40}, permuted({3, 200, 40}, {1, 2, 0}), 1));
    // Padding: one index nearly always, with runs that end at the ends of pieces and within them.
    for (std::int64_t others : {0, 32, 45}) {
      Twin index(DType::i64, {3000});
      for (std::int64_t i = 0; i < 3000; ++i) index.set(i, i % 60 < 1 && i / 60 < others ? 1 + i % 7 : 9);
      check(Twin(dtype, {1, 12, 24}), std::move(index), Twin(dtype, {1, 3000, 24}), 60);
    }
    // Runs of 32, 64, 96, ... which fill pieces exactly.
    Twin index(DType::i64, {32 * 15});
    for (std::int64_t i = 0, run = 0, left = 32; i < 32 * 15; ++i) {
      index.set(i, static_cast<double>(run));
      if (--left == 0) left = 32 * (++run + 1);
    }
    check(Twin(dtype, {1, 8, 24}), std::move(index), Twin(dtype, {1, 32 * 15, 24}), 60);
  }
}

TEST_CASE("sort agrees with the CPU", "[cuda]") {
  for (DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64, DType::u8})
    for (bool descending : {false, true}) {
      const auto check = [&](const Shape& shape, const Strides& strides) {
        Twin x(dtype, shape, strides), values(dtype, shape), order(DType::i64, shape);
        x.randomize(1, -100, 100);
        // Repeated values, zeros of both signs, infinities and NaN.
        for (std::int64_t i = 0; i < numel(shape); ++i) {
          if (i % 3 == 0) x.set(i, std::floor(x.get(i) / 10));
          if (!is_floating(dtype)) continue;
          if (i % 41 == 5) x.set(i, i % 2 ? 0.0 : -0.0);
          if (i % 97 == 7) x.set(i, NAN);
          if (i % 101 == 8) x.set(i, i % 2 ? INFINITY : -INFINITY);
        }
        x.upload();
        values.upload();
        order.upload();
        kernels::sort(Cpu{}, x.host(), values.host(), order.host(), descending);
        kernels::sort(Cuda{}, x.device(), values.device(), order.device(), descending);
        INFO(name(dtype) << " " << to_string(shape) << (descending ? " descending" : ""));
        CHECK(values.difference() == "");
        CHECK(order.difference() == "");
      };
      for (std::int64_t n : {0, 1, 31, 33, 1025, 20000}) check({n}, {1});
      check({7, 300}, {300, 1});
      check({300, 7}, {1, 300});
      check({5, 3, 65}, reversed({5, 3, 65}));
      check({4, 1}, {1, 1});
    }
}

}  // namespace tern
