// The CPU's fused softmax and norms over plain Views against float64: sizes round the vector and chunk lengths, every combination of
// operands, the dtypes, in place, every byte round the outputs, and one thread against two.
#include <limits>
#include <optional>

#include "kernel_array.h"
#include "ops/kernels/attention_softmax.h"
#include "ops/kernels/layer_norm.h"
#include "ops/kernels/random.h"

using namespace tern;
using namespace tern::kernels;
using namespace tern::test;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity(), not_a_number = std::numeric_limits<double>::quiet_NaN();

DType wide(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }
std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

/// Normally distributed, so that rows have a unit scale.
Array& normal(Array& x, double mean, double deviation, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> draw(mean, deviation);
  return x.fill([&](std::int64_t) { return draw(engine); });
}

/// The largest distance from the reference as a part of the largest reference, and NaN where one of the two alone is NaN.
double error(const Array& y, const std::vector<double>& expected) {
  double worst = 0, scale = 0;
  for (std::int64_t i = 0; i < y.size(); ++i) {
    const double value = y[i], reference = expected[index(i)];
    if (std::isnan(reference) && std::isnan(value)) continue;
    if (std::isnan(reference) || std::isnan(value)) return not_a_number;
    worst = std::max(worst, std::abs(value - reference));
    scale = std::max(scale, std::abs(reference));
  }
  return worst == 0 ? 0 : worst / scale;
}

void check(const Array& y, const std::vector<double>& expected, double slack = 1) {
  tern::test::check(y, [&](std::int64_t i) { return expected[index(i)]; }, slack);
}

struct Mask {
  std::optional<Array> padding, prefix;
  bool causal = false;
  std::optional<Array> key_lengths = {};
  std::int64_t window = 0;

  AttentionMask view() const {
    const auto view_of = [](const std::optional<Array>& x) { return x ? x->view : View{}; };
    return {view_of(padding), view_of(prefix), view_of(key_lengths), window, causal};
  }
  bool sees(const Shape& shape, std::int64_t row, std::int64_t column) const {
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
      if (mask.sees(shape, row, c)) top = std::max(top, score(c));
    for (std::int64_t c = 0; c < S; ++c)
      if (mask.sees(shape, row, c)) sum += std::isnan(score(c)) ? not_a_number : top == -infinity ? 0 : std::exp(score(c) - top);
    for (std::int64_t c = 0; c < S; ++c)
      result[index(row * S + c)] = !mask.sees(shape, row, c) || sum == 0 ? 0
                                   : std::isnan(sum)                     ? not_a_number
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
            if (!mask.sees(shape, i / S, i % S) && (y[i] != 0 || std::signbit(y[i]))) FAIL("a hidden column is not 0");

          // Whatever stands in hidden columns, the others do not change.
          Array wild = x;
          const double values[] = {not_a_number, infinity, -infinity, 1e30};
          for (std::int64_t i = 0; i < wild.size(); ++i)
            if (!mask.sees(shape, i / S, i % S)) wild.set(i, values[i % 4]);
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

namespace {

/// One case of a norm, its operands, its results and their float64 references. The references of the gradients start from the
/// kernel's own sum, mean and rstd, as the backward kernel does.
struct Norm {
  struct Options {
    DType dtype = DType::f32;
    bool centered = true, gamma = true, beta = true, residual = false, bias = false, g_sum = false;
    double p = 0;
    double mean = 0, deviation = 1, eps = 1e-5;
  };

  Norm(std::int64_t rows, std::int64_t columns, const Options& options)
      : o(options),
        R(rows),
        N(columns),
        x({R, N}, o.dtype),
        residual({R, N}, o.dtype),
        g({R, N}, o.dtype),
        g_sum({R, N}, o.dtype),
        gamma({N}, o.dtype),
        beta({N}, o.dtype),
        bias({N}, o.dtype),
        sum({R, N}, o.dtype),
        y({R, N}, o.dtype),
        dx({R, N}, o.dtype),
        dbranch({R, N}, o.dtype),
        dgamma({N}, o.dtype),
        dbeta({N}, o.dtype),
        dbias({N}, o.dtype),
        mean({R}, wide(o.dtype)),
        rstd({R}, wide(o.dtype)) {
    normal(x, o.mean, o.deviation, 1);
    normal(residual, o.mean, o.deviation, 2);
    normal(g, 0, 1, 3);
    normal(g_sum, 0, 1, 4);
    gamma.random(0.5, 1.5);
    beta.random(-1, 1);
    bias.random(-1, 1);
  }

  bool sums() const { return o.residual || o.bias || o.p > 0; }
  static View maybe(bool present, const Array& a) { return present ? a.view : View{}; }
  PhiloxState draws() const { return {0x123456789abcdefull, 1000, &base}; }
  bool dropped(std::int64_t i) const {
    return double(unit_float(philox(draws().seed, draws().offset + base + std::uint64_t(i / 4)).words[i % 4])) < o.p;
  }
  const Array& s() const { return sums() ? sum : x; }

  LayerNormArguments forward() {
    return {x.view,
            maybe(o.gamma, gamma),
            maybe(o.beta, beta),
            o.eps,
            o.centered,
            maybe(o.residual, residual),
            maybe(o.bias, bias),
            o.p,
            draws(),
            maybe(sums(), sum),
            y.view,
            maybe(o.centered, mean),
            rstd.view};
  }
  LayerNormGradArguments backward() {
    return {s().view,
            maybe(o.gamma, gamma),
            maybe(o.centered, mean),
            rstd.view,
            o.centered,
            g.view,
            maybe(o.g_sum, g_sum),
            o.p,
            draws(),
            dx.view,
            maybe(o.p > 0, dbranch),
            maybe(o.gamma, dgamma),
            maybe(o.beta, dbeta),
            maybe(o.bias, dbias)};
  }
  std::vector<Array*> outputs() { return {&sum, &y, &mean, &rstd, &dx, &dbranch, &dgamma, &dbeta, &dbias}; }

  /// Runs both kernels with one thread and with two.
  void run() {
    set_num_threads(1);
    Norm other = *this;
    layer_norm(Cpu{}, forward());
    layer_norm_grad(Cpu{}, backward());
    set_num_threads(2);
    layer_norm(Cpu{}, other.forward());
    layer_norm_grad(Cpu{}, other.backward());
    const auto mine = outputs(), theirs = other.outputs();
    for (std::size_t k = 0; k < mine.size(); ++k) {
      CAPTURE(k);
      REQUIRE(mine[k]->same_bytes(*theirs[k]));
      REQUIRE(mine[k]->guards_hold());
    }
  }

  std::vector<double> expected_sum() const {
    std::vector<double> result;
    for (std::int64_t i = 0; i < R * N; ++i) {
      const double branch = x[i] + (o.bias ? bias[i % N] : 0);
      result.push_back((o.residual ? residual[i] : 0) + (o.p == 0 ? branch : dropped(i) ? 0 : branch / (1 - o.p)));
    }
    return result;
  }
  /// y, and the statistics as the kernel keeps them.
  void expected(std::vector<double>& ys, std::vector<double>& means, std::vector<double>& rstds) const {
    for (std::int64_t r = 0; r < R; ++r) {
      double average = 0, square = 0;
      for (std::int64_t c = 0; c < N && o.centered; ++c) average += s()[r * N + c] / double(N);
      for (std::int64_t c = 0; c < N; ++c) square += std::pow(s()[r * N + c] - average, 2) / double(N);
      means.push_back(average - s()[r * N]);
      rstds.push_back(1 / std::sqrt(square + o.eps));
      for (std::int64_t c = 0; c < N; ++c)
        ys.push_back((s()[r * N + c] - average) * rstds.back() * (o.gamma ? gamma[c] : 1) + (o.beta ? beta[c] : 0));
    }
  }
  struct Grads {
    std::vector<double> dx, dbranch, dgamma, dbeta, dbias;
  };
  Grads expected_grads() const {
    Grads e;
    for (auto* v : {&e.dgamma, &e.dbeta, &e.dbias}) v->assign(index(N), 0);
    for (std::int64_t r = 0; r < R; ++r) {
      const auto u = [&](std::int64_t c) { return (s()[r * N + c] - (o.centered ? s()[r * N] + mean[r] : 0)) * rstd[r]; };
      const auto h = [&](std::int64_t c) { return g[r * N + c] * (o.gamma ? gamma[c] : 1); };
      double h_mean = 0, hu_mean = 0;
      for (std::int64_t c = 0; c < N; ++c) h_mean += o.centered ? h(c) / double(N) : 0, hu_mean += h(c) * u(c) / double(N);
      for (std::int64_t c = 0; c < N; ++c) {
        const double d = rstd[r] * (h(c) - h_mean - u(c) * hu_mean) + (o.g_sum ? g_sum[r * N + c] : 0);
        e.dx.push_back(d);
        e.dbranch.push_back(o.p == 0 ? d : dropped(r * N + c) ? 0 : d / (1 - o.p));
        e.dgamma[index(c)] += g[r * N + c] * u(c);
        e.dbeta[index(c)] += g[r * N + c];
        e.dbias[index(c)] += e.dbranch.back();
      }
    }
    return e;
  }

  /// Compares everything; `slack` is of the tolerance of the dtype.
  void check(double slack = 4) const {
    if (sums()) ::check(sum, expected_sum());
    std::vector<double> ys, means, rstds;
    expected(ys, means, rstds);
    ::check(y, ys, slack);
    // The statistics are f32 for the 16-bit types too.
    if (o.centered) ::check(mean, means, slack);
    ::check(rstd, rstds, slack);
    const Grads e = expected_grads();
    const double columns_slack = slack * std::max(1.0, std::sqrt(double(R)) / 4);
    ::check(dx, e.dx, slack);
    if (o.p > 0) ::check(dbranch, e.dbranch, slack);
    if (o.gamma) ::check(dgamma, e.dgamma, columns_slack);
    if (o.beta) ::check(dbeta, e.dbeta, columns_slack);
    if (o.bias) ::check(dbias, e.dbias, columns_slack);
  }

  Options o;
  std::int64_t R, N;
  std::uint64_t base = 5;
  Array x, residual, g, g_sum, gamma, beta, bias, sum, y, dx, dbranch, dgamma, dbeta, dbias, mean, rstd;
};

}  // namespace

TEST_CASE("layer_norm and its gradient with every combination of operands") {
  for (DType dtype : floats)
    for (bool centered : {true, false})
      for (int bits = 0; bits < 32; ++bits)
        for (double p : {0.0, 0.3}) {
          const auto bit = [&](int k) { return (bits >> k & 1) != 0; };
          Norm norm(7, 33, {dtype, centered, bit(0), bit(1), bit(2), bit(3), bit(4), p});
          CAPTURE(name(dtype), centered, bits, p);
          norm.run();
          norm.check();
        }
}

TEST_CASE("layer_norm and its gradient of all sizes") {
  for (auto [R, N] : std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 8},
                                                                        {1, 1},
                                                                        {5, 1},
                                                                        {300, 1},
                                                                        {3, 2},
                                                                        {31, 17},
                                                                        {1, 31},
                                                                        {2, 64},
                                                                        {700, 33},
                                                                        {65, 255},
                                                                        {9, 1025},
                                                                        {260, 256},
                                                                        {33, 2049},
                                                                        {3, 5000},
                                                                        {2100, 17}})
    for (DType dtype : floats)
      for (bool centered : {true, false})
        for (bool full : {false, true}) {
          if (R * N > 20000 && dtype != DType::f32 && dtype != DType::bf16) continue;
          Norm norm(R, N, {dtype, centered, true, true, full, full, full, full ? 0.25 : 0.0});
          CAPTURE(R, N, name(dtype), centered, full);
          norm.run();
          // A row of one element has no deviation, so its rstd is large, and so are the gradient's terms that cancel.
          norm.check(N == 1 ? 400 : 4);
          if (R == 0)
            for (const Array* output : {&norm.dgamma, &norm.dbeta})
              for (std::int64_t i = 0; i < N; ++i) CHECK((*output)[i] == 0);
        }
}

TEST_CASE("layer_norm's gradients of parameters add to what is there") {
  for (DType dtype : floats) {
    Norm norm(65, 255, {.dtype = dtype, .residual = true, .bias = true, .p = 0.25});
    norm.run();
    const Norm once = norm;
    LayerNormGradArguments arguments = norm.backward();
    arguments.write = Write::accumulate;
    layer_norm_grad(Cpu{}, arguments);
    const auto check_twice = [&](const Array& sums, const Array& before) {
      for (std::int64_t i = 0; i < 255; ++i) CHECK(sums[i] == 2 * before[i]);
    };
    if (size_of(dtype) == 2) continue;  // where what was there had been rounded
    check_twice(norm.dgamma, once.dgamma);
    check_twice(norm.dbeta, once.dbeta);
    check_twice(norm.dbias, once.dbias);
    CHECK(norm.dx.same_bytes(once.dx));
  }
}

TEST_CASE("layer_norm writes over its operands") {
  for (DType dtype : floats)
    for (double p : {0.0, 0.3}) {
      const Norm::Options options{dtype, true, true, true, true, true, true, p};
      Norm norm(40, 1100, options);
      norm.run();
      Norm over_x(40, 1100, options), over_residual(40, 1100, options), over_g(40, 1100, options), over_g_sum(40, 1100, options);
      auto arguments = over_x.forward();
      arguments.sum = arguments.x;
      layer_norm(Cpu{}, arguments);
      CHECK((over_x.y.same_bytes(norm.y) && over_x.x.same_bytes(norm.sum)));
      arguments = over_residual.forward();
      arguments.sum = arguments.residual;
      layer_norm(Cpu{}, arguments);
      CHECK((over_residual.y.same_bytes(norm.y) && over_residual.residual.same_bytes(norm.sum)));
      for (bool into_g : {false, true}) {
        Norm over = norm;
        auto backward = over.backward();
        backward.dx = into_g ? backward.g : backward.g_sum;
        layer_norm_grad(Cpu{}, backward);
        CHECK((into_g ? over.g : over.g_sum).same_bytes(norm.dx));
        CHECK((over.dgamma.same_bytes(norm.dgamma) && over.dbeta.same_bytes(norm.dbeta) && over.dbias.same_bytes(norm.dbias)));
        CHECK(over.dbranch.same_bytes(norm.dbranch));
      }
    }
}

TEST_CASE("layer_norm drops as dropout does") {
  for (std::int64_t N : {32, 33, 2050})
    for (double p : {0.1, 1.0}) {
      Norm norm(5, N, {DType::f32, true, false, false, false, false, false, p});
      Array y({5, N});
      norm.run();
      dropout(Cpu{}, norm.x.view, y.view, p, norm.draws());
      CHECK(norm.sum.same_bytes(y));
    }
}

TEST_CASE("layer_norm of rows far from zero") {
  for (std::int64_t N : {31, 256, 1024, 8192, 65536})
    for (bool far : {false, true}) {
      Norm norm(6, N, {DType::f32, true, true, true, false, false, false, 0, far ? 1e4 : 0, 1});
      norm.run();
      std::vector<double> ys, means, rstds;
      norm.expected(ys, means, rstds);
      const double bound = far ? 1e-4 : 2e-6;
      CAPTURE(N, far, error(norm.y, ys));
      CHECK(error(norm.y, ys) < bound);
      CHECK(error(norm.rstd, rstds) < bound);
      // The reference of the gradients with exact statistics.
      Norm exact(6, N, {DType::f64, true, true, true, false, false, false, 0, 0, 1});
      for (auto [to, from] : {std::pair{&exact.x, &norm.x}, {&exact.g, &norm.g}, {&exact.gamma, &norm.gamma}, {&exact.beta, &norm.beta}})
        to->fill([&, from = from](std::int64_t i) { return (*from)[i]; });
      exact.run();
      CHECK(error(norm.dx, exact.dx.values()) < bound);
      CHECK(error(norm.dgamma, exact.dgamma.values()) < bound);
      CHECK(error(norm.dbeta, exact.dbeta.values()) < bound);
    }
}

TEST_CASE("layer_norm keeps NaN to its row") {
  Norm norm(3, 40, {});
  norm.x.set(40 + 7, not_a_number);
  layer_norm(Cpu{}, norm.forward());
  for (std::int64_t i = 0; i < 120; ++i) CHECK(std::isnan(norm.y[i]) == (i / 40 == 1));
}
