// The CPU's products with quantised weights against float64: what rows of x are rounded to, sizes round the vectors, tiles and groups, and
// a row alone against the same row in company, bit for bit.
#include <cmath>
#include <cstring>
#include <random>

#include "catch.h"
#include "ops/factory.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/quantize.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "threads.h"

using namespace tern;

namespace {

std::vector<float> numbers(std::int64_t count, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> draw;
  std::vector<float> result(static_cast<std::size_t>(count));
  for (float& x : result) x = draw(engine);
  return result;
}

/// A run of x as the product takes it: whole multiples of largest / most. `unsure` is how much a number may be off where it lies so close
/// to the middle of two that a float32 product, rounded or not, decides.
void round_run(const float* x, std::int64_t n, float most, double* to, double* unsure) {
  float top = 0;
  for (std::int64_t i = 0; i < n; ++i) top = std::max(top, std::abs(x[i]));
  for (std::int64_t i = 0; i < n; ++i) {
    const double step = double(top / most), scaled = top == 0 ? 0 : double(x[i]) * double(most / top);
    to[i] = std::nearbyint(scaled) * step;
    unsure[i] = 0.5 - std::abs(scaled - std::nearbyint(scaled)) < std::abs(scaled) * 1e-7 ? step : 0;
  }
}

struct ProductCase {
  std::vector<double> y, terms, unsure;  ///< terms: the sums of magnitudes
};

ProductCase multiply(const std::vector<float>& x, std::int64_t rows, const QuantizedWeight& w, const std::vector<float>& bias) {
  const std::vector<float> values = dequantize(w).to_vector<float>();
  const std::int64_t in = w.in, out = w.out(), run = has_blocks(w.format) ? quant_block : in;
  const float most = w.format == QuantFormat::int8 ? 32767 : 127;
  std::vector<double> rounded(static_cast<std::size_t>(in)), unsure(static_cast<std::size_t>(in));
  ProductCase result;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t k = 0; k < in; k += run)
      round_run(x.data() + r * in + k, std::min(run, in - k), most, rounded.data() + k, unsure.data() + k);
    for (std::int64_t j = 0; j < out; ++j) {
      double sum = double(bias[static_cast<std::size_t>(j)]), magnitude = std::abs(sum), doubt = 0;
      for (std::int64_t k = 0; k < in; ++k) {
        const double weight = double(values[static_cast<std::size_t>(j * in + k)]), term = rounded[static_cast<std::size_t>(k)] * weight;
        sum += term;
        magnitude += std::abs(term);
        doubt += unsure[static_cast<std::size_t>(k)] * std::abs(weight);
      }
      result.y.push_back(sum);
      result.terms.push_back(magnitude);
      result.unsure.push_back(doubt);
    }
  }
  return result;
}

}  // namespace

TEST_CASE("Quantised products of 1 to 70 rows give the reference, each row as it is alone") {
  const NoGrad unrecorded;
  constexpr std::int64_t max_rows = 70;
  for (const QuantFormat format : quant_formats)
    for (const auto& [in, out] : std::vector<std::pair<std::int64_t, std::int64_t>>{
             {1, 1}, {3, 33}, {31, 65}, {33, 31}, {64, 32}, {127, 3}, {515, 34}, {1061, 17}, {4100, 70}}) {
      INFO(name(format) << " " << in << " -> " << out);
      const std::vector<float> x = numbers(max_rows * in, 1), bias = numbers(out, 2);
      const QuantizedWeight w = quantize(Tensor::from(numbers(out * in, 3), {out, in}), format);
      const Tensor rows = Tensor::from(x, {max_rows, in}), added = Tensor::from(bias, {out});
      const ProductCase expected = multiply(x, max_rows, w, bias);
      const std::vector<float> together = quantized_linear(rows, w, added).to_vector<float>();
      double worst = 0;
      for (std::size_t i = 0; i < together.size(); ++i)
        worst = std::max(worst, (std::abs(double(together[i]) - expected.y[i]) - expected.unsure[i]) / expected.terms[i]);
      CHECK(worst < 1e-6);
      for (std::int64_t count = 1; count < max_rows; ++count) {
        const test::Threads threads(count % 3 + 1);
        const std::vector<float> y = quantized_linear(slice(rows, 0, max_rows - count, max_rows), w, added).to_vector<float>();
        REQUIRE(std::memcmp(y.data(), together.data() + (max_rows - count) * out, y.size() * sizeof(float)) == 0);
      }
    }
}

TEST_CASE("Quantised products keep the largest sums, 16 bits and rows that are not finite") {
  const NoGrad unrecorded;
  // A file's bytes may be any: 128 + q of 0 is q = -128, and no sum of a group may overflow.
  for (const QuantFormat format : quant_formats)
    for (const std::int64_t in : {std::int64_t{1024}, std::int64_t{65600}}) {
      INFO(name(format) << " " << in);
      QuantizedWeight w = quantize(Tensor::from(std::vector<float>(static_cast<std::size_t>(2 * in), -1.0F), {2, in}), format);
      if (!has_blocks(format)) {
        std::vector<std::uint8_t> bytes = w.rows.to_vector<std::uint8_t>();
        for (std::int64_t i = 4; i < row_bytes(format, in); ++i) bytes[static_cast<std::size_t>(i)] = 0;
        w.rows = Tensor::from(bytes, w.rows.shape());
      }
      const float unit = dequantize(w).to_vector<float>()[0];
      const Tensor x = Tensor::from(std::vector<float>(static_cast<std::size_t>(in), 1.0F), {1, in});
      CHECK(quantized_linear(x, w).to_vector<float>()[0] == Approx(double(in) * double(unit)).epsilon(1e-4));
      CHECK(quantized_linear(x * -1.0, w).to_vector<float>()[0] == Approx(-double(in) * double(unit)).epsilon(1e-4));
    }
  for (const QuantFormat format : quant_formats) {
    INFO(name(format));
    const QuantizedWeight w = quantize(Tensor::from(numbers(40 * 70, 4), {40, 70}), format);
    std::vector<float> x = numbers(3 * 70, 5);
    const std::vector<float> whole = quantized_linear(Tensor::from(x, {3, 70}), w).to_vector<float>();
    for (const DType dtype : {DType::bf16, DType::f16}) {
      const Tensor narrow = cast(Tensor::from(x, {3, 70}), dtype);
      const std::vector<float> wide = quantized_linear(cast(narrow, DType::f32), w).to_vector<float>();
      CHECK(cast(quantized_linear(narrow, w), DType::f32).to_vector<float>() ==
            cast(cast(Tensor::from(wide, {3, 40}), dtype), DType::f32).to_vector<float>());
      const std::vector<float> alone = cast(quantized_linear(slice(narrow, 0, 1, 2), w), DType::f32).to_vector<float>();
      CHECK(alone == cast(cast(slice(Tensor::from(wide, {3, 40}), 0, 1, 2), dtype), DType::f32).to_vector<float>());
    }
    for (const float fault : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(), std::nanf("")}) {
      x[70 + 69] = fault;
      const std::vector<float> y = quantized_linear(Tensor::from(x, {3, 70}), w).to_vector<float>();
      for (std::size_t i = 0; i < y.size(); ++i) {
        if (i / 40 == 1) CHECK(std::isnan(y[i]));
        else CHECK(y[i] == whole[i]);
      }
      for (const float each : quantized_linear(slice(Tensor::from(x, {3, 70}), 0, 1, 2), w).to_vector<float>()) CHECK(std::isnan(each));
    }
  }
}

TEST_CASE("Quantised products on tensor cores give those of the dequantised weight, the same bits each time", "[cuda]") {
  const NoGrad unrecorded;
  manual_seed(7);
  struct Size {
    std::int64_t rows, in, out;
  };
  // Each size of tile, with rows, channels and depths that fill none; rows of blocks that begin in the middle of a word (96, 1056, 200);
  // depths of less and more than the ring of stages.
  for (const QuantFormat format : quant_formats)
    for (const DType dtype : {DType::bf16, DType::f16})
      for (const Size& size : {Size{17, 1, 3},
                               {33, 96, 70},
                               {40, 1056, 101},
                               {64, 256, 256},
                               {65, 2100, 32},
                               {300, 200, 1100},
                               {257, 1064, 900},
                               {500, 72, 5001},
                               {513, 328, 4100}})
        for (const std::int64_t gap : {0, 3, 8}) {
          INFO(name(format) << " " << name(dtype) << " " << size.rows << " rows, " << size.in << " -> " << size.out << ", gap " << gap);
          const Tensor x = slice(cast(randn({size.rows, size.in + gap}, {.device = cuda()}), dtype), 1, 0, size.in);
          const Tensor bias = cast(randn({size.out}, {.device = cuda()}), dtype);
          const QuantizedWeight w = quantize(randn({size.out, size.in}, {.device = cuda()}), format);
          const Tensor wide = cast(x, DType::f32), weight = dequantize(w), added = cast(bias, DType::f32);
          const Tensor y = quantized_linear(x, w, bias), expected = linear(wide, weight, added);
          // y is rounded once to 16 bits; float32 sums are off by less than their number of terms times half a unit.
          const double rounding = dtype == DType::bf16 ? 0x1p-8 : 0x1p-11;
          const Tensor most =
              abs(expected) * rounding + linear(abs(wide), abs(weight), abs(added)) * (static_cast<double>(size.in + 2) * 0x1p-23) + 1e-7;
          CHECK(max(abs(cast(y, DType::f32) - expected) / most).item<float>() <= 1);
          CHECK(all(y == quantized_linear(x, w, bias)).item<bool>());
        }
}
