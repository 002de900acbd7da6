#include "ops/kernels/copy.h"

#include "catch.h"
#include "twin.h"

namespace tern {

using namespace cuda_test;

static std::string copied(Twin x, Twin y) {
  x.randomize(1).upload();
  y.upload();
  kernels::copy(Cpu{}, x.host(), y.host());
  kernels::copy(Cuda{}, x.device(), y.device());
  return y.difference();
}

TEST_CASE("copy converts every dtype to every other", "[cuda]") {
  for (DType from : all_dtypes)
    for (DType to : all_dtypes)
      for (std::int64_t n : {0, 1, 31, 33, 1025}) {
        INFO(name(from) << " to " << name(to) << ", " << n);
        CHECK(copied(Twin(from, {n}), Twin(to, {n})) == "");
      }
}

TEST_CASE("copy keeps floats within the bounds of integers", "[cuda]") {
  for (DType from : floats)
    for (DType to : {DType::i32, DType::i64, DType::u8, DType::boolean}) {
      Twin x(from, {8}), y(to, {8});
      const double values[] = {0, -0.0, 1e30, -1e30, NAN, INFINITY, -INFINITY, 3.99};
      for (int i = 0; i < 8; ++i) x.set(i, values[i]);
      x.upload();
      y.upload();
      kernels::copy(Cpu{}, x.host(), y.host());
      kernels::copy(Cuda{}, x.device(), y.device());
      INFO(name(from) << " to " << name(to));
      CHECK(y.difference() == "");
    }
}

TEST_CASE("copy takes any strides", "[cuda]") {
  for (DType dtype : {DType::f32, DType::bf16, DType::f64, DType::u8}) {
    INFO(name(dtype));
    const Shape shape{6, 40, 72};
    CHECK(copied(Twin(dtype, shape, contiguous_strides(shape), 1), Twin(dtype, shape)) == "");
    CHECK(copied(Twin(dtype, shape), Twin(dtype, shape, contiguous_strides(shape), 3)) == "");
    CHECK(copied(Twin(dtype, shape, permuted(shape, {0, 2, 1})), Twin(dtype, shape)) == "");  // by tiles
    CHECK(copied(Twin(dtype, shape, permuted(shape, {2, 1, 0})), Twin(dtype, shape)) == "");
    CHECK(copied(Twin(dtype, shape, permuted(shape, {1, 0, 2})), Twin(dtype, shape)) == "");  // by vectors
    CHECK(copied(Twin(dtype, shape), Twin(dtype, shape, permuted(shape, {0, 2, 1}))) == "");
    CHECK(copied(Twin(dtype, shape, permuted(shape, {0, 2, 1}), 1), Twin(dtype, shape, gapped(shape))) == "");
    CHECK(copied(Twin(dtype, shape, gapped(shape)), Twin(dtype, shape)) == "");
    CHECK(copied(Twin(dtype, shape, reversed(shape)), Twin(dtype, shape)) == "");
    CHECK(copied(Twin(dtype, shape), Twin(dtype, shape, reversed(shape))) == "");
    CHECK(copied(Twin(dtype, shape, {0, 1, 0}), Twin(dtype, shape)) == "");
    CHECK(copied(Twin(dtype, shape, {0, 0, 1}), Twin(dtype, shape)) == "");
    CHECK(copied(Twin(dtype, shape, {0, 0, 0}), Twin(dtype, shape)) == "");
  }
  const Shape deep{2, 3, 2, 3, 2, 3, 2, 3};
  CHECK(copied(Twin(DType::f32, deep, permuted(deep, {7, 0, 6, 1, 5, 2, 4, 3})), Twin(DType::f32, deep)) == "");
  CHECK(copied(Twin(DType::i32, deep, permuted(deep, {7, 0, 6, 1, 5, 2, 4, 3})), Twin(DType::bf16, deep, gapped(deep))) == "");
  CHECK(copied(Twin(DType::f32, {}), Twin(DType::f16, {})) == "");
  // Edges of tiles, and more rows than 2^16.
  for (const Shape& shape : {Shape{31, 33}, Shape{16, 16}, Shape{33, 1025}, Shape{70000, 17}})
    CHECK(copied(Twin(DType::f32, shape, permuted(shape, {1, 0})), Twin(DType::f32, shape)) == "");
}

TEST_CASE("fill, arange and triangle", "[cuda]") {
  for (DType dtype : all_dtypes) {
    INFO(name(dtype));
    for (std::int64_t n : {0, 1, 31, 33, 1025})
      for (double value : {0.0, 1.0, 3.7}) {
        Twin y(dtype, {n}), gaps(dtype, {n}, {2}), shifted(dtype, {n}, {1}, 1);
        for (Twin* twin : {&y, &gaps, &shifted}) {
          twin->upload();
          kernels::fill(Cpu{}, twin->host(), value);
          kernels::fill(Cuda{}, twin->device(), value);
          CHECK(twin->difference() == "");
        }
        if (dtype == DType::boolean) continue;
        kernels::arange(Cpu{}, gaps.host(), 2, value);
        kernels::arange(Cuda{}, gaps.device(), 2, value);
        CHECK(gaps.difference(tolerance(dtype)) == "");
      }
    for (const Shape& shape : {Shape{1, 1}, Shape{5, 7}, Shape{3, 33, 31}, Shape{2, 3, 40, 40}})
      for (std::int64_t diagonal : {-40, -2, 0, 1, 50})
        for (bool upper : {false, true}) {
          Twin x(dtype, shape, gapped(shape)), y(dtype, shape);
          x.randomize(2).upload();
          y.upload();
          kernels::triangle(Cpu{}, x.host(), y.host(), diagonal, upper);
          kernels::triangle(Cuda{}, x.device(), y.device(), diagonal, upper);
          CHECK(y.difference() == "");
        }
  }
}

}  // namespace tern
