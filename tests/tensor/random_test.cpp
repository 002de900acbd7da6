// Philox against the known answers of its authors, and where a generator stands. What is drawn from its words is in the op table.
#include "ops/random.h"

#include <algorithm>
#include <cmath>

#include "catch.h"
#include "ops/factory.h"
#include "ops/kernels/random.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"

namespace tern {

namespace {

using Words = std::vector<std::uint32_t>;
template <int rounds = 10>
Words words(std::uint64_t seed, std::uint64_t position, std::uint64_t stream) {
  const PhiloxBlock block = philox<rounds>(seed, position, stream);
  return {block.words, block.words + 4};
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
  // Dropout draws anew each time, and where it drops nothing it hands its input through.
  const Tensor x = ones({100});
  CHECK(dropout(x, 0.25).to_vector<float>() != dropout(x, 0.25).to_vector<float>());
  CHECK(dropout(x, 0.25, false).is_same(x));
  CHECK(dropout(x, 0).is_same(x));
}

/// Positions pass 2^32, and a block's words go to four elements in order.
static void check_far_positions(Device device) {
  const std::uint64_t seed = 0x123456789abcdefull, start = 0xffffffff - 21;
  const auto drawn = [&](auto draw) {
    context().generator.set_seed(seed);
    context().generator.set_position(start);
    return draw().template to_vector<float>();
  };
  const auto uniform = drawn([&] { return rand({1025}, 0, 1, DType::f32, device); });
  const auto none = drawn([&] { return bernoulli({1025}, 0, DType::f32, device); });
  const auto all = drawn([&] { return bernoulli({1025}, 1, DType::f32, device); });
  for (std::size_t i = 0; i < 1025; ++i) {
    CHECK(uniform[i] == unit_float(philox(seed, start + i / 4).words[i % 4]));
    CHECK(none[i] == 0);
    CHECK(all[i] == 1);
  }
}
TEST_CASE("Draws go on past position 2^32") { check_far_positions(cpu); }
TEST_CASE("Draws on a GPU go on past position 2^32", "[cuda]") { check_far_positions(cuda()); }

namespace {

/// Checks that uniform numbers of S are in [low, high) in S, are the plain formula's where that is below `high`, and else the largest
/// number of S below it. Returns how many of them that replaced.
template <class S, class C>
std::int64_t replaced_at_the_bound(DType dtype, double low, double high) {
  manual_seed(6);
  const auto unit = rand({many}, 0, 1, DType::f32).to_vector<float>();
  manual_seed(6);
  const auto values = rand({many}, low, high, dtype).to_vector<S>();
  manual_seed(6);
  CHECK(uniform_(empty({many}, dtype), low, high).to_vector<S>().size() == values.size());
  const C bottom = S(C(low)), top = S(C(high));
  C last = bottom, seen = bottom;  // the largest of all draws of the formula below `high`, and of those drawn
  std::int64_t replaced = 0, wrong = 0;
  std::vector<C> formula;
  for (float u : unit) formula.push_back(S(C(low) + C(high - low) * C(u)));
  for (C x : formula)
    if (x < top) last = std::max(last, x);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const C x = values[i];
    seen = std::max(seen, x);
    replaced += formula[i] >= top;
    // A sum may be rounded once or twice: one ulp.
    wrong += x < bottom || !(x < top) || (formula[i] < top && std::abs(x - formula[i]) > (top - last));
  }
  CHECK(wrong == 0);
  return replaced;
}

}  // namespace

TEST_CASE("Uniform numbers stay below the upper bound in every dtype") {
  const std::pair<double, double> bounds[] = {{0, 1}, {-3, 3}, {1000, 1010}, {0.1, 0.7}, {-2, -1.5}, {0, 6e4}};
  for (const auto& [low, high] : bounds) {
    INFO(low << " to " << high);
    CHECK(replaced_at_the_bound<f16, float>(DType::f16, low, high) > 0);
    CHECK(replaced_at_the_bound<bf16, float>(DType::bf16, low, high) > 0);
    replaced_at_the_bound<float, float>(DType::f32, low, high);
    replaced_at_the_bound<double, double>(DType::f64, low, high);
  }
  for (const DType dtype : {DType::f16, DType::bf16}) CHECK(all(rand({many}, -1, 0, dtype) < 0).item<bool>());
  CHECK(replaced_at_the_bound<float, float>(DType::f32, 1e6, 1e6 + 10) > 0);
  CHECK(replaced_at_the_bound<float, float>(DType::f32, -1e6 - 10, -1e6) > 0);
  CHECK(replaced_at_the_bound<double, double>(DType::f64, 1e16, 1e16 + 20) > 0);
  // Without a number between the bounds there is only `low`.
  CHECK(rand({2}, 1, 1.0001, DType::f16).to_vector<f16>() == std::vector<f16>(2, f16(1.0f)));
  CHECK(rand({2}, 2, 2).to_vector<float>() == std::vector<float>{2, 2});
}

TEST_CASE("Uniform and whole numbers of a GPU are the CPU's, and below the upper bound", "[cuda]") {
  const auto drawn = [](auto draw, Device device) {
    manual_seed(12);
    return draw(device);
  };
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16})
    for (const auto& [low, high] : {std::pair{0.0, 1.0}, {-1.0, 0.0}, {1e3, 1e3 + 10}, {0.1, 0.7}, {4096.0, 4098.0}, {1e6, 1e6 + 10}}) {
      if (low == 1e6 && dtype != DType::f32) continue;
      INFO(name(dtype) << ", " << low << " to " << high);
      const auto draw = [&, low = low, high = high](Device device) { return rand({300001}, low, high, dtype, device); };
      const Tensor x = drawn(draw, cuda());
      CHECK(all(x < high).item<bool>());
      CHECK(all(x >= full({}, low, dtype, cuda())).item<bool>());  // the dtype may lack `low`: 0.1 is less in f16
      if (low == 0) CHECK(all(eq(to(x, cpu), drawn(draw, cpu))).item<bool>());
    }
  // Spans of which almost no and of which a quarter of the draws are rejected, of 32 and of 64 bits.
  for (const auto& [low, high] :
       {std::pair<std::int64_t, std::int64_t>{-7, 190}, {0, 3ll << 30}, {0, 1ll << 32}, {0, 3ll << 61}, {INT64_MIN, INT64_MAX}}) {
    const auto draw = [low = low, high = high](Device device) {
      return randint(low, high, {300001}, DType::i64, device).to_vector<std::int64_t>();
    };
    CHECK(drawn(draw, cuda()) == drawn(draw, cpu));
  }
  const auto order = [](Device device) { return randperm(100000, device).to_vector<std::int64_t>(); };
  CHECK(drawn(order, cuda()) == drawn(order, cpu));
}

TEST_CASE("The next smaller number of a 16-bit float") {
  for (int bits = 0; bits < 65536; ++bits) {
    f16 x;
    x.bits = static_cast<std::uint16_t>(bits);
    if (!std::isfinite(float(x)) || float(x) == -65504) continue;
    const float below = kernels::next_below(x);
    const f16 between((below + float(x)) / 2);  // rounds to one of two neighbours
    if (!(below < float(x)) || (float(between) != below && float(between) != float(x))) FAIL_CHECK(float(x) << " has " << below);
  }
  CHECK(float(kernels::next_below(bf16(1.0f))) == 1 - 0x1p-8f);
  CHECK(float(kernels::next_below(bf16(0.0f))) < 0);
}

TEST_CASE("randint draws each whole number equally often, where it has to reject draws, for spans of up to 64 bits") {
  manual_seed(4);
  // A span of 3/4 of all draws, of 32 and of 64 bits: without rejection one number of two would be drawn twice as often as the other.
  for (const std::int64_t span : {std::int64_t(3) << 30, std::int64_t(3) << 61}) {
    INFO(span);
    std::vector<int> rests(3);
    int in_order = 0;
    for (std::int64_t x : randint(0, span, {90000}).to_vector<std::int64_t>()) {
      in_order += x >= 0 && x < span;
      ++rests[static_cast<std::size_t>(x % 3)];
    }
    CHECK(in_order == 90000);
    for (int rest : rests) CHECK(std::abs(rest - 30000) < 900);  // standard deviation 141
  }
  // Above 2^53, where a double has no odd numbers.
  const std::int64_t base = (std::int64_t(1) << 62) + 1;
  std::int64_t odd = 0;
  for (std::int64_t x : randint(base, base + 3'000'000'000, {10000}).to_vector<std::int64_t>()) {
    odd += x % 2;
    if (x < base || x >= base + 3'000'000'000) FAIL_CHECK("drew " << x);
  }
  CHECK(std::abs(odd - 5000) < 300);  // standard deviation 50
  // The widest range: signs and upper halves are balanced.
  std::int64_t negative = 0, small = 0;
  for (std::int64_t x : randint(INT64_MIN, INT64_MAX, {10000}).to_vector<std::int64_t>()) {
    negative += x < 0;
    small += x >= -(std::int64_t(1) << 62) && x < std::int64_t(1) << 62;
  }
  CHECK(std::abs(negative - 5000) < 300);
  CHECK(std::abs(small - 5000) < 300);
  CHECK(randint(INT64_MAX - 1, INT64_MAX, {3}).to_vector<std::int64_t>() == std::vector<std::int64_t>(3, INT64_MAX - 1));
  CHECK(randint(5, 6, {0}).numel() == 0);
  // A run of draws in one call and in calls of 8 elements, which reserve whole positions.
  manual_seed(9);
  const auto whole = randint(0, 1000, {64}).to_vector<std::int64_t>();
  manual_seed(9);
  std::vector<std::int64_t> parts;
  for (int i = 0; i < 8; ++i)
    for (std::int64_t x : randint(0, 1000, {8}).to_vector<std::int64_t>()) parts.push_back(x);
  CHECK(parts == whole);
}

}  // namespace tern
