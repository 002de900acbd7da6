// Draws of multinomial: their frequencies, for every dtype and for more classes than a float32 has numbers between 0 and 1.
#include <array>
#include <cmath>
#include <vector>

#include "catch.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"

namespace tern {

namespace {

using Longs = std::vector<std::int64_t>;

Longs counts_of(const Tensor& draws, std::int64_t classes) {
  return bincount(reshape(draws, {draws.numel()}), {}, classes).to_vector<std::int64_t>();
}

/// Chi-square of the counts beside these weights. A class of weight 0 must not be there.
double chi_square(const Longs& counts, const std::vector<double>& weights) {
  double total = 0, draws = 0, result = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) total += weights[i], draws += double(counts[i]);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double expected = weights[i] / total * draws;
    if (weights[i] == 0) CHECK(counts[i] == 0);
    else result += (double(counts[i]) - expected) * (double(counts[i]) - expected) / expected;
  }
  return result;
}

}  // namespace

TEST_CASE("multinomial draws as often as the weights say, in every dtype") {
  manual_seed(5);
  std::vector<double> weights;
  for (int i = 0; i < 100; ++i) weights.push_back(i % 4 == 3 ? 0 : 1 + i % 7);
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    INFO(name(dtype));
    const Tensor rates = cast(Tensor::from(weights, {100}), dtype);
    // The 99.999th percentile for 74 degrees of freedom is 133.
    CHECK(chi_square(counts_of(multinomial(rates, 100000, true), 100), weights) < 133);
    CHECK(chi_square(counts_of(multinomial(broadcast_to(rates, {20000, 100}), 1), 100), weights) < 133);
  }
}

TEST_CASE("multinomial sums more weights than a 16-bit float counts") {
  manual_seed(6);
  for (const DType dtype : {DType::f16, DType::bf16}) {
    Longs tenths(10);
    for (std::int64_t x : multinomial(ones({20000}, dtype), 100000, true).to_vector<std::int64_t>()) ++tenths[std::size_t(x / 2000)];
    CHECK(chi_square(tenths, std::vector<double>(10, 1)) < 40);  // the 99.999th percentile is 39.3
  }
}

TEST_CASE("multinomial without replacement draws each once, and the second from the rest") {
  manual_seed(7);
  const std::vector<double> weights{1, 2, 0, 3, 4};
  const Longs at = multinomial(broadcast_to(Tensor::from(weights, {5}), {30000, 5}), 2).to_vector<std::int64_t>();
  Longs pairs(25);
  for (std::size_t i = 0; i < at.size(); i += 2) ++pairs[std::size_t(5 * at[i] + at[i + 1])];
  std::vector<double> expected;
  for (double first : weights)
    for (double second : weights) expected.push_back(first / 10 * second / (10 - first));
  for (std::size_t i = 0; i < 5; ++i) expected[6 * i] = 0;
  CHECK(chi_square(pairs, expected) < 47);  // the 99.999th percentile for 11 degrees of freedom is 45.1
  const Tensor all = multinomial(ones({50, 4}), 4);
  CHECK(sum(all, {1}).to_vector<std::int64_t>() == Longs(50, 6));
}

TEST_CASE("multinomial prefers no class of millions of equal ones") {
  manual_seed(8);
  // With a number of 24 bits, one class of three would have 6 of them and the two others 5.
  const std::int64_t classes = std::int64_t(3) << 20;
  Longs rests(3);
  for (std::int64_t x : multinomial(ones({classes}), 100000, true).to_vector<std::int64_t>()) ++rests[std::size_t(x % 3)];
  CHECK(chi_square(rests, {1, 1, 1}) < 23);  // the 99.999th percentile
  // With 24 bits many times are equal, and of equal ones the first class is drawn first.
  const Longs order = multinomial(ones({1 << 20}), 1 << 18).to_vector<std::int64_t>();
  std::int64_t ascents = 0;
  for (std::size_t i = 0; i + 1 < order.size(); ++i) ascents += order[i] < order[i + 1];
  CHECK(std::abs(double(ascents) - 0x1p17) < 5 * 148);  // 148: the standard deviation, sqrt(2^18 / 12)
}

TEST_CASE("multinomial takes weights of any size") {
  manual_seed(9);
  for (const double unit : {1.0, 1e-300, 4e307}) {
    INFO(unit);
    const Tensor weights = Tensor::from(std::vector<double>{0, unit, 0, 3 * unit, 0}, {5});
    CHECK(chi_square(counts_of(multinomial(weights, 20000, true), 5), {0, 1, 0, 3, 0}) < 20);
    CHECK(chi_square(counts_of(multinomial(broadcast_to(weights, {20000, 5}), 1), 5), {0, 1, 0, 3, 0}) < 20);
  }
  // A class far from the others, in both directions.
  const Tensor far = Tensor::from(std::vector<double>{1e-300, 0, 1e300}, {3});
  CHECK(multinomial(far, 1000, true).to_vector<std::int64_t>() == Longs(1000, 2));
  CHECK(multinomial(far, 2).to_vector<std::int64_t>() == Longs{2, 0});
  CHECK(multinomial(ones({1}), 5, true).to_vector<std::int64_t>() == Longs(5, 0));
  CHECK(multinomial(ones({2, 3}), 0, true).shape() == Shape{2, 0});
}

TEST_CASE("multinomial draws the same on a GPU", "[cuda]") {
  const Tensor weights = cast(randint(0, 5, {3, 1025}), DType::f32);
  const auto drawn = [&](Device device) {
    manual_seed(10);
    return multinomial(weights.to(device), 1000, true).to_vector<std::int64_t>();
  };
  CHECK(drawn(cuda()) == drawn(cpu));
  const DeviceScope scope(cuda());
  manual_seed(11);
  CHECK(chi_square(counts_of(multinomial(broadcast_to(Tensor::from(std::vector<double>{1, 0, 3}, {3}), {20000, 3}), 1), 3), {1, 0, 3}) <
        20);
  Longs rests(3);
  for (std::int64_t x : multinomial(ones({std::int64_t(3) << 20}), 100000, true).to_vector<std::int64_t>()) ++rests[std::size_t(x % 3)];
  CHECK(chi_square(rests, {1, 1, 1}) < 23);
}

}  // namespace tern
