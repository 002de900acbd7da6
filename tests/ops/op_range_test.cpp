// Numbers at the ends of a dtype's range, and sums of very many: compositions in 16 bits compute in float32, as the fused kernels do.
#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <vector>

#include "autodiff/engine.h"
#include "catch.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/kernels/functors.h"
#include "ops/loss.h"
#include "ops/normalize.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "plain.h"

namespace tern {

namespace {

std::vector<double> values_of(const Tensor& x) { return cast(to(x, cpu), DType::f64).to_vector<double>(); }

/// The largest difference between elements, over the largest of them that is wanted, or over 1.
double error_of(const Tensor& got, const Tensor& want) {
  const std::vector<double> g = values_of(got), w = values_of(want);
  REQUIRE(g.size() == w.size());
  double worst = 0, scale = 1;
  for (std::size_t i = 0; i < w.size(); ++i) {
    if (!std::isfinite(g[i])) return INFINITY;
    worst = std::max(worst, std::abs(g[i] - w[i]));
    scale = std::max(scale, std::abs(w[i]));
  }
  return worst / scale;
}

/// Rows of numbers with |x| near `size`, exact in every dtype that holds them.
Tensor large_rows(double size, DType dtype) {
  std::vector<double> values;
  for (int r = 0; r < 6; ++r)
    for (int i = 0; i < 40; ++i) values.push_back(size * (((7 * r + 3 * i) % 13) - 6) / 6);
  return cast(Tensor::from(values, {6, 40}), dtype);
}

/// f and its gradient, in a 16-bit dtype and in f64 of the same numbers, agree.
void check_like_f64(const std::function<Tensor(const Tensor&)>& f, const Tensor& x, double tolerance) {
  Tensor results[2], gradients[2];
  for (const bool exact : {false, true}) {
    const Tensor leaf = (exact ? cast(x, DType::f64) : clone(x)).set_requires_grad();
    results[exact] = f(leaf);
    manual_seed(3);
    const Tensor g = cast(randn(results[exact].shape(), 0, 1, DType::f64), x.dtype());
    gradients[exact] = grad({results[exact]}, {leaf}, {cast(g, results[exact].dtype())})[0];
  }
  CHECK(results[0].dtype() == x.dtype());
  CHECK(error_of(results[0], results[1]) < tolerance);
  CHECK(error_of(gradients[0], gradients[1]) < tolerance);
}

/// Half a unit in the last place, and a few such roundings.
double rounding(DType dtype) { return dtype == DType::bf16 ? 0x1p-9 : 0x1p-12; }

}  // namespace

TEST_CASE("Norms of 16-bit numbers of any size are those of f64") {
  for (const DType dtype : {DType::f16, DType::bf16})
    for (const double size : {0.01, 1.0, 254.0, 255.0, 300.0, 5000.0, 60000.0}) {
      INFO(name(dtype) << " " << size);
      const Tensor x = large_rows(size, dtype), gamma = full({40}, 1.5, dtype), beta = full({40}, -0.25, dtype);
      const auto in = [](const Tensor& parameter, const Tensor& like) { return cast(parameter, like.dtype()); };
      const double tolerance = 6 * rounding(dtype);
      const auto check = [&](const auto& f) {
        check_like_f64(f, x, tolerance);
        check_like_f64(test::plain(f), x, tolerance);
      };
      check([&](const Tensor& t) { return layer_norm(t, in(gamma, t), in(beta, t)); });
      check([&](const Tensor& t) { return rms_norm(t, in(gamma, t)); });
      check([&](const Tensor& t) { return residual_layer_norm(t, zeros_like(t), in(gamma, t), in(beta, t)).y; });
      check_like_f64([&](const Tensor& t) { return group_norm(reshape(t, {3, 8, 10}), 2, {}, {}); }, x, tolerance);
    }
}

TEST_CASE("A norm's gradient that is recorded has the range of one that is not") {
  for (const double size : {300.0, 60000.0}) {
    const Tensor x = large_rows(size, DType::f16).set_requires_grad(), g = large_rows(1, DType::f16);
    const auto first = [&](bool recorded) { return grad({layer_norm(x, {}, {}) * 50}, {x}, {g}, recorded)[0]; };
    CHECK(error_of(first(true), first(false)) < 1e-3);
    CHECK(error_of(test::plain(first)(true), test::plain(first)(false)) < 1e-3);
  }
}

TEST_CASE("Variances, mean squares and softmaxes of 16-bit numbers compute in f32") {
  const Tensor large = large_rows(300, DType::f16) * 0.8;
  // Squares of up to 57600, of which many leave float16 when they are summed.
  CHECK(error_of(var(large), var(cast(large, DType::f64))) < 1e-3);
  CHECK(error_of(mse_loss(large, zeros_like(large)), mse_loss(cast(large, DType::f64), zeros({6, 40}, DType::f64))) < 1e-3);
  const Tensor far = full({1000}, 400, DType::f16), leaf = full({1000}, 1, DType::f16).set_requires_grad();
  CHECK(values_of(mse_loss(far, full({1000}, 200, DType::f16)))[0] == 40000);
  CHECK(std::isinf(values_of(mse_loss(far, leaf))[0]));  // 159201 itself is beyond
  std::vector<double> one_far(1000);
  one_far[3] = 300;  // its square, 90000, is beyond, and the mean is not
  CHECK(values_of(mse_loss(cast(Tensor::from(one_far, {1000}), DType::f16), zeros({1000}, DType::f16)))[0] == 90);
  // 100,000 equal scores: their sum is beyond float16, and each probability is not.
  const Tensor equal = full({2, 100000}, 3, DType::f16).set_requires_grad();
  CHECK(error_of(softmax(equal, 1) * 100000, ones({2, 100000}, DType::f64)) < 1e-2);
  CHECK(error_of(log_softmax(equal, 1), full({2, 100000}, -std::log(1e5), DType::f64)) < 1e-3);
  CHECK(error_of(grad({max(equal, {1})}, {equal}, {full({2}, 1024, DType::f16)})[0] * 100, full({2, 100000}, 1.024, DType::f64)) < 1e-3);
  CHECK(values_of(mean(full({1, 200000}, 60000, DType::f16)))[0] == 60000);
}

TEST_CASE("log_softmax and logsumexp of 16-bit numbers keep the small differences between large ones") {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    INFO(name(dtype));
    std::vector<double> values;
    for (int i = 0; i < 64; ++i) values.push_back(96 + i % 7);
    const Tensor x = cast(Tensor::from(values, {2, 32}), dtype);
    check_like_f64([](const Tensor& t) { return log_softmax(t, 1); }, x, 4 * rounding(dtype));
    check_like_f64([](const Tensor& t) { return logsumexp(t, {1}); }, x, 4 * rounding(dtype));
    check_like_f64([](const Tensor& t) { return softmax(t, 1); }, x, 4 * rounding(dtype));
  }
}

TEST_CASE("The recorded gradient of gelu_tanh holds where a square leaves float16") {
  const Tensor x = cast(Tensor::from(std::vector<double>{-400, -3, 0.5, 300, 60000}, {5}), DType::f16).set_requires_grad();
  const Tensor g = grad({gelu_tanh(x)}, {x}, {ones_like(x)}, true)[0];
  CHECK(error_of(g, grad({gelu_tanh(x)}, {x}, {ones_like(x)})[0]) < 1e-3);
}

TEST_CASE("Vector functions of f32 are within units of the last place of f64, at any argument") {
  // Where a polynomial goes wrong first: wide and special arguments.
  std::vector<double> arguments = {0.0,  -0.0, INFINITY, -INFINITY, NAN,    1e-45, -1e-45, 1e-40, 3e38,  -3e38,
                                   88.7, 88.8, -87.5,    -103,      -103.9, -104,  1,      -1,    0.625, 5.6};
  for (const double scale : {1e-6, 1e-2, 1.0, 10.0, 100.0, 1e6})
    for (std::uint64_t i = 0; i < 4000; ++i) arguments.push_back(scale * (2 * double(unit_float(philox(3, i).words[0])) - 1));
  const Tensor x = cast(Tensor::from(arguments, {std::int64_t(arguments.size())}), DType::f32);
  const std::vector<double> exact = values_of(x);
  /// In units of the last place of the result, or of 1 + |result|.
  const auto worst = [&](const Tensor& y, auto functor, bool relative, double smallest = 0x1p-149) {
    const std::vector<double> found = values_of(y);
    double result = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const double expected = functor(exact[i]);
      if ((std::isnan(expected) && std::isnan(found[i])) || float(expected) == float(found[i])) continue;
      const double unit = relative ? std::max(std::abs(expected) * 0x1p-23, smallest) : 0x1p-23 * (1 + std::abs(expected));
      const double error = std::abs(found[i] - expected) / unit;
      if (!(error <= result)) result = error;
    }
    return result;
  };
  CHECK(worst(exp(x), functors::Exp{}, true) <= 2);
  CHECK(worst(log(x), functors::Log{}, true) <= 2);
  CHECK(worst(tanh(x), functors::Tanh{}, true) <= 2);
  CHECK(worst(sigmoid(x), functors::Sigmoid{}, true, 0x1p-126) <= 4);  // e^-x overflows before 1 / e^-x leaves the normal numbers
  CHECK(worst(gelu(x), functors::Gelu{}, false) <= 8);
  CHECK(worst(gelu_tanh(x), functors::GeluTanh{}, false) <= 2);
  CHECK(worst(silu(x), functors::Silu{}, false) <= 4);
  for (const double beta : {1.0, 0.5, 4.0}) CHECK(worst(softplus(x, beta), functors::Softplus{beta}, true, 0x1p-126) <= 4);
}

TEST_CASE("The sum of two million equal f32 numbers, in a row or in columns, is theirs to rounding") {
  // In plain order a float32 sum of 2^21 times 0.1 is off by half a percent.
  const std::int64_t n = 1 << 21;
  const Tensor x = full({n}, 0.1);
  CHECK(sum(x).item<float>() == Approx(double(0.1f) * double(n)).epsilon(1e-6));
  for (const double y : values_of(sum(reshape(x, {n / 8, 8}), {0}))) CHECK(y == Approx(double(0.1f) * double(n / 8)).epsilon(2e-6));
}

TEST_CASE("The mean of equal f32 numbers is that number") {
  for (std::int64_t count = 1; count <= 1000; ++count) {
    INFO(count);
    CHECK(mean(full({count}, 0.75)).item<float>() == 0.75f);
  }
}

static void check_norms_of_far_rows(Device device) {
  manual_seed(7);
  const auto same_in_f64 = [](auto norm, const Tensor& x, std::int64_t first = 0) {
    Tensor results[2], gradients[2];
    const Tensor g = randn(x.shape(), 0, 1, DType::f64, x.device());
    for (const bool exact : {false, true}) {
      const Tensor leaf = cast(x, exact ? DType::f64 : DType::f32).detach().set_requires_grad();
      results[exact] = norm(leaf);
      gradients[exact] = grad({results[exact]}, {leaf}, {cast(g, leaf.dtype())})[0];
    }
    CHECK(error_of(slice(results[0], 1, first), slice(results[1], 1, first)) < 1e-6);
    CHECK(error_of(slice(gradients[0], 1, first), slice(gradients[1], 1, first)) < 2e-6);
  };
  const auto norm = [](const Tensor& t) { return layer_norm(t, {}, {}); };
  for (const std::int64_t length : {31, 1000, 8192, 65536})
    for (const double mean_of_rows : {0.0, 1e2, 1e5, 1e6}) {
      INFO(length << " numbers about " << mean_of_rows);
      const Tensor x = cast(randn({8, length}, 0, 1, DType::f64, device) + mean_of_rows, DType::f32);
      same_in_f64(norm, x);
      same_in_f64(test::plain(norm), x);
      CHECK(error_of(var(x, {1}), var(cast(x, DType::f64), {1})) < 1e-6);
    }
  for (const double number : {0.1, 1e5 / 3, 1e7 / 3})
    for (const double y : values_of(test::plain(norm)(full({3, 1000}, number, DType::f32, device)))) CHECK(std::abs(y) < 1e-6);
  // The first element, from which sums are counted, may lie far from all the others: their difference must not take their digits.
  for (const std::int64_t length : {33, 1000, 4096, 40000}) {
    INFO("a far first element of " << length);
    const Tensor x = randn({3, length}, 0, 1, DType::f32, device);
    fill_(select(x, 1, 0), 3e4);
    same_in_f64([](const Tensor& t) { return layer_norm(t, {}, {}) * (3e4 / std::sqrt(double(t.size(1)))); }, x, 1);
  }
}
TEST_CASE("Norms of f32 rows far from 0, or with a first element far from the others, are as exact as the rows") {
  check_norms_of_far_rows(cpu);
}
TEST_CASE("Norms on a GPU of f32 rows far from 0, or with a first element far from the others, are as exact as the rows", "[cuda]") {
  check_norms_of_far_rows(cuda());
}

namespace {

/// 1e6 times 0.1 in one row of three, and what goes to it, relative to the exact sum of the rounded numbers.
void check_long_sums(Device device) {
  constexpr std::int64_t count = 1000000;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64})
    for (const std::int64_t width : {1, 3, 40}) {
      if (dtype != DType::f32 && width > 1) continue;
      INFO(name(dtype) << ", width " << width);
      const double step = dtype == DType::f16 ? 0.01 : 0.1;  // so that the sum is within float16
      const double exact = values_of(full({1}, step, dtype))[0] * count;
      const double tolerance = dtype == DType::f64 ? 1e-9 : dtype == DType::f32 ? 1e-6 : 2 * rounding(dtype);
      const Tensor index = full({count}, 1, DType::i64, device), source = full({count, width}, step, dtype, device);
      const auto check = [&](const char* what, const Tensor& y) {
        INFO(what);
        const std::vector<double> values = values_of(y);
        REQUIRE(std::int64_t(values.size()) == 3 * width);
        for (std::int64_t i = 0; i < 3 * width; ++i) {
          const double want = i / width == 1 ? exact : 0;
          CHECK(std::abs(values[std::size_t(i)] - want) <= tolerance * want);
        }
      };
      const Tensor zero = zeros({3, width}, dtype, device);
      check("index_add", index_add(zero, 0, index, source));
      const Tensor table = zeros({3, width}, dtype, device).set_requires_grad();
      check("embedding", grad({embedding(table, index)}, {table}, {source})[0]);
      const Tensor positions = broadcast_to(reshape(index, {count, 1}), {count, width});
      check("scatter_add", scatter_add(zero, 0, positions, source));
      check("scatter_add along rows",
            transpose(scatter_add(transpose(zero, 0, 1), 1, transpose(positions, 0, 1), transpose(source, 0, 1)), 0, 1));
      check("gather", grad({gather(table, 0, positions)}, {table}, {source})[0]);
    }
}

}  // namespace

TEST_CASE("A million numbers that go to one row leave their sum") { check_long_sums(cpu); }
TEST_CASE("A million numbers that go to one row of a GPU leave their sum", "[cuda]") { check_long_sums(cuda()); }

static void check_sums_in_rows(Device device) {
  const DeviceScope scope(device);
  manual_seed(11);
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (const std::int64_t width : {1, 33, 200}) {
      INFO(name(dtype) << ", width " << width);
      // Row r is met r times or so: on both sides of 16 and of 32, and of nothing.
      std::vector<std::int64_t> rows;
      for (std::int64_t r = 0; r < 70; ++r)
        for (std::int64_t k = 0; k < r; ++k) rows.push_back((r + 7 * k * (k % 2)) % 70);
      const auto n = std::int64_t(rows.size());
      const Tensor index = Tensor::from(rows, {n}), x = cast(rand({70, width}, 0.5, 1.5, DType::f64), dtype),
                   source = cast(rand({n, width}, 0.5, 1.5, DType::f64), dtype);
      const Tensor want = index_add(cast(x, DType::f64), 0, index, cast(source, DType::f64));
      const double tolerance = dtype == DType::f32 ? 5e-7 : 2 * rounding(dtype);
      CHECK(error_of(index_add(x, 0, index, source), want) < tolerance);
      const Tensor across = index_add(transpose(x, 0, 1), 1, index, transpose(source, 0, 1));
      CHECK(error_of(transpose(across, 0, 1), want) < tolerance);
      const Tensor places = broadcast_to(reshape(index, {n, 1}), {n, width});
      CHECK(error_of(scatter_add(x, 0, places, source), want) < tolerance);
    }
}
TEST_CASE("Sums in rows of few and of many numbers are those of f64, whatever lies there before") { check_sums_in_rows(cpu); }
TEST_CASE("Sums in rows of a GPU of few and of many numbers are those of f64", "[cuda]") { check_sums_in_rows(cuda()); }

}  // namespace tern
