// The CPU's fused norms over plain Views against float64: sizes round the vector and chunk lengths, every combination of operands, the
// dtypes, in place, every byte round the outputs, and one thread against two.
#include "dropout_reference.h"
#include "kernel_array.h"
#include "ops/kernels/layer_norm.h"
#include "ops/kernels/random.h"

using namespace tern;
using namespace tern::kernels;
using namespace tern::test;

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
  bool dropped(std::int64_t i) const { return is_dropped(draws().seed, draws().offset + base, std::uint64_t(i), o.p); }
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
  norm.x.set(40 + 7, std::numeric_limits<double>::quiet_NaN());
  layer_norm(Cpu{}, norm.forward());
  for (std::int64_t i = 0; i < 120; ++i) CHECK(std::isnan(norm.y[i]) == (i / 40 == 1));
}
