// Philox against the known answers of its authors, and the distributions drawn from it.
#include "ops/random.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "catch.h"
#include "ops/factory.h"
#include "ops/view.h"

namespace tern {

namespace {

using Words = std::vector<std::uint32_t>;
template <int rounds = 10>
Words words(std::uint64_t seed, std::uint64_t position, std::uint64_t stream) {
  const PhiloxBlock block = philox<rounds>(seed, position, stream);
  return {block.words, block.words + 4};
}

struct Moments {
  double mean = 0, variance = 0, skew = 0, kurtosis = 0;
};
Moments moments(const std::vector<double>& values) {
  Moments m;
  const double n = static_cast<double>(values.size());
  for (double v : values) m.mean += v / n;
  for (double v : values) m.variance += (v - m.mean) * (v - m.mean) / n;
  for (double v : values) m.skew += std::pow((v - m.mean) / std::sqrt(m.variance), 3) / n;
  for (double v : values) m.kurtosis += std::pow((v - m.mean) / std::sqrt(m.variance), 4) / n;
  return m;
}

constexpr std::int64_t many = 200000;

}  // namespace

TEST_CASE("Philox gives the published words") {
  // Random123's kat_vectors, philox4x32 with 10 rounds.
  CHECK(words(0, 0, 0) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(words(~0ull, ~0ull, ~0ull) == Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(words(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e) == Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
  static_assert(philox(0, 0).words[0] == 0x6627e8d5);
  // And with 7, of which dropout's bits are.
  CHECK(words<dropout_rounds>(0, 0, 0) == Words{0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48});
  CHECK(words<dropout_rounds>(~0ull, ~0ull, ~0ull) == Words{0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662});
  CHECK(words<dropout_rounds>(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e) ==
        Words{0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a});
}

TEST_CASE("draws_below counts the numbers whose value is less than a probability") {
  for (const double p : {-1.0, 0.0, 0x1p-20, 0.1, 0.5, 1 - 0x1p-20, 1.0, 2.0, std::nan("")}) {
    std::uint32_t expected = 0;
    while (expected < 65536 && double(expected) * 0x1p-16 < p) ++expected;
    CHECK(dropout_bound(p) == expected);
  }
  CHECK(draws_below(0.1, 24) == 1677722);
  CHECK(draws_below(1, 24) == 1u << 24);
}

TEST_CASE("unit_float covers [0, 1) in steps of 2^-24") {
  CHECK(unit_float(0) == 0.0f);
  CHECK(unit_float(0xffffffff) == 1.0f - 0x1p-24f);
  CHECK(unit_float(0x80000000) == 0.5f);
}

TEST_CASE("A generator hands out even positions, four elements to each") {
  Generator generator(9);
  CHECK(generator.reserve(5).offset == 0);
  CHECK(generator.reserve(0).offset == 2);
  CHECK(generator.reserve(4).offset == 2);
  CHECK(generator.position() == 4);
  CHECK(generator.reserve(1).seed == 9);
  generator.set_position(100);
  CHECK(generator.reserve(1).offset == 100);
  generator.set_seed(10);
  CHECK(generator.position() == 0);
}

TEST_CASE("Parts of a batch draw what the whole batch draws, and leave the generator where that does") {
  constexpr std::int64_t rows = 10, columns = 6;
  manual_seed(3);
  const auto whole = rand({rows, columns}).to_vector<float>(), after = rand({4}).to_vector<float>();
  manual_seed(3);
  const auto mask = dropout(ones({rows, columns}), 0.5).to_vector<float>();
  std::vector<float> parts, masks;
  for (const BatchRows part : {BatchRows{0, 2, rows}, BatchRows{2, 6, rows}, BatchRows{8, 2, rows}}) {  // the second begins at position 3
    for (std::vector<float>* of : {&parts, &masks}) {
      manual_seed(3);
      {
        const BatchRowsScope scope(part);
        const Tensor drawn = of == &parts ? rand({part.count, columns}) : dropout(ones({part.count, columns}), 0.5);
        const auto own = drawn.to_vector<float>();
        of->insert(of->end(), own.begin(), own.end());
      }
      CHECK(rand({4}).to_vector<float>() == after);
    }
  }
  CHECK(parts == whole);
  CHECK(masks == mask);
  // A block of four numbers is not divided, nor is a row.
  const BatchRowsScope scope({.first = 1, .count = 2, .total = 3});
  CHECK_THROWS_WITH(rand({2, 6}),
                    "[random] expected a part of a batch to begin at a multiple of four elements but got one that begins at 6");
  CHECK_THROWS_WITH(rand({3, 5}), "[random] expected a tensor of 2 rows, a part of a batch, but got 15 elements");
}

TEST_CASE("A seed reproduces its numbers, another one does not, and draws differ from each other") {
  manual_seed(3);
  const auto first = rand({100}).to_vector<float>(), second = rand({100}).to_vector<float>();
  manual_seed(3);
  CHECK(rand({100}).to_vector<float>() == first);
  CHECK(rand({100}).to_vector<float>() == second);
  CHECK(first != second);
  manual_seed(4);
  CHECK(rand({100}).to_vector<float>() != first);
  // The shape does not matter, only the order of elements; nor does the dtype.
  manual_seed(3);
  CHECK(rand({10, 10}).to_vector<float>() == first);
  manual_seed(3);
  const auto wide = rand({100}, 0, 1, DType::f64).to_vector<double>();
  CHECK(std::equal(wide.begin(), wide.end(), first.begin(), [](double a, float b) { return static_cast<float>(a) == b; }));
}

TEST_CASE("Uniform numbers are uniform") {
  manual_seed(1);
  const auto values = rand({many}, -2, 6, DType::f64).to_vector<double>();
  CHECK(*std::min_element(values.begin(), values.end()) >= -2);
  CHECK(*std::max_element(values.begin(), values.end()) < 6);
  const Moments m = moments(values);
  CHECK(m.mean == Approx(2).margin(0.03));  // standard error 0.005
  CHECK(m.variance == Approx(64.0 / 12).epsilon(0.02));
  CHECK(std::abs(m.skew) < 0.03);
  CHECK(m.kurtosis == Approx(1.8).margin(0.03));
  std::vector<int> bins(16);
  for (double v : values) ++bins[static_cast<std::size_t>((v + 2) * 2)];
  for (int bin : bins) CHECK(std::abs(bin - many / 16) < 600);  // standard deviation 108
}

TEST_CASE("A narrow dtype's uniform numbers stay below the upper bound") {
  for (DType dtype : {DType::f16, DType::bf16, DType::f32}) {
    INFO(name(dtype));
    manual_seed(6);
    const Tensor x = rand({many}, 0, 1, dtype);
    double top = 0;
    if (dtype == DType::f16)
      for (f16 v : x.to_vector<f16>()) top = std::max<double>(top, v);
    if (dtype == DType::bf16)
      for (bf16 v : x.to_vector<bf16>()) top = std::max<double>(top, v);
    if (dtype == DType::f32)
      for (float v : x.to_vector<float>()) top = std::max<double>(top, v);
    CHECK(top <= 1);
  }
}

TEST_CASE("Normal numbers are normal") {
  manual_seed(2);
  const auto values = randn({many}, 1, 3, DType::f64).to_vector<double>();
  const Moments m = moments(values);
  CHECK(m.mean == Approx(1).margin(0.04));  // standard error 0.0067
  CHECK(m.variance == Approx(9).epsilon(0.02));
  CHECK(std::abs(m.skew) < 0.03);
  CHECK(m.kurtosis == Approx(3).margin(0.06));
  CHECK(std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); }));
  const auto within = std::count_if(values.begin(), values.end(), [](double v) { return std::abs(v - 1) < 3; });
  CHECK(static_cast<double>(within) / many == Approx(0.6827).margin(0.006));
  // Neighbours, which share a Box-Muller pair, do not depend on each other.
  double correlation = 0;
  for (std::size_t i = 0; i + 1 < values.size(); i += 2) correlation += (values[i] - 1) * (values[i + 1] - 1) / 9 / (many / 2.0);
  CHECK(std::abs(correlation) < 0.015);
}

TEST_CASE("Bernoulli draws are 1 with the given probability") {
  manual_seed(5);
  for (double p : {0.0, 0.1, 0.5, 1.0}) {
    double ones = 0;
    for (float v : bernoulli({many}, p).to_vector<float>()) {
      if (v != 0 && v != 1) FAIL_CHECK("drew " << v);
      ones += v;
    }
    CHECK(ones / many == Approx(p).margin(0.006));
    if (p == 0 || p == 1) CHECK(ones == p * many);
  }
  CHECK(bernoulli({3}, 1, DType::boolean).to_vector<bool>() == std::vector<bool>{true, true, true});
}

TEST_CASE("randperm is a permutation, and a different one each time") {
  manual_seed(8);
  for (std::int64_t n : {0, 1, 2, 31, 1025, 70000}) {
    auto order = randperm(n).to_vector<std::int64_t>();
    const bool in_order = std::is_sorted(order.begin(), order.end());
    CHECK((n < 31 || !in_order));
    std::sort(order.begin(), order.end());
    std::vector<std::int64_t> all(static_cast<std::size_t>(n));
    std::iota(all.begin(), all.end(), 0);
    CHECK(order == all);
  }
  CHECK(randperm(100).to_vector<std::int64_t>() != randperm(100).to_vector<std::int64_t>());
  // Each number is equally likely to come first.
  std::vector<int> first(5);
  for (int i = 0; i < 5000; ++i) ++first[static_cast<std::size_t>(randperm(5).to_vector<std::int64_t>()[0])];
  for (int count : first) CHECK(std::abs(count - 1000) < 150);  // standard deviation 28
}

TEST_CASE("Dropout zeroes its share, scales the rest, and draws anew each time") {
  manual_seed(9);
  const Tensor x = ones({many});
  const auto y = dropout(x, 0.25).to_vector<float>();
  double zeros_seen = 0;
  for (float v : y) {
    if (v != 0 && v != Approx(4.0 / 3)) FAIL_CHECK("gave " << v);
    zeros_seen += v == 0;
  }
  CHECK(zeros_seen / many == Approx(0.25).margin(0.006));
  CHECK(dropout(x, 0.25).to_vector<float>() != y);
  CHECK(dropout(x, 0.25, false).is_same(x));
  CHECK(dropout(x, 0).is_same(x));
}

}  // namespace tern
