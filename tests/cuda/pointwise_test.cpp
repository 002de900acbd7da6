#include "ops/kernels/pointwise.h"

#include <cmath>

#include "catch.h"
#include "every_function.h"
#include "twin.h"

namespace tern {

using namespace cuda_test;
using kernels::Binary;
using kernels::Compare;
using kernels::Operand;
using kernels::Unary;

namespace {

constexpr functors::Clamp clamp{-0.5, 0.75};

bool needs_positive(const Unary& f) { return holds_one_of<functors::Log, functors::Sqrt, functors::Rsqrt, functors::Reciprocal>(f); }

/// Functions amplify the rounding of the 16-bit operands no more than this.
double slack(const Unary& f) { return needs_positive(f) ? 8 : 2; }

std::string unary_difference(const Unary& f, Twin x, Twin y) {
  x.randomize(1, needs_positive(f) ? 0.2 : -4, 4).upload();
  y.upload();
  kernels::unary(Cpu{}, f, x.host(), y.host());
  kernels::unary(Cuda{}, f, x.device(), y.device());
  return y.difference(slack(f) * tolerance(x.host().dtype));
}

std::string binary_difference(const Binary& f, Twin a, Twin b, Twin y) {
  const bool positive = holds_one_of<functors::Pow, functors::Div>(f);
  a.randomize(1, positive ? 0.5 : -3, 3).upload();
  b.randomize(2, positive ? 0.5 : -3, 3).upload();
  y.upload();
  kernels::binary(Cpu{}, f, a.host(), b.host(), y.host());
  kernels::binary(Cuda{}, f, a.device(), b.device(), y.device());
  return y.difference(2 * tolerance(a.host().dtype));
}

}  // namespace

TEST_CASE("unary functions and their derivatives agree with the CPU", "[cuda]") {
  for (const Unary& f : every_function<Unary>()) {
    for (DType dtype : floats)
      for (std::int64_t n : {0, 1, 31, 33, 1025, 20000}) {
        INFO("function " << f.index() << ", " << name(dtype) << ", " << n);
        CHECK(unary_difference(f, Twin(dtype, {n}), Twin(dtype, {n})) == "");
        Twin g(dtype, {n}), x(dtype, {n}), y(dtype, {n}), dx(dtype, {n});
        g.randomize(3).upload();
        x.randomize(4, needs_positive(f) ? 0.2 : -4, 4);
        kernels::unary(Cpu{}, f, x.host(), y.host());
        x.upload();
        y.upload();
        dx.upload();
        kernels::unary_grad(Cpu{}, f, g.host(), x.host(), y.host(), dx.host());
        kernels::unary_grad(Cuda{}, f, g.device(), x.device(), y.device(), dx.device());
        CHECK(dx.difference(4 * slack(f) * tolerance(dtype)) == "");
      }
    if (!kernels::takes_integers(f)) continue;
    for (DType dtype : integers)
      for (std::int64_t n : {1, 33, 1025}) CHECK(unary_difference(f, Twin(dtype, {n}), Twin(dtype, {n})) == "");
  }
}

TEST_CASE("unary functions take any strides", "[cuda]") {
  const Shape shape{4, 33, 48};
  for (DType dtype : {DType::f32, DType::f64, DType::bf16, DType::i32}) {
    INFO(name(dtype));
    const auto check = [&](const Strides& x, const Strides& y, int shift_x = 0, int shift_y = 0) {
      CHECK(unary_difference(functors::Square{}, Twin(dtype, shape, x, shift_x), Twin(dtype, shape, y, shift_y)) == "");
    };
    const Strides plain = contiguous_strides(shape);
    check(plain, plain, 1, 0);
    check(plain, plain, 0, 1);
    check(plain, plain, 1, 1);
    check(permuted(shape, {1, 0, 2}), plain);
    check(permuted(shape, {2, 1, 0}), plain);
    check(permuted(shape, {2, 1, 0}), permuted(shape, {2, 1, 0}));
    check(plain, permuted(shape, {1, 0, 2}));
    check(gapped(shape), plain);
    check(plain, gapped(shape));
    check(reversed(shape), plain);
    check({0, 1, 0}, plain);
    check({0, 0, 1}, plain);
    check({0, 0, 0}, plain);
  }
  CHECK(unary_difference(functors::Exp{}, Twin(DType::f32, {}), Twin(DType::f32, {})) == "");
}

TEST_CASE("special values pass through unary functions as on the CPU", "[cuda]") {
  using namespace functors;
  for (const Unary& f : std::vector<Unary>{Neg{}, Abs{}, Sign{}, Exp{}, Log{}, Sqrt{}, Relu{}, Sigmoid{}, Tanh{}, clamp, Gelu{}})
    for (DType dtype : floats) {
      Twin x(dtype, {8}), y(dtype, {8});
      const double values[] = {0, -0.0, NAN, INFINITY, -INFINITY, 1, -1, 60000};
      for (int i = 0; i < 8; ++i) x.set(i, values[i]);
      x.upload();
      y.upload();
      kernels::unary(Cpu{}, f, x.host(), y.host());
      kernels::unary(Cuda{}, f, x.device(), y.device());
      INFO("function " << f.index() << ", " << name(dtype));
      CHECK(y.difference(2 * tolerance(dtype)) == "");
    }
}

TEST_CASE("binary functions agree with the CPU", "[cuda]") {
  for (const Binary& f : every_function<Binary>()) {
    for (DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64, DType::u8}) {
      if (std::holds_alternative<functors::Bits>(f) && is_floating(dtype)) continue;
      INFO("function " << f.index() << ", " << name(dtype));
      for (std::int64_t n : {0, 1, 31, 33, 1025, 20000})
        CHECK(binary_difference(f, Twin(dtype, {n}), Twin(dtype, {n}), Twin(dtype, {n})) == "");
      const Shape shape{37, 64};
      const Strides plain = contiguous_strides(shape);
      const auto check = [&](const Strides& a, const Strides& b, const Strides& y, int shift = 0) {
        CHECK(binary_difference(f, Twin(dtype, shape, a), Twin(dtype, shape, b, shift), Twin(dtype, shape, y)) == "");
      };
      check(plain, {0, 1}, plain);  // a row for all rows
      check(plain, {1, 0}, plain);  // a number for each row
      check({0, 1}, {1, 0}, plain);
      check(plain, {0, 1}, plain, 1);
      check(permuted(shape, {1, 0}), plain, plain);
      check(gapped(shape), reversed(shape), plain);
      check(plain, plain, permuted(shape, {1, 0}));

      for (double number : {2.0, 3.0, 0.5}) {
        Twin x(dtype, {1025}), y(dtype, {1025});
        x.randomize(5, 0.5, 3).upload();
        y.upload();
        kernels::binary(Cpu{}, f, x.host(), Operand(number), y.host());
        kernels::binary(Cuda{}, f, x.device(), Operand(number), y.device());
        CHECK(y.difference(4 * tolerance(dtype)) == "");
        kernels::binary(Cpu{}, f, Operand(number), x.host(), y.host());
        kernels::binary(Cuda{}, f, Operand(number), x.device(), y.device());
        CHECK(y.difference(4 * tolerance(dtype)) == "");
      }
    }
  }
}

TEST_CASE("binary works in place, on broadcast operands and on special values", "[cuda]") {
  Twin y(DType::f32, {300, 256}), row(DType::f32, {300, 256}, {0, 1});
  y.randomize(1).upload();
  row.randomize(2).upload();
  kernels::binary(Cpu{}, functors::Add{}, y.host(), row.host(), y.host());
  kernels::binary(Cuda{}, functors::Add{}, y.device(), row.device(), y.device());
  CHECK(y.difference() == "");

  const double values[] = {NAN, 1, INFINITY, -INFINITY, 0, -0.0};
  for (const Binary& f : std::vector<Binary>{functors::Minimum{}, functors::Maximum{}, functors::Div{}, functors::Pow{}})
    for (DType dtype : {DType::f32, DType::f64, DType::bf16}) {
      Twin a(dtype, {36}), b(dtype, {36}), c(dtype, {36});
      for (int i = 0; i < 36; ++i) {
        a.set(i, values[i / 6]);
        b.set(i, values[i % 6]);
      }
      a.upload();
      b.upload();
      c.upload();
      kernels::binary(Cpu{}, f, a.host(), b.host(), c.host());
      kernels::binary(Cuda{}, f, a.device(), b.device(), c.device());
      INFO("function " << f.index() << ", " << name(dtype));
      CHECK(c.difference(tolerance(dtype)) == "");
    }
  Twin a(DType::i32, {4}), b(DType::i32, {4}), c(DType::i32, {4});
  a.set(0, -2147483648.0).set(1, 7).set(2, -7).set(3, 5).upload();
  b.set(0, -1).set(1, 0).set(2, 2).set(3, -1).upload();
  c.upload();
  for (const Binary& f : std::vector<Binary>{functors::Div{}, functors::Pow{}, functors::Add{}}) {
    kernels::binary(Cpu{}, f, a.host(), b.host(), c.host());
    kernels::binary(Cuda{}, f, a.device(), b.device(), c.device());
    CHECK(c.difference() == "");
  }
}

TEST_CASE("comparisons agree with the CPU", "[cuda]") {
  for (const Compare& f : every_function<Compare>()) {
    for (DType dtype : all_dtypes) {
      INFO("comparison " << f.index() << ", " << name(dtype));
      for (std::int64_t n : {0, 1, 31, 33, 1025, 20000}) {
        Twin a(dtype, {n}), b(dtype, {n}), y(DType::boolean, {n});
        a.randomize(1, 0, 3).upload();
        b.randomize(2, 0, 3);
        for (std::int64_t k = 0; k < n; k += 3) b.set(k, a.get(k));
        b.upload();
        y.upload();
        kernels::compare(Cpu{}, f, a.host(), b.host(), y.host());
        kernels::compare(Cuda{}, f, a.device(), b.device(), y.device());
        CHECK(y.difference() == "");
      }
      Twin a(dtype, {33, 16}, permuted({33, 16}, {1, 0})), y(DType::boolean, {33, 16}, {16, 1}, 1);
      a.randomize(3, 0, 3).upload();
      y.upload();
      for (double number : {1.0, 0.5, 1e12, -HUGE_VAL, double(NAN)}) {
        kernels::compare(Cpu{}, f, a.host(), Operand(number), y.host());
        kernels::compare(Cuda{}, f, a.device(), Operand(number), y.device());
        CHECK(y.difference() == "");
        kernels::compare(Cpu{}, f, Operand(number), a.host(), y.host());
        kernels::compare(Cuda{}, f, Operand(number), a.device(), y.device());
        CHECK(y.difference() == "");
      }
    }
  }
}

TEST_CASE("where agrees with the CPU", "[cuda]") {
  for (DType dtype : all_dtypes) {
    INFO(name(dtype));
    const auto check = [&](Twin condition, const Operand* numbers, Twin a, Twin b, Twin y) {
      condition.randomize(1).upload();
      a.randomize(2).upload();
      b.randomize(3).upload();
      y.upload();
      kernels::where(Cpu{}, condition.host(), numbers ? numbers[0] : a.host(), b.host(), y.host());
      kernels::where(Cuda{}, condition.device(), numbers ? numbers[0] : a.device(), b.device(), y.device());
      CHECK(y.difference() == "");
      if (!numbers) return;
      kernels::where(Cpu{}, condition.host(), a.host(), numbers[0], y.host());
      kernels::where(Cuda{}, condition.device(), a.device(), numbers[0], y.device());
      CHECK(y.difference() == "");
      kernels::where(Cpu{}, condition.host(), numbers[0], numbers[1], y.host());
      kernels::where(Cuda{}, condition.device(), numbers[0], numbers[1], y.device());
      CHECK(y.difference() == "");
    };
    const Operand numbers[] = {Operand(-INFINITY), Operand(1.0)};
    for (std::int64_t n : {0, 1, 31, 33, 1025})
      check(Twin(DType::boolean, {n}), numbers, Twin(dtype, {n}), Twin(dtype, {n}), Twin(dtype, {n}));
    // A mask of positions over a batch of scores, with rows that allow vectors and with rows that do not.
    for (std::int64_t t : {32, 39}) {
      const Shape shape{6, t, t};
      check(Twin(DType::boolean, shape, {0, t, 1}), nullptr, Twin(dtype, shape), Twin(dtype, shape), Twin(dtype, shape));
      check(Twin(DType::boolean, shape, {0, t, 1}, 1), numbers, Twin(dtype, shape), Twin(dtype, shape, permuted(shape, {0, 2, 1})),
            Twin(dtype, shape));
      check(Twin(DType::boolean, shape, {1, 0, 0}), numbers, Twin(dtype, shape), Twin(dtype, shape, {0, 0, 0}),
            Twin(dtype, shape, gapped(shape)));
    }
  }
}

}  // namespace tern
