#include "ops/kernels/layer_norm.h"

#include <cmath>
#include <limits>

#include "catch.h"
#include "twin.h"

namespace tern {

using namespace cuda_test;

namespace {

const View none{};

/// Which operands there are, and where they lie.
struct Case {
  bool gamma = true, beta = true, centered = true;
  bool residual = false, bias = false;
  double p = 0;
  bool g_sum = false, dgamma = true, dbeta = true, dbias = false;
  int shift = 0;          ///< moves the rows off their alignment
  bool in_place = false;  ///< the sum is x, and dx is g
  double mean = 0;        ///< of x
  double outlier = 0;     ///< added to the first element of every row of x
  bool adds = false;      ///< dgamma, dbeta and dbias are added to

  bool summed() const { return residual || bias || p > 0; }
};

const Case everything{.residual = true, .bias = true, .p = 0.1, .g_sum = true, .dbias = true};

View one_of(const Twin& twin, bool cpu) { return cpu ? twin.host() : twin.device(); }
View if_present(const Twin& twin, bool present, bool cpu) { return present ? one_of(twin, cpu) : none; }

void check(DType dtype, std::int64_t rows, std::int64_t columns, const Case& c) {
  INFO(name(dtype) << " (" << rows << ", " << columns << "): gamma " << c.gamma << ", beta " << c.beta << ", centered " << c.centered
                   << ", residual " << c.residual << ", bias " << c.bias << ", p " << c.p << ", g_sum " << c.g_sum << ", dgamma "
                   << c.dgamma << ", dbeta " << c.dbeta << ", dbias " << c.dbias << ", shift " << c.shift << ", in place " << c.in_place
                   << ", mean " << c.mean << ", outlier " << c.outlier << ", adds " << c.adds);
  const DType wide = dtype == DType::f64 ? dtype : DType::f32;
  const Shape whole{rows, columns};
  const auto twin = [&](unsigned seed, double middle = 0) {
    Twin made(dtype, whole, contiguous_strides(whole), c.shift);
    made.randomize(seed, middle - 2, middle + 2).upload();
    return made;
  };
  const auto parameter = [&](unsigned seed, double low) {
    Twin made(dtype, {columns});
    made.randomize(seed, low, 2).upload();
    return made;
  };
  Twin x = twin(1, c.mean), residual = twin(2), sum = twin(3), y = twin(4);
  const Twin gamma = parameter(5, 0.5), beta = parameter(6, -2), bias = parameter(7, -2);
  for (std::int64_t r = 0; c.outlier != 0 && r < rows; ++r) x.set(r * columns, x.get(r * columns) + c.outlier);
  x.upload();
  Twin mean(wide, {rows}), rstd(wide, {rows});
  mean.upload();
  rstd.upload();
  const PhiloxState draws{0x123456789abcdef0u, 0xfffffff0u, nullptr};
  Twin& summed = c.in_place ? x : sum;

  const auto forward = [&](auto device, bool cpu) {
    kernels::LayerNormArguments a;
    a.x = one_of(x, cpu);
    a.gamma = if_present(gamma, c.gamma, cpu);
    a.beta = if_present(beta, c.beta, cpu);
    a.centered = c.centered;
    a.residual = if_present(residual, c.residual, cpu);
    a.bias = if_present(bias, c.bias, cpu);
    a.p = c.p;
    a.draws = draws;
    a.sum = if_present(summed, c.summed(), cpu);
    a.y = one_of(y, cpu);
    a.mean = if_present(mean, c.centered, cpu);
    a.rstd = one_of(rstd, cpu);
    kernels::layer_norm(device, a);
  };
  forward(Cpu{}, true);
  forward(Cuda{}, false);
  if (c.summed()) CHECK(summed.difference(tolerance(dtype)) == "");
  CHECK(y.difference((c.mean == 0 ? 1 : 10) * tolerance(dtype)) == "");  // 1e4 in float32 has steps of 1e-3
  CHECK(mean.difference(dtype == wide ? tolerance(wide) : tolerance(dtype)) == "");
  CHECK(rstd.difference(dtype == wide ? tolerance(wide) : tolerance(dtype)) == "");

  // The gradient of what the CPU made, so that only the gradient is compared.
  Twin s = twin(8, c.mean), g = twin(9), g_sum = twin(10), dx = twin(11), dbranch = twin(12);
  Twin dgamma = parameter(13, -2), dbeta = parameter(14, -2), dbias = parameter(15, -2);
  for (Twin* statistics : {&mean, &rstd}) statistics->upload();
  const auto n = static_cast<double>(columns);
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t start = r * columns;
    const double shift = c.centered ? s.get(start) : 0;
    double shifted = 0, squares = 0;
    for (std::int64_t i = 0; c.centered && i < columns; ++i) shifted += (s.get(start + i) - shift) / n;
    for (std::int64_t i = 0; i < columns; ++i) squares += std::pow(s.get(start + i) - shift - shifted, 2) / n;
    mean.set(r, shifted);
    rstd.set(r, 1 / std::sqrt(squares + 1e-5));
  }
  mean.upload();
  rstd.upload();
  Twin& into = c.in_place ? g : dx;
  const auto backward = [&](auto device, bool cpu) {
    kernels::LayerNormGradArguments a;
    a.s = one_of(s, cpu);
    a.gamma = if_present(gamma, c.gamma, cpu);
    a.mean = if_present(mean, c.centered, cpu);
    a.rstd = one_of(rstd, cpu);
    a.centered = c.centered;
    a.g = one_of(g, cpu);
    a.g_sum = if_present(g_sum, c.g_sum, cpu);
    a.p = c.p;
    a.draws = draws;
    a.dx = one_of(into, cpu);
    a.dbranch = if_present(dbranch, c.p > 0, cpu);
    a.dgamma = if_present(dgamma, c.dgamma, cpu);
    a.dbeta = if_present(dbeta, c.dbeta, cpu);
    a.dbias = if_present(dbias, c.dbias, cpu);
    if (c.adds) a.write = Write::accumulate;
    kernels::layer_norm_grad(device, a);
  };
  backward(Cpu{}, true);
  backward(Cuda{}, false);
  // A row of one or two elements has a gradient of almost nothing times an rstd of hundreds.
  const double near = (columns <= 2 ? 100 : c.mean == 0 ? 2 : 20) * tolerance(dtype);
  CHECK(into.difference(near) == "");
  if (c.p > 0) CHECK(dbranch.difference(near) == "");
  const double sums = near * (1 + std::sqrt(static_cast<double>(rows)) / 16);  // of numbers of either sign
  if (c.dgamma) CHECK(dgamma.difference(sums) == "");
  if (c.dbeta) CHECK(dbeta.difference(sums) == "");
  if (c.dbias) CHECK(dbias.difference(sums) == "");
}

}  // namespace

TEST_CASE("layer_norm and its gradient agree with the CPU for rows of all lengths", "[cuda]") {
  for (DType dtype : floats)
    for (std::int64_t columns : {1, 2, 7, 8, 31, 33, 40, 128, 256, 513, 768, 1025, 1600, 4097, 8192})
      for (std::int64_t rows : {0, 1, 3, 133}) {
        check(dtype, rows, columns, {});
        if (rows != 1) check(dtype, rows, columns, everything);
      }
}

TEST_CASE("layer_norm and its gradient agree with the CPU for long rows", "[cuda]") {
  for (DType dtype : {DType::f32, DType::bf16})
    for (std::int64_t columns : {16384, 16385, 20480, 65536, 100000, 300000}) {
      check(dtype, 5, columns, {});
      check(dtype, 3, columns, everything);
    }
  check(DType::f32, 70, 65536, {});  // more rows than clusters
  for (DType dtype : {DType::f32, DType::bf16})
    for (std::int64_t columns : {12290, 50257}) check(dtype, 70, columns, {});
}

TEST_CASE("layer_norm loses no digits to a row's first element", "[cuda]") {
  for (DType dtype : floats)
    for (std::int64_t columns : {40, 1025, 8192}) {
      check(dtype, 33, columns, {.outlier = 100});
      Case with_sum = everything;
      with_sum.outlier = 100;
      check(dtype, 33, columns, with_sum);
    }
  check(DType::f32, 3, 40000, {.outlier = 1000});
}

TEST_CASE("layer_norm and its gradient agree with the CPU for many rows", "[cuda]") {
  check(DType::f32, 70000, 7, everything);
  check(DType::bf16, 20000, 64, everything);
  check(DType::f16, 5120, 256, everything);
  check(DType::f32, 3000, 1024, everything);
}

TEST_CASE("layer_norm and its gradient agree with the CPU whichever operands there are", "[cuda]") {
  for (DType dtype : floats)
    for (std::int64_t columns : {40, 41, 264})
      for (unsigned bits = 0; bits < 1024; ++bits) {
        if (bits * 37 % 1024 >= (dtype == DType::f32 ? 256u : 64u)) continue;  // a sample in which every pair of choices occurs
        check(dtype, 35, columns,
              {.gamma = (bits & 1) != 0,
               .beta = (bits & 2) != 0,
               .centered = (bits & 4) != 0,
               .residual = (bits & 8) != 0,
               .bias = (bits & 16) != 0,
               .p = bits & 32 ? 0.3 : 0.0,
               .g_sum = (bits & 64) != 0,
               .dgamma = (bits & 128) != 0,
               .dbeta = (bits & 256) != 0,
               .dbias = (bits & 512) != 0,
               .adds = bits * 37 % 128 < 64});
      }
}

TEST_CASE("layer_norm and its gradient agree with the CPU in place and wherever rows begin", "[cuda]") {
  for (DType dtype : floats)
    for (std::int64_t columns : {77, 1024, 20480}) {
      Case c = everything;
      for (int shift : {0, 1, 2}) {
        c.shift = shift;
        for (bool in_place : {false, true}) {
          c.in_place = in_place;
          check(dtype, 37, columns, c);
        }
      }
      check(dtype, 37, columns, {.shift = 1});
      check(dtype, 300, columns, {.in_place = true});
    }
}

TEST_CASE("layer_norm keeps its digits where the mean is far greater than the deviation", "[cuda]") {
  for (DType dtype : {DType::f32, DType::f64})
    for (std::int64_t columns : {33, 40, 1023, 1024, 4096, 32768}) check(dtype, 20, columns, {.mean = 1e4});
}

TEST_CASE("The dropout of layer_norm keeps infinities, also those that it makes", "[cuda]") {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  for (DType dtype : floats)
    for (std::int64_t columns : {64, 61, 4096}) {
      INFO(name(dtype) << " columns " << columns);
      const DType wide = dtype == DType::f64 ? dtype : DType::f32;
      const double large = dtype == DType::f64 ? 1.7e308 : dtype == DType::f16 ? 65000 : 3.3e38;  // x / 0.9 is infinite
      const Shape whole{8, columns};
      const auto extremes = [&] {
        Twin made(dtype, whole);
        made.randomize(1);
        const double values[] = {infinity, large, 1, -infinity, -large};
        for (std::int64_t i = 0; i < made.host().numel(); i += 3) made.set(i, values[i / 3 % 5]);
        made.upload();
        return made;
      };
      const Twin x = extremes(), g_sum = extremes();
      Twin sum(dtype, whole), y(dtype, whole), s(dtype, whole), g(dtype, whole), dx(dtype, whole), dbranch(dtype, whole);
      Twin mean(wide, {8}), rstd(wide, {8});
      for (Twin* twin : {&sum, &y, &s, &g, &dx, &dbranch, &mean, &rstd}) twin->randomize(2, 0.5, 1).upload();
      const PhiloxState draws{0x123456789abcdef0u, 0xfffffff0u, nullptr};
      // First the gradient, since the forward overwrites the statistics.
      const auto run = [&](auto device, bool on_cpu) {
        kernels::LayerNormGradArguments grad;
        grad.s = one_of(s, on_cpu);
        grad.mean = one_of(mean, on_cpu);
        grad.rstd = one_of(rstd, on_cpu);
        grad.g = one_of(g, on_cpu);
        grad.g_sum = one_of(g_sum, on_cpu);
        grad.p = 0.1;
        grad.draws = draws;
        grad.dx = one_of(dx, on_cpu);
        grad.dbranch = one_of(dbranch, on_cpu);
        kernels::layer_norm_grad(device, grad);
        kernels::LayerNormArguments norm;
        norm.x = one_of(x, on_cpu);
        norm.p = 0.1;
        norm.draws = draws;
        norm.sum = one_of(sum, on_cpu);
        norm.y = one_of(y, on_cpu);
        norm.mean = one_of(mean, on_cpu);
        norm.rstd = one_of(rstd, on_cpu);
        kernels::layer_norm(device, norm);
      };
      run(Cpu{}, true);
      run(Cuda{}, false);
      for (std::int64_t i = 0; i < x.host().numel(); ++i) REQUIRE_FALSE((std::isnan(sum.get(i)) || std::isnan(dbranch.get(i))));
      CHECK(sum.difference(tolerance(dtype)) == "");
      CHECK(dx.difference(4 * tolerance(dtype)) == "");
      CHECK(dbranch.difference(4 * tolerance(dtype)) == "");
    }
}

TEST_CASE("the gradient of layer_norm has the same bits every time", "[cuda]") {
  for (std::int64_t columns : {256, 1025, 32768}) {
    const Shape whole{3000, columns};
    Twin s(DType::f32, whole), g(DType::f32, whole), dx(DType::f32, whole), rstd(DType::f32, {3000}), dgamma(DType::f32, {columns});
    s.randomize(1).upload();
    g.randomize(2).upload();
    rstd.randomize(3, 0.5, 2).upload();
    dx.upload();
    dgamma.upload();
    kernels::LayerNormGradArguments a;
    a.s = s.device();
    a.g = g.device();
    a.rstd = rstd.device();
    a.centered = false;
    a.dx = dx.device();
    a.dgamma = dgamma.device();
    kernels::layer_norm_grad(Cuda{}, a);
    const auto first = dgamma.download();
    kernels::layer_norm_grad(Cuda{}, a);
    CHECK(dgamma.download() == first);
  }
}

}  // namespace tern
