#include <cmath>

#include "nn/fixture.h"
#include "ops/factory.h"
#include "ops/gradcheck.h"
#include "ops/pointwise.h"
#include "ops/view.h"
#include "train/step.h"

using namespace tern;

namespace {

struct Case {
  std::vector<float> logits;          ///< (2 B, T, V), a row's two passes one after the other
  std::vector<std::int64_t> targets;  ///< (2 B, T)
  std::vector<float> weights;         ///< (2 B, T)
  std::int64_t rows = 3, columns = 2, classes = 7;
};

Case make_case() {
  Case c;
  c.logits = draw(4, 2 * c.rows * c.columns * c.classes, 3);
  for (std::int64_t row = 0; row < c.rows; ++row)
    for (int pass = 0; pass < 2; ++pass)
      for (std::int64_t i = row * c.columns; i < (row + 1) * c.columns; ++i) {
        c.targets.push_back(i == 4 ? -100 : i * 5 % c.classes);
        c.weights.push_back(i == 1 ? 0.0f : 0.5f * static_cast<float>(1 + i % 3));
      }
  return c;
}

/// Token by token, in f64.
double reference(const Case& c, double alpha, double smoothing, bool is_mean) {
  const auto rows = static_cast<std::size_t>(c.rows), columns = static_cast<std::size_t>(c.columns),
             classes = static_cast<std::size_t>(c.classes);
  const auto log_softmax = [&](std::size_t token) {
    std::vector<double> result(c.logits.begin() + std::ptrdiff_t(token * classes),
                               c.logits.begin() + std::ptrdiff_t((token + 1) * classes));
    double total = 0;
    for (double x : result) total += std::exp(x);
    for (double& x : result) x -= std::log(total);
    return result;
  };
  double sum = 0, weight = 0;
  for (std::size_t token = 0; token < rows * columns; ++token) {
    const std::size_t i = 2 * (token / columns) * columns + token % columns;
    if (c.targets[i] == -100) continue;
    const std::vector<double> p = log_softmax(i), q = log_softmax(i + columns);
    const auto nll = [&](const std::vector<double>& x) {
      double all = 0;
      for (double value : x) all -= value;
      return (1 - smoothing) * -x[static_cast<std::size_t>(c.targets[i])] + smoothing * all / double(classes);
    };
    double forth = 0, back = 0;
    for (std::size_t j = 0; j < classes; ++j) {
      forth += std::exp(p[j]) * (p[j] - q[j]);
      back += std::exp(q[j]) * (q[j] - p[j]);
    }
    sum += c.weights[i] * (nll(p) + nll(q) + alpha / 2 * (forth + back));
    weight += 2 * c.weights[i];
  }
  return is_mean ? sum / weight : sum;
}

}  // namespace

TEST_CASE("R-Drop is half of the paper's loss, in f64 and in 16 bits") {
  const Case c = make_case();
  const Shape shape{2 * c.rows, c.columns, c.classes}, tokens{2 * c.rows, c.columns};
  const Tensor targets = Tensor::from(c.targets, tokens), weights = Tensor::from(c.weights, tokens);
  for (const double alpha : {0.0, 1.0, 5.0})
    for (const double smoothing : {0.0, 0.1})
      for (const bool is_mean : {true, false}) {
        INFO(alpha << " " << smoothing << " " << is_mean);
        CrossEntropyOptions options{.token_weights = weights, .label_smoothing = smoothing};
        options.reduction = is_mean ? Reduction::mean : Reduction::sum;
        const double wanted = reference(c, alpha, smoothing, is_mean);
        const Tensor logits = Tensor::from(c.logits, shape);
        CHECK(train::r_drop_loss(logits, targets, alpha, options).item<double>() == Approx(wanted).epsilon(1e-5));
        const Tensor coarse = train::r_drop_loss(cast(logits, DType::bf16), targets, alpha, options);
        CHECK(coarse.dtype() == DType::f32);
        CHECK(coarse.item<double>() == Approx(wanted).epsilon(2e-2));
      }
  CHECK(reference(c, 5, 0.1, true) > 1.1 * reference(c, 0, 0.1, true));
}

TEST_CASE("R-Drop's gradient is that of central differences") {
  const Case c = make_case();
  const Tensor targets = Tensor::from(c.targets, {2 * c.rows, c.columns}), weights = Tensor::from(c.weights, {2 * c.rows, c.columns});
  Tensor logits = cast(Tensor::from(c.logits, {2 * c.rows, c.columns, c.classes}), DType::f64).detach();
  logits.set_requires_grad();
  const auto result = gradcheck(
      [&](const Tensors& x) {
        const Tensor doubles = cast(weights, DType::f64);
        return Tensors{train::r_drop_loss(x[0], targets, 1.5, {.token_weights = doubles, .label_smoothing = 0.1})};
      },
      {logits});
  INFO(result.message);
  CHECK(result.ok);
}

TEST_CASE("Two passes that agree have the cross entropy alone, and R-Drop refuses what has no pairs") {
  const Case c = make_case();
  const Tensor half = Tensor::from(std::vector<float>(c.logits.begin(), c.logits.begin() + 14), {2, 7});
  const Tensor logits = Tensor::from(std::vector<float>(c.logits.begin(), c.logits.begin() + 7), {1, 7});
  const Tensor twice = broadcast_to(logits, {2, 7}), targets = Tensor::from(std::vector<std::int64_t>{3, 3}, {2});
  CHECK(train::r_drop_loss(twice, targets, 5).item<double>() == Approx(cross_entropy(twice, targets).item<double>()));
  CHECK(train::r_drop_loss(half, targets, 5).item<double>() > cross_entropy(half, targets).item<double>());
  CHECK_THROWS_AS(train::r_drop_loss(logits, slice(targets, 0, 0, 1), 1), Error);
  CHECK_THROWS_AS(train::r_drop_loss(half, targets, -1), Error);
  const Tensor leaf = clone(half).set_requires_grad(), empty = train::r_drop_loss(leaf, full({2}, -100, DType::i64), 1);
  CHECK(std::isnan(empty.item<double>()));
  empty.backward();
  CHECK(leaf.grad().to_vector<float>() == std::vector<float>(14, 0));
  CHECK_THROWS_AS(train::r_drop_loss(half, targets, 1, {.reduction = Reduction::none}), Error);
}
