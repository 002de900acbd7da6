#include <cmath>

#include "catch.h"
#include "ops/kernels/loss.h"
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
  bool together = false;  ///< loss and gradient by one kernel
};

void check(DType dtype, std::int64_t rows, std::int64_t columns, const Options& options) {
  INFO(name(dtype) << " (" << rows << ", " << columns << "), smoothing " << options.smoothing << ", shift " << options.shift);
  const DType wide = dtype == DType::f64 ? dtype : DType::f32;
  Twin x(dtype, {rows, columns}, {options.row_stride ? options.row_stride : columns, 1}, options.shift);
  x.randomize(1, -4, 4).upload();
  Twin lse(wide, {rows}), targets(DType::i64, {rows}), weights(wide, {rows}), losses(wide, {rows}), dx(dtype, {rows, columns});
  Twin g(wide, {rows}, {options.one_gradient ? 0 : 1});
  targets.randomize(2, 0, static_cast<double>(columns));
  for (std::int64_t r = 2; r < rows; r += 5) targets.set(r, ignored);
  weights.randomize(3, 0, 2).upload();
  g.randomize(4).upload();
  lse.upload();
  targets.upload();
  losses.upload();
  dx.upload();
  const View none{};
  const kernels::TokenTargets on_host{targets.host(), options.weighted ? weights.host() : none, ignored, options.smoothing};
  const kernels::TokenTargets on_device{targets.device(), options.weighted ? weights.device() : none, ignored, options.smoothing};
  kernels::cross_entropy(Cpu{}, x.host(), on_host, lse.host(), losses.host());
  kernels::cross_entropy(Cuda{}, x.device(), on_device, lse.device(), losses.device());
  CHECK(losses.difference(2 * tolerance(wide)) == "");
  CHECK(lse.difference(2 * tolerance(wide)) == "");
  Twin value(wide, {}), total(wide, {});
  value.upload();
  total.upload();
  for (bool mean : {false, true}) {
    kernels::reduce_losses(Cpu{}, losses.host(), on_host, mean, value.host(), total.host());
    kernels::reduce_losses(Cuda{}, losses.device(), on_device, mean, value.device(), total.device());
    CHECK(value.difference(4 * tolerance(wide)) == "");
    CHECK(total.difference(4 * tolerance(wide)) == "");
  }
  Twin& to = options.in_place ? x : dx;
  if (options.together) {
    kernels::cross_entropy_with_grad(Cpu{}, x.host(), on_host, {options.one_gradient ? none : g.host(), none}, losses.host());
    kernels::cross_entropy_with_grad(Cuda{}, x.device(), on_device, {options.one_gradient ? none : g.device(), none}, losses.device());
    CHECK(losses.difference(2 * tolerance(wide)) == "");
    CHECK(x.difference(tolerance(dtype)) == "");
  } else {
    kernels::cross_entropy_grad(Cpu{}, x.host(), lse.host(), on_host, {g.host(), total.host()}, to.host());
    kernels::cross_entropy_grad(Cuda{}, x.device(), lse.device(), on_device, {g.device(), total.device()}, to.device());
    CHECK(to.difference(tolerance(dtype)) == "");
  }
}

}  // namespace

TEST_CASE("cross-entropy and its gradient agree with the CPU", "[cuda]") {
  for (DType dtype : floats)
    for (double smoothing : {0.0, 0.1}) {
      for (std::int64_t rows : {0, 1, 31, 33})
        for (std::int64_t columns : {1, 5, 31, 33, 1025})
          for (bool together : {false, true}) check(dtype, rows, columns, {.smoothing = smoothing, .together = together});
      for (bool together : {false, true}) {
        check(dtype, 40, 10000, {.smoothing = smoothing, .weighted = true, .together = together});
        check(
            dtype, 40, 5027,
            {.smoothing = smoothing, .weighted = true, .shift = 1, .one_gradient = true, .together = together});  // rows at every alignment
        check(
            dtype, 40, 100,
            {.smoothing = smoothing, .weighted = true, .row_stride = 133, .shift = 1, .together = together});  // x and dx at different ones
        check(dtype, 3, 50257, {.smoothing = smoothing, .weighted = true, .together = together});
        check(dtype, 3, 70001, {.smoothing = smoothing, .row_stride = 70008, .together = together});
      }
      check(dtype, 40, 1200, {.smoothing = smoothing, .in_place = true});
      check(dtype, 40, 5027, {.smoothing = smoothing, .weighted = true, .shift = 3, .in_place = true});
    }
  check(DType::f32, 70000, 7, {.smoothing = 0.1, .weighted = true});
}

TEST_CASE("cross-entropy of logits far from zero", "[cuda]") {
  for (double offset : {-1000.0, 1000.0, 3e4, 1e12, 1e30}) {
    const std::int64_t rows = 4, columns = 3000;
    Twin x(DType::f32, {rows, columns}), lse(DType::f32, {rows}), targets(DType::i64, {rows}), losses(DType::f32, {rows});
    x.randomize(1, offset - 6, offset + 6);
    // Masked classes, a whole thread's among them, and one class alone.
    for (std::int64_t c = 0; c < columns; c += 2) x.set(columns + c, -INFINITY);
    for (std::int64_t c = 1; c < columns; ++c) x.set(2 * columns + c, -INFINITY);
    x.upload();
    targets.set(0, 7).set(1, 1).set(2, 0).set(3, 2999).upload();
    lse.upload();
    losses.upload();
    kernels::cross_entropy(Cpu{}, x.host(), {targets.host(), {}, ignored, 0}, lse.host(), losses.host());
    kernels::cross_entropy(Cuda{}, x.device(), {targets.device(), {}, ignored, 0}, lse.device(), losses.device());
    CHECK(lse.difference(3e-7) == "");
    CHECK(losses.difference(3e-7 * std::abs(offset)) == "");
    kernels::cross_entropy_with_grad(Cpu{}, x.host(), {targets.host(), {}, ignored, 0}, {}, losses.host());
    kernels::cross_entropy_with_grad(Cuda{}, x.device(), {targets.device(), {}, ignored, 0}, {}, losses.device());
    CHECK(x.difference(3e-7 * std::abs(offset)) == "");  // finite, above all
  }
}

TEST_CASE("on the GPU a target outside the range gives NaN, and so does a NaN among the logits", "[cuda]") {
  Twin x(DType::f32, {4, 5}), lse(DType::f32, {4}), targets(DType::i64, {4}), losses(DType::f32, {4});
  x.randomize(1).set(17, NAN).upload();
  targets.set(0, 5).set(1, -1).set(2, 4).set(3, 0).upload();
  losses.upload();
  lse.upload();
  const kernels::TokenTargets tokens{targets.device(), {}, ignored, 0};
  kernels::cross_entropy(Cuda{}, x.device(), tokens, lse.device(), losses.device());
  double sum = 0;
  for (std::int64_t c = 10; c < 15; ++c) sum += std::exp(x.get(c));
  losses.set(0, NAN).set(1, NAN).set(2, std::log(sum) - x.get(14)).set(3, NAN);
  CHECK(losses.difference(1e-6) == "");
}

TEST_CASE("gradients times a factor, in a new place or added to one, agree with the CPU", "[cuda]") {
  for (DType dtype : floats)
    for (std::int64_t n : {0, 1, 31, 33, 1025, 4096})
      for (int shift : {0, 1})
        for (Write write : {Write::overwrite, Write::accumulate}) {
          INFO(name(dtype) << " (" << n << "), shift " << shift);
          Twin x(dtype, {n}, {1}, shift), y(dtype, {n}), factor(dtype == DType::f64 ? dtype : DType::f32, {});
          x.randomize(1).upload();
          y.randomize(2).upload();
          factor.set(0, 0.37).upload();
          Twin few(dtype, {5}), of_few(dtype, {5});
          few.randomize(3).upload();
          of_few.upload();
          const auto five = [&](auto&& view) {  // the fifth, in place, after the others
            return std::vector<kernels::Scaling>{{view(few), view(of_few)},
                                                 {view(x), view(y), write},
                                                 {view(few), view(of_few)},
                                                 {view(few), view(of_few)},
                                                 {view(x), view(x)}};
          };
          kernels::scale(Cpu{}, five([](Twin& t) { return t.host(); }), {factor.host(), {}});
          kernels::scale(Cuda{}, five([](Twin& t) { return t.device(); }), {factor.device(), {}});
          CHECK(of_few.difference(tolerance(dtype)) == "");
          CHECK(x.difference(tolerance(dtype)) == "");
          CHECK(y.difference(tolerance(dtype)) == "");
        }
}

}  // namespace tern
