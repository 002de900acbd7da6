// The CPU's fused softmax of attention scores over plain Views against float64: sizes round the vector and chunk lengths, every mask, the
// dtypes, in place, every byte round the outputs, and one thread against two.
#include <limits>
#include <optional>

#include "kernel_array.h"
#include "ops/kernels/attention_softmax.h"

using namespace tern;
using namespace tern::kernels;
using namespace tern::test;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity(), not_a_number = std::numeric_limits<double>::quiet_NaN();

struct Mask {
  std::optional<Array> padding, prefix;
  bool causal = false;
  std::optional<Array> key_lengths = {};
  std::int64_t window = 0;

  AttentionMask view() const {
    const auto view_of = [](const std::optional<Array>& x) { return x ? x->view : View{}; };
    return {view_of(padding), view_of(prefix), view_of(key_lengths), window, causal};
  }
  bool is_visible(const Shape& shape, std::int64_t row, std::int64_t column) const {
    const std::int64_t T = shape[shape.size() - 2], S = shape[shape.size() - 1];
    const std::int64_t batch = shape.size() > 2 ? row / (numel(shape) / S / shape[0]) : 0;
    if (padding && !((*padding)[batch * S + column] > -1e4)) return false;
    if (key_lengths && double(column) >= (*key_lengths)[batch]) return false;
    if (window > 0 && column <= row % T + S - T - window) return false;
    return !causal || column <= row % T + S - T || (prefix && double(column) < (*prefix)[batch]);
  }
};

std::vector<double> softmax(const Array& x, const Mask& mask) {
  const Shape& shape = x.view.shape;
  const std::int64_t S = shape[shape.size() - 1], rows = S == 0 ? 0 : x.size() / S;
  std::vector<double> result(index(x.size()));
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t batch = shape.size() > 2 ? row / (rows / shape[0]) : 0;
    const auto score = [&](std::int64_t c) { return x[row * S + c] + (mask.padding ? (*mask.padding)[batch * S + c] : 0); };
    double top = -infinity, sum = 0;
    for (std::int64_t c = 0; c < S; ++c)
      if (mask.is_visible(shape, row, c)) top = std::max(top, score(c));
    for (std::int64_t c = 0; c < S; ++c)
      if (mask.is_visible(shape, row, c)) sum += std::isnan(score(c)) ? not_a_number : top == -infinity ? 0 : std::exp(score(c) - top);
    for (std::int64_t c = 0; c < S; ++c)
      result[index(row * S + c)] = !mask.is_visible(shape, row, c) || sum == 0 ? 0
                                   : std::isnan(sum)                           ? not_a_number
                                                                               : std::exp(score(c) - top) / sum;
  }
  return result;
}

std::vector<double> softmax_grad(const Array& y, const Array& g, std::int64_t S) {
  std::vector<double> result(index(y.size()));
  for (std::int64_t first = 0; first < y.size(); first += S) {
    double sum = 0;
    for (std::int64_t i = first; i < first + S; ++i) sum += y[i] * g[i];
    for (std::int64_t i = first; i < first + S; ++i) result[index(i)] = y[i] * (g[i] - sum);
  }
  return result;
}

/// Padding of 0, of small numbers, and hidden keys of each kind; the last batch is hidden altogether.
Array make_padding(std::int64_t B, std::int64_t S, DType dtype) {
  Array padding({B, S}, dtype);
  const double kinds[] = {0, -infinity, -1e30, 0.5, -1e4, -2, 0};
  return padding.fill([&](std::int64_t i) { return B > 1 && i / S == B - 1 ? -infinity : kinds[(i + i / S) % 7]; });
}

}  // namespace

TEST_CASE("attention_softmax") {
  const std::vector<Shape> shapes = {{0, 3},  {3, 0},     {2, 0, 3, 5},   {1, 1},        {3, 3, 1},       {4, 31},         {2, 33, 31},
                                     {5, 17}, {3, 9, 33}, {3, 2, 40, 40}, {3, 2, 5, 64}, {2, 3, 7, 1025}, {3, 2, 129, 65}, {3, 1, 2, 3000}};
  for (const Shape& shape : shapes)
    for (DType dtype : floats)
      for (bool padded : {false, true})
        for (int causality : {0, 1, 2, 3}) {
          const std::int64_t S = shape[shape.size() - 1], B = shape.size() > 2 ? shape[0] : 1;
          Array x(shape, dtype), y(shape, dtype);
          x.random(-4, 4);
          Mask mask{{}, {}, causality > 0};
          if (padded) mask.padding.emplace(make_padding(B, S, wide(dtype)));
          if (causality == 2) {
            mask.prefix.emplace(Shape{B}, DType::i64);
            mask.prefix->fill([&](std::int64_t b) { return b == 0 ? double(S / 2) : b == 1 ? double(S + 9) : -3.0; });
          }
          if (causality == 3) {
            mask.window = S / 3 + 1;
            mask.key_lengths.emplace(Shape{B}, DType::i64);
            mask.key_lengths->fill([&](std::int64_t b) { return b == 0 ? double(S * 2 / 3) : b == 1 ? double(S + 9) : -3.0; });
          }
          CAPTURE(shape.size(), S, name(dtype), padded, causality);
          const auto expected = softmax(x, mask);
          run(y, [&](const View& v) { attention_softmax(Cpu{}, x.view, mask.view(), v); });
          check(y, expected);
          for (std::int64_t i = 0; i < y.size(); ++i)
            if (!mask.is_visible(shape, i / S, i % S) && (y[i] != 0 || std::signbit(y[i]))) FAIL("a hidden column is not 0");

          // Whatever stands in hidden columns, the others do not change.
          Array wild = x;
          const double values[] = {not_a_number, infinity, -infinity, 1e30};
          for (std::int64_t i = 0; i < wild.size(); ++i)
            if (!mask.is_visible(shape, i / S, i % S)) wild.set(i, values[i % 4]);
          run(wild, [&](const View& v) { attention_softmax(Cpu{}, v, mask.view(), v); });
          CHECK(wild.same_bytes(y));
        }
}

TEST_CASE("attention_softmax of infinite scores and NaN") {
  for (DType dtype : floats)
    for (std::int64_t S : {1, 7, 33, 1500}) {
      // NaN, NaN where it is hidden, only -inf, one -inf, +inf, and only NaN.
      Array x({6, S}, dtype), y({6, S}, dtype);
      x.random(-4, 4);
      Mask mask;
      mask.padding.emplace(Shape{1, S}, wide(dtype));
      mask.padding->fill([](std::int64_t i) { return i == 3 ? -1e30 : 0.0; });
      x.set(S - 1, not_a_number);
      if (S > 3) x.set(S + 3, not_a_number);
      for (std::int64_t i = 0; i < S; ++i) x.set(2 * S + i, -infinity), x.set(5 * S + i, not_a_number);
      const std::int64_t lone = std::max<std::int64_t>(S - 2, 0);
      x.set(3 * S + lone, -infinity);
      x.set(4 * S + lone, infinity);
      run(y, [&](const View& v) { attention_softmax(Cpu{}, x.view, mask.view(), v); });
      for (std::int64_t i = 0; i < S; ++i) {
        const bool hidden = i == 3;
        CAPTURE(name(dtype), S, i);
        REQUIRE(std::isnan(y[i]) != hidden);
        REQUIRE(std::isfinite(y[S + i]));
        REQUIRE(y[2 * S + i] == 0);
        REQUIRE(std::isnan(y[4 * S + i]) != hidden);
        REQUIRE(std::isnan(y[5 * S + i]) != hidden);
        if (hidden)
          for (int row = 0; row < 6; ++row) REQUIRE(y[row * S + i] == 0);
      }
      double sum = 0;
      for (std::int64_t i = 0; i < S; ++i) sum += y[3 * S + i];
      CHECK(sum == Approx(S == 1 ? 0 : 1).margin(0.01));
      CHECK(y[3 * S + lone] == 0);
    }
}

TEST_CASE("attention_softmax of long rows is as exact as of short ones") {
  for (std::int64_t S : {1025, 20001, 65536, 70001})
    for (double scale : {0.01, 1.0, 4.0}) {
      Array x({1, 2, 2, S}), y({1, 2, 2, S}), g({1, 2, 2, S}), dx({1, 2, 2, S});
      normal(x, 0, scale, 1);
      run(y, [&](const View& v) { attention_softmax(Cpu{}, x.view, {}, v); });
      const auto expected = softmax(x, {});
      for (std::int64_t i = 0; i < y.size(); ++i)
        // The distances from the maximum are rounded, to parts of their size.
        if (std::abs(y[i] - expected[index(i)]) > std::max(1.0, scale) * 2e-6 * expected[index(i)]) FAIL("off at " << i << " of " << S);
      normal(g, 0.5, 1, 2);
      run(dx, [&](const View& v) { attention_softmax_grad(Cpu{}, y.view, g.view, v); });
      CHECK(error(dx, softmax_grad(y, g, S)) < 2e-6);
    }
}

TEST_CASE("attention_softmax_grad") {
  const std::vector<Shape> shapes = {{0, 3},  {3, 0},     {1, 1},         {3, 3, 1},      {4, 31},
                                     {5, 17}, {3, 9, 33}, {3, 2, 40, 40}, {2, 3, 64, 65}, {2, 3, 7, 1025}};
  for (const Shape& shape : shapes)
    for (DType dtype : floats) {
      const std::int64_t S = shape[shape.size() - 1];
      Array x(shape, dtype), y(shape, dtype), g(shape, dtype), dx(shape, dtype);
      x.random(-2, 2);
      g.random(-1, 1, 2);
      attention_softmax(Cpu{}, x.view, {}, y.view);
      const auto expected = softmax_grad(y, g, S);
      run(dx, [&](const View& v) { attention_softmax_grad(Cpu{}, y.view, g.view, v); });
      check(dx, expected);
      Array over_y = y, over_g = g;
      run(over_y, [&](const View& v) { attention_softmax_grad(Cpu{}, v, g.view, v); });
      run(over_g, [&](const View& v) { attention_softmax_grad(Cpu{}, y.view, v, v); });
      for (std::int64_t i = 0; i < dx.size(); ++i)
        if (over_y[i] != dx[i] || over_g[i] != dx[i]) FAIL("in place differs at " << i);
    }
}
