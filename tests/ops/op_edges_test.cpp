// Results and gradients at the ends: zeros and their signs, NaN among others, bounds between integers, numbers that a dtype has not.
#include <cmath>
#include <limits>

#include "autodiff/engine.h"
#include "catch.h"
#include "op_cases.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/loss.h"
#include "ops/normalize.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"

namespace tern::op_cases {

namespace {

using Doubles = std::vector<double>;
Doubles list(const Tensor& x) { return read(x).values; }
Tensor leaf(const Doubles& values, DType dtype = DType::f64) {
  return cast(Tensor::from(values, {static_cast<std::int64_t>(values.size())}), dtype).set_requires_grad();
}

}  // namespace

TEST_CASE("abs takes the sign off a zero") {
  for (const DType dtype : floats)
    for (const std::int64_t n : {1, 33}) CHECK(list(1 / abs(full({n}, -0.0, dtype))) == Doubles(static_cast<std::size_t>(n), INFINITY));
}

TEST_CASE("Functions that are odd about 0 keep a zero's sign") {
  Tensor (*const functions[])(const Tensor&) = {sin, tan, tanh, erf, expm1, log1p, sqrt, floor, ceil, round, silu, gelu, gelu_tanh};
  int at = 0;
  for (const auto f : functions) {
    INFO("function " << at++);
    for (const DType dtype : floats)
      for (const std::int64_t n : {1, 33}) {
        const Tensor y = f(full({n}, -0.0, dtype));
        INFO(name(dtype) << " " << n);
        CHECK(list(1 / y) == Doubles(static_cast<std::size_t>(n), -INFINITY));
      }
  }
}

TEST_CASE("clamp keeps integers between bounds that they do not have") {
  const Tensor x = Tensor::from(std::vector<std::int64_t>{-3, 0, 1, 2, 7}, {5});
  CHECK(clamp(x, 0.5, 2.5).dtype() == DType::f32);
  CHECK(list(clamp(x, 0.5, 2.5)) == Doubles{0.5, 0.5, 1, 2, 2.5});
  CHECK(clamp(x, -INFINITY, 1).dtype() == DType::i64);
  CHECK(list(clamp(x, -INFINITY, 1)) == Doubles{-3, 0, 1, 1, 1});
}

TEST_CASE("clamp compares integers beyond 2^53 as they are") {
  using Longs = std::vector<std::int64_t>;
  const std::int64_t edge = std::int64_t(1) << 53, high = std::numeric_limits<std::int64_t>::max(),
                     low = std::numeric_limits<std::int64_t>::min();
  const Tensor x = Tensor::from(Longs{edge + 1, edge + 3, -edge - 1, high - 1, low + 1}, {5});
  CHECK(clamp(x, -edge, edge).to_vector<std::int64_t>() == Longs{edge, edge, -edge, edge, -edge});
  CHECK(clamp(x, edge + 1, edge + 3).to_vector<std::int64_t>() == Longs{edge + 1, edge + 3, edge + 1, edge + 3, edge + 1});
  CHECK(clamp(x, low + 2, high - 2).to_vector<std::int64_t>() == Longs{edge + 1, edge + 3, -edge - 1, high - 2, low + 2});
  CHECK(clamp(x, low, high).to_vector<std::int64_t>() == x.to_vector<std::int64_t>());
  CHECK(clamp(x, -INFINITY, INFINITY).to_vector<std::int64_t>() == x.to_vector<std::int64_t>());
  CHECK(clamp(x, 0, std::numeric_limits<std::uint64_t>::max()).to_vector<std::int64_t>() == Longs{edge + 1, edge + 3, 0, high - 1, 0});
  CHECK_THROWS_AS(clamp(x, edge + 1, edge), Error);

  const Tensor bytes = Tensor::from(std::vector<std::uint8_t>{0, 7, 255}, {3});
  CHECK(list(clamp(bytes, -1, 300)) == Doubles{0, 7, 255});
  CHECK_THROWS_WITH(clamp(bytes, 300, 400), "[clamp] expected bounds between which u8 has a number but got 300 and 400");
  CHECK_THROWS_AS(clamp(bytes, -5, -1), Error);
}

TEST_CASE("The median of a slice with a NaN is NaN, and a NaN's gradient stays with it") {
  const Tensor x = leaf({3, NAN, 1, 2, 5, 4}), y = median(reshape(x, {2, 3}), 1);
  CHECK(std::isnan(list(y)[0]));
  CHECK(list(y)[1] == 4);
  sum(y).backward();
  CHECK(list(x.grad()) == Doubles{0, 1, 0, 0, 0, 1});
}

TEST_CASE("log_softmax and softmax of a row with inf are NaN throughout, and their gradients") {
  for (const DType dtype : floats)
    for (const auto f : {log_softmax, softmax})
      for (const Doubles& row : {Doubles{INFINITY, 1, 2}, {INFINITY, INFINITY, 0}, {0, INFINITY, -INFINITY}}) {
        Doubles both = row;
        both.insert(both.end(), {0.0, -INFINITY, 0.0});  // another row, that has a distribution
        const Tensor x = cast(reshape(leaf(both).detach(), {2, 3}), dtype).set_requires_grad();
        const Tensor y = f(x, 1);
        sum(y[{0}] * 1.5 + y[{1, 0}]).backward();
        for (int i = 0; i < 3; ++i) {
          INFO(name(dtype) << " " << i);
          CHECK(std::isnan(list(y)[static_cast<std::size_t>(i)]));
          CHECK(std::isnan(list(x.grad())[static_cast<std::size_t>(i)]));
          CHECK_FALSE(std::isnan(list(y)[static_cast<std::size_t>(i + 3)]));
          CHECK_FALSE(std::isnan(list(x.grad())[static_cast<std::size_t>(i + 3)]));
        }
      }
}

TEST_CASE("cross_entropy of a NaN is NaN, wherever it stands") {
  for (const DType dtype : floats)
    for (const std::int64_t classes : {3, 1025})
      for (const double others : std::vector<double>{1, -INFINITY})
        for (const std::int64_t at : {std::int64_t{0}, std::int64_t{2}, classes - 1}) {
          INFO(name(dtype) << " " << classes << " " << others << " " << at);
          const Tensor x = full({1, classes}, others, dtype);
          fill_(select(x, 1, at), NAN);
          CHECK(std::isnan(list(cross_entropy(x, full({1}, 1, DType::i64)))[0]));
        }
}

TEST_CASE("Gradients of norms are 0 at elements and norms of 0") {
  for (const double p : {0.5, 1.5, 3.0, -1.0, -2.0}) {
    INFO(p);
    const Tensor x = leaf({0, 0, 0, 1, 2, 0});
    const Tensor y = norm(reshape(x, {2, 3}), 1, p);
    CHECK(list(y)[0] == 0);
    const Tensor g = grad({sum(y)}, {x}, {}, true)[0];
    const Doubles first = list(g);
    for (const std::size_t zero : {0, 1, 2, 5}) CHECK(first[zero] == 0);
    // The gradient is x^(p - 1) norm^(1 - p), and through a slice with a 0 none for p < 0, where the norm is 0.
    const double size = std::pow(1 + std::pow(2, p), 1 / p);
    CHECK(first[3] == Approx(p < 0 ? 0 : std::pow(size, 1 - p)));
    CHECK(first[4] == Approx(p < 0 ? 0 : std::pow(2, p - 1) * std::pow(size, 1 - p)));
    for (const double second : list(grad({sum(g)}, {x})[0])) CHECK(std::isfinite(second));
  }
}

TEST_CASE("The gradients of atan2 at the origin are 0") {
  const Tensor y = leaf({0, 1}), x = leaf({0, 1});
  const Tensors g = grad({sum(atan2(y, x))}, {y, x}, {}, true);
  CHECK(list(g[0]) == Doubles{0, 0.5});
  CHECK(list(g[1]) == Doubles{0, -0.5});
  for (const Tensor& second : grad({sum(g[0]) + sum(g[1])}, {y, x}))
    for (const double value : list(second)) CHECK(std::isfinite(value));
}

TEST_CASE("The gradient of pow by the exponent at a base of 0 is 0 from 0 on, and below that of an infinite power") {
  for (const DType dtype : floats) {
    const Tensor exponents = leaf({0, 2, 0.5, -1, -0.5}, dtype);
    const Doubles wanted = {0, 0, 0, -INFINITY, -INFINITY};
    CHECK(list(grad({sum(pow(zeros({5}, dtype), exponents))}, {exponents})[0]) == wanted);
    CHECK(list(grad({sum(pow(0, exponents))}, {exponents})[0]) == wanted);
    const Tensor missing = leaf({NAN, 1}, dtype);
    CHECK(std::isnan(list(grad({sum(pow(0, missing))}, {missing})[0])[0]));
  }
  // Of second order as well.
  const Tensor exponents = leaf({0, 2});
  const Tensor slope = grad({sum(pow(0, exponents))}, {exponents}, {}, true)[0];
  CHECK(list(grad({sum(slope)}, {exponents})[0]) == Doubles{0, 0});
}

TEST_CASE("The gradient of pow does not overflow on the way") {
  // In f16 the gradient times the exponent, 2^17, is beyond the range.
  const Tensor x = leaf({0.5}, DType::f16);
  const Tensor g = full({1}, 8192, DType::f16);
  CHECK(list(grad({pow(x, full({1}, 16, DType::f16))}, {x}, {g})[0]) == Doubles{4});
}

TEST_CASE("A value that an integer dtype has not is refused, and of others the whole part is kept") {
  CHECK(list(full({1}, -2.7, DType::i32)) == Doubles{-2});
  CHECK(list(full({1}, 255.5, DType::u8)) == Doubles{255});
  CHECK(list(full({1}, NAN, DType::boolean)) == Doubles{1});
  for (const auto& [dtype, value] : std::vector<std::pair<DType, double>>{
           {DType::u8, -1}, {DType::u8, 256}, {DType::i32, 0x1p31}, {DType::i64, 0x1p63}, {DType::i64, NAN}, {DType::i32, -INFINITY}}) {
    INFO(name(dtype) << " " << value);
    const Tensor x = zeros({2}, dtype);
    CHECK_THROWS_AS(full({1}, value, dtype), Error);
    CHECK_THROWS_AS(full_like(x, value), Error);
    CHECK_THROWS_AS(fill_(x, value), Error);
    CHECK_THROWS_AS(pad(x, 0, 1, 1, value), Error);
    CHECK(list(x) == Doubles{0, 0});
  }
  CHECK(list(arange(254, 256, 1, DType::u8)) == Doubles{254, 255});
  CHECK(list(arange(256, 0, 1, DType::u8)).empty());
  CHECK_THROWS_AS(arange(254, 257, 1, DType::u8), Error);
  CHECK_THROWS_AS(arange(1, -2, -1, DType::u8), Error);
  CHECK_THROWS_AS(arange(0x1p31 - 1, 0x1p31 + 1, 1, DType::i32), Error);
}

TEST_CASE("A tensor without dimensions has the dimensions 0 and -1 for sort and flatten alone") {
  const Tensor x = full({}, 3);
  CHECK(list(sort(x, -1).values) == Doubles{3});
  CHECK_THROWS_AS(sort(x, 1), Error);
  CHECK(flatten(x).shape() == Shape{1});
  CHECK_THROWS_AS(flatten(x, 0, 1), Error);
}

}  // namespace tern::op_cases
