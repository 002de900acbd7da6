#include "ops/kernels/loss.h"

#include <cmath>

#include "catch.h"
#include "ops/kernels/reduce.h"
#include "twin.h"

namespace tern {

using namespace cuda_test;

namespace {

constexpr std::int64_t ignored = -100;

struct Options {
  double smoothing = 0;
  bool weighted = false;
  std::int64_t row_stride = 0;  ///< 0: contiguous
  int shift = 0;
  bool one_gradient = false;
  bool in_place = false;
};

void check(DType dtype, std::int64_t rows, std::int64_t columns, const Options& options) {
  INFO(name(dtype) << " (" << rows << ", " << columns << "), smoothing " << options.smoothing << ", shift " << options.shift);
  const DType wide = dtype == DType::f64 ? dtype : DType::f32;
  Twin x(dtype, {rows, columns}, {options.row_stride ? options.row_stride : columns, 1}, options.shift);
  x.randomize(1, -4, 4).upload();
  // The logsumexp in the losses' dtype, from the CPU, so that only the loss is compared.
  Twin lse(wide, {rows}), targets(DType::i64, {rows}), weights(wide, {rows}), losses(wide, {rows}), dx(dtype, {rows, columns});
  Twin g(wide, {rows}, {options.one_gradient ? 0 : 1});
  for (std::int64_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (std::int64_t c = 0; c < columns; ++c) sum += std::exp(x.get(r * columns + c));
    lse.set(r, std::log(sum));
  }
  targets.randomize(2, 0, static_cast<double>(columns));
  for (std::int64_t r = 2; r < rows; r += 5) targets.set(r, ignored);
  weights.randomize(3, 0, 2).upload();
  g.randomize(4).upload();
  lse.upload();
  targets.upload();
  losses.upload();
  dx.upload();
  const View none{};
  kernels::cross_entropy(Cpu{}, x.host(), lse.host(), targets.host(), options.weighted ? weights.host() : none, losses.host(), options.smoothing, ignored);
  kernels::cross_entropy(Cuda{}, x.device(), lse.device(), targets.device(), options.weighted ? weights.device() : none, losses.device(),
                         options.smoothing, ignored);
  CHECK(losses.difference(2 * tolerance(wide)) == "");
  Twin& to = options.in_place ? x : dx;
  kernels::cross_entropy_grad(Cpu{}, x.host(), lse.host(), targets.host(), options.weighted ? weights.host() : none, g.host(), to.host(),
                              options.smoothing, ignored);
  kernels::cross_entropy_grad(Cuda{}, x.device(), lse.device(), targets.device(), options.weighted ? weights.device() : none, g.device(), to.device(),
                              options.smoothing, ignored);
  CHECK(to.difference(tolerance(dtype)) == "");
}

}  // namespace

TEST_CASE("cross-entropy and its gradient agree with the CPU", "[cuda]") {
  for (DType dtype : floats)
    for (double smoothing : {0.0, 0.1}) {
      for (std::int64_t rows : {0, 1, 31, 33})
        for (std::int64_t columns : {1, 31, 33, 1025}) check(dtype, rows, columns, {smoothing, false, 0, 0, false, false});
      check(dtype, 40, 10000, {smoothing, true, 0, 0, false, false});
      check(dtype, 40, 5027, {smoothing, true, 0, 1, true, false});   // rows at every alignment
      check(dtype, 40, 100, {smoothing, true, 133, 1, false, false});  // x and dx at different ones
      check(dtype, 40, 1200, {smoothing, false, 0, 0, false, true});
      check(dtype, 3, 50257, {smoothing, true, 0, 0, false, false});
    }
  check(DType::f32, 70000, 7, {0.1, true, 0, 0, false, false});
}

TEST_CASE("on the GPU a target outside the range gives NaN", "[cuda]") {
  Twin x(DType::f32, {3, 5}), lse(DType::f32, {3}), targets(DType::i64, {3}), losses(DType::f32, {3});
  x.randomize(1).upload();
  lse.set(0, 2).set(1, 2).set(2, 2).upload();
  targets.set(0, 5).set(1, -1).set(2, 4).upload();
  losses.upload();
  losses.set(0, NAN).set(1, NAN).set(2, 2 - x.get(14));
  kernels::cross_entropy(Cuda{}, x.device(), lse.device(), targets.device(), View{}, losses.device(), 0, ignored);
  CHECK(losses.difference(1e-6) == "");
}

}  // namespace tern
