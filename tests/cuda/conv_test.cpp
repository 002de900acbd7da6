#include "ops/kernels/conv.h"

#include "catch.h"
#include "twin.h"

namespace tern {

using namespace cuda_test;

namespace {

struct Options {
  std::int64_t left = 0, right = 0;
  bool channels_first = false;
  bool silu = false, has_bias = true;
  std::int64_t gap = 0;  ///< elements between the rows of u
  int shift = 0;         ///< of u, off its alignment
};

Strides strides_of(std::int64_t length, std::int64_t channels, const Options& options, std::int64_t gap) {
  if (options.channels_first) return {(length + gap) * channels, 1, length + gap};
  return {length * (channels + gap), channels + gap, 1};
}

void check(DType dtype, std::int64_t batch, std::int64_t length, std::int64_t channels, std::int64_t taps, const Options& options) {
  INFO(name(dtype) << " (" << batch << ", " << length << ", " << channels << "), K " << taps << ", padding " << options.left << " "
                   << options.right << ", channels first " << options.channels_first << ", SiLU " << options.silu << ", bias "
                   << options.has_bias << ", gap " << options.gap << ", shift " << options.shift);
  const std::int64_t outputs = length + options.left + options.right - taps + 1;
  Twin u(dtype, {batch, length, channels}, strides_of(length, channels, options, options.gap), options.shift), w(dtype, {channels, taps});
  Twin bias(dtype, {channels}), y(dtype, {batch, outputs, channels}, strides_of(outputs, channels, options, 0));
  u.randomize(1).upload();
  w.randomize(2, -1, 1).upload();
  bias.randomize(3).upload();
  y.upload();
  const View none{};
  const auto forward = [&](const View& signal, const View& weight, const View& shift, const View& to) {
    return kernels::DepthwiseConv1dArguments{
        .u = signal, .w = weight, .bias = options.has_bias ? shift : none, .left = options.left, .silu = options.silu, .y = to};
  };
  kernels::depthwise_conv1d(Cpu{}, forward(u.host(), w.host(), bias.host(), y.host()));
  kernels::depthwise_conv1d(Cuda{}, forward(u.device(), w.device(), bias.device(), y.device()));
  CHECK(y.difference(2 * tolerance(dtype)) == "");

  Twin g(dtype, {batch, outputs, channels}, strides_of(outputs, channels, options, 0));
  Twin du(dtype, {batch, length, channels}, strides_of(length, channels, options, 0)), dw(dtype, {channels, taps}), db(dtype, {channels});
  g.randomize(4).upload();
  for (Twin* to : {&du, &dw, &db}) to->upload();
  const auto backward = [&](bool host, bool with_du, bool with_sums) {
    const auto at = [&](const Twin& twin) { return host ? twin.host() : twin.device(); };
    return kernels::DepthwiseConv1dGradArguments{.u = at(u),
                                                 .w = at(w),
                                                 .bias = options.has_bias ? at(bias) : none,
                                                 .left = options.left,
                                                 .silu = options.silu,
                                                 .g = at(g),
                                                 .du = with_du ? at(du) : none,
                                                 .dw = with_sums ? at(dw) : none,
                                                 .db = with_sums && options.has_bias ? at(db) : none};
  };
  kernels::depthwise_conv1d_grad(Cpu{}, backward(true, true, true));
  kernels::depthwise_conv1d_grad(Cuda{}, backward(false, true, true));
  CHECK(du.difference(2 * tolerance(dtype)) == "");
  // The sums have a rounding for every position.
  const double terms = static_cast<double>(std::max<std::int64_t>(batch * outputs, 1)),
               slack = dtype == DType::f32 ? std::max(4.0, terms / 64) : 4;
  CHECK(dw.difference(slack * tolerance(dtype)) == "");
  CHECK(db.difference(slack * tolerance(dtype)) == "");

  // Again: the same bits. And in parts: the same values.
  const auto first_dw = dw.download(), first_du = du.download();
  kernels::depthwise_conv1d_grad(Cuda{}, backward(false, true, true));
  CHECK((dw.download() == first_dw && du.download() == first_du));
  dw.upload();
  du.upload();
  kernels::depthwise_conv1d_grad(Cuda{}, backward(false, true, false));
  kernels::depthwise_conv1d_grad(Cuda{}, backward(false, false, true));
  CHECK((dw.download() == first_dw && du.download() == first_du));
}

}  // namespace

TEST_CASE("depthwise convolution and its gradient agree with the CPU", "[cuda]") {
  for (DType dtype : floats)
    for (const bool first : {false, true}) {
      for (std::int64_t taps : {1, 2, 3, 4, 5, 6, 7, 12})
        for (const bool silu : {false, true}) {
          const bool has_bias = taps % 2 == 0 || silu;
          // Vectors; lengths and channels that are none; fewer positions than taps.
          check(dtype, 2, 64, 32, taps, {taps - 1, 0, first, silu, has_bias});
          check(dtype, 1, 328, 264, taps, {taps / 2, taps - 1 - taps / 2, first, silu, has_bias});
          check(dtype, 2, 33, 31, taps, {taps - 1, 0, first, silu, has_bias});
          check(dtype, 1, 8, 8, taps, {taps + 8, taps + 2, first, silu, has_bias});  // zeros alone at the ends
          check(dtype, 1, 1, 3, taps, {taps - 1, 0, first, silu, has_bias});
          check(dtype, 1, 40, 40, taps, {0, taps - 1, first, silu, has_bias});
        }
      check(dtype, 1, 64, 64, 4, {3, 0, first, true, true, 8, 0});  // rows with gaps, aligned
      check(dtype, 1, 64, 64, 4, {3, 0, first, true, true, 5, 0});  // and not
      check(dtype, 1, 64, 64, 4, {3, 0, first, true, true, 0, 1});
      check(dtype, 0, 8, 8, 4, {3, 0, first});
      check(dtype, 2, 0, 8, 4, {3, 0, first});
      check(dtype, 2, 8, 0, 4, {3, 0, first});
      check(dtype, 2, 2, 8, 3, {0, 0, first});  // no output
    }
}

TEST_CASE("depthwise convolution and its gradient agree with the CPU over many blocks", "[cuda]") {
  for (DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (const bool first : {false, true})
      for (std::int64_t taps : {3, 4, 7}) {
        check(dtype, 1, 8192, 1024, taps, {taps - 1, 0, first, true});
        check(dtype, 3, 2056, 264, taps, {taps / 2, taps - 1 - taps / 2, first, false});
      }
}

TEST_CASE("depthwise convolution reads inputs of any strides", "[cuda]") {
  for (DType dtype : {DType::f32, DType::f16}) {
    const Shape shape = {2, 33, 16};
    for (const Strides& strides : {gapped(shape), reversed(shape), permuted(shape, {2, 0, 1}), permuted(shape, {1, 0, 2})}) {
      Twin u(dtype, shape, strides), w(dtype, {16, 4}), y(dtype, shape);
      u.randomize(1).upload();
      w.randomize(2).upload();
      y.upload();
      kernels::depthwise_conv1d(Cpu{}, {.u = u.host(), .w = w.host(), .left = 3, .silu = true, .y = y.host()});
      kernels::depthwise_conv1d(Cuda{}, {.u = u.device(), .w = w.device(), .left = 3, .silu = true, .y = y.device()});
      CHECK(y.difference(2 * tolerance(dtype)) == "");
    }
  }
}

}  // namespace tern
