// Promises of the headers beyond values at ordinary points: promotion, derivatives at kinks and ties, NaN and
// infinities.
#include <algorithm>
#include <cmath>
#include <limits>

#include "autodiff/anomaly.h"
#include "autodiff/engine.h"
#include "catch.h"
#include "op_cases.h"
#include "ops/conv.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/loss.h"
#include "ops/matmul.h"
#include "ops/normalize.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"

namespace tern::op_cases {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();

Tensor leaf(const std::vector<double>& values) {
  return Tensor::from(values, {static_cast<std::int64_t>(values.size())}).set_requires_grad();
}
std::vector<double> list(const Tensor& x) { return read(x).values; }
/// The gradient of sum(f(x)).
std::vector<double> slope(Tensor (*f)(const Tensor&), const std::vector<double>& at) {
  const Tensor x = leaf(at);
  return list(grad({sum(f(x))}, {x})[0]);
}
using Doubles = std::vector<double>;

/// A mean over no target, or one whose weights are all 0, is NaN, and every gradient of it 0.
void check_empty_means(Device device) {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (const bool weighted : {false, true})
      for (const double smoothing : {0.0, 0.1})
        for (const int op : {0, 1, 2, 3}) {
          INFO(name(dtype) << (weighted ? " weights of 0 " : " ignored ") << smoothing << " op " << op);
          const Tensor targets = to(weighted ? zeros({5}, DType::i64) : full({5}, -100, DType::i64), device);
          CrossEntropyOptions options{.label_smoothing = smoothing};
          if (weighted) options.token_weights = zeros({5}, DType::f32, device);
          Tensors leaves = {to(make_input(value({5, 3}), dtype, 0), device), to(make_input(value({4, 3}), dtype, 1), device),
                            to(make_input(value({4}), dtype, 2), device)};
          for (Tensor& x : leaves) x.set_requires_grad();
          if (op == 3 && weighted) continue;  // nll_loss has no weights
          for (const bool twice : {false, true}) {
            const Tensor logits = op < 2 ? Tensor() : linear(leaves[0], leaves[1], leaves[2]);
            const Tensor loss = op == 0   ? linear_cross_entropy(leaves[0], leaves[1], leaves[2], targets, options)
                                : op == 1 ? linear_cross_entropy(leaves[0], leaves[1], leaves[2], targets, options, 2)
                                : op == 2 ? cross_entropy(logits, targets, options)
                                          : nll_loss(log_softmax(logits), targets);
            CHECK(std::isnan(loss.item<double>()));
            for (const Tensor& g : grad({loss}, leaves, {}, twice))
              for (const double x : list(g)) CHECK(x == 0);
          }
        }
}

}  // namespace

TEST_CASE("Binary ops promote their operands") {
  for (const DType a : all_dtypes)
    for (const DType b : all_dtypes) {
      INFO(name(a) << " with " << name(b));
      const DType both = promote(a, b), numeric = both == DType::boolean ? DType::i64 : both;
      const Tensor x = full({2}, 1, a), y = full({2}, 1, b);
      CHECK(list(add(x, y)) == Doubles{2, 2});
      CHECK(add(x, y).dtype() == numeric);
      CHECK(sub(x, y).dtype() == numeric);
      CHECK(maximum(x, y).dtype() == numeric);
      CHECK(div(x, y).dtype() == (is_floating(both) ? both : DType::f32));
      CHECK(where(full({2}, 1, DType::boolean), x, y).dtype() == both);
      CHECK(list(eq(x, y)) == Doubles{1, 1});
      if (is_floating(a) && is_floating(b)) {
        // The gradient comes back in the operand's own dtype.
        Tensor p = full({2}, 3, a).set_requires_grad(), q = full({2}, 2, b).set_requires_grad();
        sum(p * q).backward();
        CHECK(p.grad().dtype() == a);
        CHECK(q.grad().dtype() == b);
        CHECK(list(p.grad()) == Doubles{2, 2});
      }
    }
}

TEST_CASE("Derivatives at kinks are the documented ones") {
  CHECK(slope(abs, {0, -1, 1}) == Doubles{0, -1, 1});
  CHECK(slope(relu, {0, -1, 1}) == Doubles{0, 0, 1});
  CHECK(slope([](const Tensor& x) { return clamp(x, -1, 1); }, {1.5, -1, 1, 0}) == Doubles{0, 1, 1, 1});
  CHECK(slope([](const Tensor& x) { return maximum(x, 1); }, {1, 0, 2}) == Doubles{0.5, 0, 1});
  CHECK(slope([](const Tensor& x) { return minimum(x, x * 1); }, {1, 2}) == Doubles{1, 1});
  CHECK(slope([](const Tensor& x) { return max(x); }, {2, 5, 5, 1}) == Doubles{0, 0.5, 0.5, 0});
  CHECK(slope([](const Tensor& x) { return min(x, {0}); }, {5, 2, 2}) == Doubles{0, 0.5, 0.5});
  CHECK(slope([](const Tensor& x) { return pow(x, 2); }, {0, 3}) == Doubles{0, 6});
  CHECK(slope([](const Tensor& x) { return pow(x, full({2}, 0, DType::f64)); }, {0, 3}) == Doubles{0, 0});
  CHECK(slope([](const Tensor& x) { return pow(zeros({2}, DType::f64), x); }, {2, 0}) == Doubles{0, 0});
  CHECK(slope([](const Tensor& x) { return prod(x); }, {2, 0, 3}) == Doubles{0, 6, 0});
  CHECK(slope([](const Tensor& x) { return prod(x); }, {0, 0, 3}) == Doubles{0, 0, 0});
  // Equal values keep their order, so the gradient goes to the first.
  CHECK(slope([](const Tensor& x) { return topk(x, 1).values; }, {4, 7, 7}) == Doubles{0, 1, 0});
}

TEST_CASE("A gradient that an op does not pass on is 0, and not 0 times infinity") {
  // sqrt hands an infinite gradient to its argument of 0, and a NaN to what is below.
  const auto relu_slope = [](const Tensor& x) { return sqrt(relu(x)); };
  const auto clamp_slope = [](const Tensor& x) { return sqrt(clamp(x, 0, 1)); };
  const auto maximum_slope = [](const Tensor& x) { return sqrt(maximum(x, 0)); };
  const auto tensors_slope = [](const Tensor& x) { return sqrt(maximum(x, zeros_like(x))); };
  for (const auto f : {+relu_slope, +clamp_slope, +maximum_slope, +tensors_slope}) CHECK(slope(f, {-1, 0.25}) == Doubles{0, 1});
  CHECK(slope([](const Tensor& x) { return sqrt(max(x)); }, {-1, 0}) == Doubles{0, infinity});
  for (const auto f : {+relu_slope, +clamp_slope, +maximum_slope}) {  // and where the gradient is recorded
    const Tensor x = leaf({-1, 0.25}), g = grad({sum(f(x))}, {x}, {}, true)[0];
    CHECK(list(g) == Doubles{0, 1});
    CHECK(list(grad({sum(g)}, {x})[0]) == Doubles{0, -2});
  }
  // A NaN passes the gradient on, as in PyTorch: to both of two operands.
  CHECK(slope(relu, {nan}) == Doubles{1});
  CHECK(slope([](const Tensor& x) { return maximum(x, zeros_like(x)); }, {nan}) == Doubles{1});
  CHECK(slope([](const Tensor& x) { return minimum(full_like(x, nan), x); }, {2}) == Doubles{1});
}

TEST_CASE("The second derivatives of prod are exact where elements are 0") {
  // d2 (a b c) / da db = c, also where a, b or both are 0: of sum(dx h) that is b c' + c b' for a.
  for (const Doubles& at : {Doubles{0, 3, 5}, Doubles{0, 0, 5}, Doubles{2, 3, 5}}) {
    const Tensor x = leaf(at), g = grad({prod(x)}, {x}, {}, true)[0];
    const double a = at[0], b = at[1], c = at[2];
    CHECK(list(g) == Doubles{b * c, a * c, a * b});
    CHECK(list(grad({g}, {x}, {Tensor::from({1.0, 10.0, 100.0}, {3})})[0]) == Doubles{10 * c + 100 * b, c + 100 * a, b + 10 * a});
  }
}

TEST_CASE("remainder has no second derivative by the divisor, and none of NaN where the quotient is infinite") {
  const Tensor x = leaf({infinity, 7}), z = leaf({2, 2}), weight = leaf({1, 1});
  const Tensor g = grad({remainder(x, z)}, {z}, {weight}, true)[0];
  CHECK_FALSE(grad({g}, {z, weight}, {ones_like(g)})[0].defined());
}

TEST_CASE("Pointwise ops and topk pass a NaN on") {
  for (const DType dtype : floats) {
    INFO(name(dtype));
    for (const std::int64_t n : {1, 33, 1025}) {
      const Tensor x = cast(Tensor::from(Doubles(static_cast<std::size_t>(n), 0.5), {n}), dtype);
      fill_(select(x, 0, n - 1), nan);
      const auto last = [&](const Tensor& y) { return list(y).back(); };
      CHECK(std::isnan(last(maximum(x, 3))));
      CHECK(std::isnan(last(minimum(x, 3))));
      CHECK(std::isnan(last(maximum(zeros_like(x), x))));
      CHECK(std::isnan(last(minimum(zeros_like(x), x))));
      CHECK(std::isnan(last(relu(x))));
      CHECK(std::isnan(last(clamp(x, 0, 1))));
      CHECK(std::isnan(last(gelu(x))));
      CHECK(std::isnan(last(sigmoid(x))));
      CHECK(std::isnan(last(tanh(x))));
      CHECK(std::isnan(last(exp(x))));
      CHECK(last(topk(x, 1).indices) == static_cast<double>(n - 1));
      CHECK(list(eq(x, x)).back() == 0);
      CHECK(list(ne(x, x)).back() == 1);
    }
  }
}

TEST_CASE("Infinities and large numbers do not overflow on the way") {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const Tensor x = cast(Tensor::from(Doubles{1000, 1000, -1000}, {3}), dtype);
    CHECK(list(softmax(x)) == Doubles{0.5, 0.5, 0});
    CHECK(list(log_softmax(x))[2] == Approx(-2000 - std::log(2.0)));
    CHECK(list(logsumexp(x))[0] == Approx(1000 + std::log(2.0)));
    CHECK(list(sigmoid(x)) == Doubles{1, 1, 0});
    CHECK(list(tanh(x)) == Doubles{1, 1, -1});
    CHECK(list(gelu(x)) == Doubles{1000, 1000, 0});
    CHECK(list(gelu_tanh(x)) == Doubles{1000, 1000, 0});
    CHECK(list(silu(x))[0] == 1000);
    CHECK(std::abs(list(silu(x))[2]) < 1e-30);
    CHECK(list(exp(x)) == Doubles{infinity, infinity, 0});
    const Tensor none = full({2, 3}, -infinity, dtype);
    CHECK(list(logsumexp(none, {1})) == Doubles{-infinity, -infinity});
    CHECK(std::isnan(list(softmax(none))[0]));
  }
  CHECK(slope([](const Tensor& x) { return logsumexp(x); }, {-infinity, -infinity}) == Doubles{0, 0});
  CHECK(slope([](const Tensor& x) { return logsumexp(x); }, {0, -infinity}) == Doubles{1, 0});
  // A masked position takes no part, and no gradient.
  CHECK(slope([](const Tensor& x) { return select(softmax(masked_fill(x, gt(x, 5), -infinity)), 0, 0); }, {1, 9})[1] == 0);
}

TEST_CASE("Casts to 16 bits overflow to infinity and round integers, and one to the same dtype is its input") {
  CHECK(cast(leaf({1}), DType::f64).is_leaf());
  CHECK(list(cast(full({1}, 65520, DType::f64), DType::f16)) == Doubles{infinity});
  CHECK(list(cast(full({1}, 300, DType::i64), DType::bf16)) == Doubles{300});
}

TEST_CASE("Ignored targets count for nothing in cross_entropy, and without any other the mean is NaN") {
  CrossEntropyOptions options;
  options.ignore_index = 0;
  const Tensor logits = Tensor::from(Doubles{1, 2, infinity, nan}, {2, 2}).set_requires_grad();
  const Tensor targets = Tensor::from(std::vector<std::int64_t>{1, 0}, {2});
  const Tensor loss = cross_entropy(logits, targets, options);
  CHECK(loss.item<double>() == Approx(std::log(1 + std::exp(-1.0))));
  loss.backward();
  CHECK(list(logits.grad())[2] == 0);
  CHECK(list(logits.grad())[3] == 0);
  CHECK(std::isnan(cross_entropy(logits, zeros({2}, DType::i64), options).item<double>()));
  options.reduction = Reduction::sum;
  CHECK(cross_entropy(logits, zeros({2}, DType::i64), options).item<double>() == 0);
}

TEST_CASE("A mean of losses over nothing is NaN, with gradients of 0") { check_empty_means(cpu); }
TEST_CASE("A mean of losses over nothing is NaN, with gradients of 0, on a GPU", "[cuda]") { check_empty_means(cuda()); }

TEST_CASE("An integer tensor takes whole numbers that it holds, and compares with any") {
  const Tensor x = Tensor::from(std::vector<std::uint8_t>{0, 7, 255}, {3});
  CHECK(sub(x, 1).dtype() == DType::u8);
  CHECK(list(sub(x, 1)) == Doubles{255, 6, 254});
  CHECK(mul(x, 0.5).dtype() == DType::f32);
  CHECK(list(lt(x, 300)) == Doubles{1, 1, 1});
  CHECK(list(eq(x, 300)) == Doubles{0, 0, 0});
  CHECK(list(gt(x, -1)) == Doubles{1, 1, 1});
  CHECK(list(ge(x, 254.5)) == Doubles{0, 0, 1});
  CHECK(list(lt(x, infinity)) == Doubles{1, 1, 1});
  const Tensor large = Tensor::from(std::vector<std::int32_t>{16777217, 16777216}, {2});
  CHECK(list(gt(large, 16777216.5)) == Doubles{1, 0});
  CHECK(where(gt(x, 1), x, 0.5).dtype() == DType::f32);
  CHECK(where(gt(x, 1), x, 3).dtype() == DType::u8);
  CHECK(where(gt(x, 1), gt(x, 1), 1).dtype() == DType::boolean);
}

TEST_CASE("Integers wrap, and their powers are whole") {
  using Longs = std::vector<std::int64_t>;
  const std::int64_t high = std::numeric_limits<std::int64_t>::max(), low = std::numeric_limits<std::int64_t>::min();
  const auto longs = [](const Longs& values) { return Tensor::from(values, {static_cast<std::int64_t>(values.size())}); };
  CHECK((longs({high}) + longs({1})).to_vector<std::int64_t>() == Longs{low});
  CHECK((longs({low}) - longs({1})).to_vector<std::int64_t>() == Longs{high});
  CHECK((longs({high}) * longs({2})).to_vector<std::int64_t>() == Longs{-2});
  CHECK(neg(longs({low, 3})).to_vector<std::int64_t>() == Longs{low, -3});
  CHECK(abs(longs({low, -3})).to_vector<std::int64_t>() == Longs{low, 3});
  CHECK(square(longs({std::int64_t(1) << 32})).to_vector<std::int64_t>() == Longs{0});
  CHECK(pow(longs({0, 2, 1, -1, -1}), longs({-1, -1, -5, -3, -2})).to_vector<std::int64_t>() == Longs{0, 0, 1, -1, 1});
  CHECK(floor_divide(longs({7, low, -7}), longs({0, -1, 2})).to_vector<std::int64_t>() == Longs{0, low, -4});
}

TEST_CASE("Random numbers and norms refuse options without a meaning") {
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  CHECK_THROWS_WITH(rand({2}, 5, 1), "[rand] expected finite bounds low <= high but got 5 and 1");
  for (const auto& [low, high] : {std::pair{nan, 1.0}, {0.0, nan}, {-infinity, 0.0}, {0.0, infinity}}) {
    CHECK_THROWS_AS(rand({2}, low, high), Error);
    CHECK_THROWS_AS(uniform_(empty({2}), low, high), Error);
  }
  for (const auto& [mean, deviation] : {std::pair{0.0, -1.0}, {0.0, nan}, {nan, 1.0}, {0.0, infinity}}) {
    CHECK_THROWS_AS(randn({2}, mean, deviation), Error);
    CHECK_THROWS_AS(normal_(empty({2}), mean, deviation), Error);
  }
  CHECK(rand({2}, 3, 3).to_vector<float>() == std::vector<float>{3, 3});
  CHECK(randn({2}, 3, 0).to_vector<float>() == std::vector<float>{3, 3});
  const Tensor x = ones({2, 4}), g = ones({4});
  for (const double eps : {-1.0, 0.0, nan, infinity}) {
    for (const bool fused : {false, true}) {
      const FusedKernels kernels(fused);
      CHECK_THROWS_AS(layer_norm(x, g, g, eps), Error);
      CHECK_THROWS_AS(rms_norm(x, g, eps), Error);
      CHECK_THROWS_AS(residual_layer_norm(x, x, g, g, eps), Error);
      CHECK_THROWS_AS(residual_rms_norm(x, x, g, eps), Error);
    }
    CHECK_THROWS_AS(group_norm(reshape(x, {2, 4, 1}), 2, g, g, eps), Error);
  }
}

namespace {

bool has_nan(const Tensors& xs) {
  for (const Tensor& x : xs)
    if (is_floating(x.dtype()))
      for (const double value : op_cases::read(x).values)
        if (std::isnan(value)) return true;
  return false;
}

}  // namespace

TEST_CASE("A NaN in any op's output is named in anomaly mode") {
  int named = 0;
  for (const op_cases::Row& row : op_cases::table())
    for (const op_cases::Case& op : row.cases) {
      const std::vector<DType> dtypes = op_cases::dtypes_of(row, op);
      if (std::find(dtypes.begin(), dtypes.end(), DType::f32) == dtypes.end()) continue;
      if (row.name == "quantize" || row.name == "cholesky" || row.name == "multinomial") continue;  // which refuse a NaN
      for (std::size_t poisoned = 0; poisoned < op.inputs.size(); ++poisoned) {
        const auto inputs = [&] {
          Tensors result;
          for (std::size_t i = 0; i < op.inputs.size(); ++i) result.push_back(op_cases::make_input(op.inputs[i], DType::f32, i));
          const Tensor& x = result[poisoned];
          if (x.numel() > 0 && is_floating(x.dtype())) fill_(slice(reshape(x, {x.numel()}), 0, 0, 1), std::nan(""));
          return result;
        };
        const Tensors given = inputs();
        if (!has_nan({given[poisoned]}) || op.inputs[poisoned].edited) continue;
        INFO(row.name << ", input " << poisoned);
        const Tensors got = op.call({given, DType::f32, cpu});
        // A tensor that is handed through or viewed, or written in place, is not an op's output.
        const bool is_given = std::any_of(got.begin(), got.end(), [&](const Tensor& y) {
          return std::any_of(given.begin(), given.end(), [&](const Tensor& x) { return x.impl().storage.get() == y.impl().storage.get(); });
        });
        if (is_given || !has_nan(got)) continue;
        const Tensors again = inputs();
        std::string message;
        try {
          const AnomalyMode mode;
          op.call({again, DType::f32, cpu});
        } catch (const Error& error) {
          message = error.what();
        }
        CHECK(message.find("made a NaN") != std::string::npos);
        ++named;
      }
    }
  CHECK(named > 100);
}

}  // namespace tern::op_cases
