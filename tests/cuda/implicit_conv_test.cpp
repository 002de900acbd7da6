// Convolutions whose windows are not written down, beside those by columns and the CPU's in float64. Of small integers sums are exact in
// every dtype and order, so that a wrong place, tap or zero shows as an element that differs.
#include <cmath>

#include "autodiff/engine.h"
#include "catch.h"
#include "ops/conv.h"
#include "ops/factory.h"
#include "ops/kernels/conv.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "plain.h"
#include "skip.h"
#include "tensor/context.h"
#include "twin.h"

namespace tern {

using namespace cuda_test;

namespace {

struct Shapes {
  Shape x, w;
  ConvOptions options = {};
};
const std::vector<Shapes> shapes = {
    {{2, 16, 7, 7}, {24, 16, 3, 3}, {.padding = {1, 1}}},
    {{3, 64, 14, 14}, {64, 64, 3, 3}, {.padding = {1, 1}}},  // boxes with rows of two images
    {{33, 72, 7, 7}, {200, 72, 3, 3}, {.padding = {1, 1}}},  // two tiles of outputs, the last not full
    {{2, 64, 56, 56}, {64, 64, 3, 3}, {.padding = {1, 1}}},
    {{2, 40, 17, 13}, {130, 40, 3, 3}, {.padding = {1, 1}}},  // rows of an odd length: no pairs
    {{2, 72, 9, 30}, {70, 72, 3, 3}, {.stride = {2, 2}, .padding = {1, 1}}},
    {{1, 130, 12, 10}, {65, 130, 5, 5}, {.padding = {2, 2}}},  // three blocks of channels
    {{2, 24, 20, 19}, {17, 24, 3, 3}, {.padding = {2, 2}, .dilation = {2, 2}}},
    {{2, 24, 40, 19}, {17, 24, 5, 3}, {.padding = {8, 1}, .dilation = {4, 1}}},  // rows below that fill no stage
    {{2, 32, 15, 16}, {33, 32, 7, 7}, {.stride = {2, 2}, .padding = {3, 3}}},
    {{2, 33, 11, 40}, {48, 33, 1, 3}, {.padding = {0, 1}}},
    {{2, 20, 40, 6}, {48, 20, 3, 1}, {.padding = {1, 0}}},
    {{1, 16, 1, 300}, {20, 16, 1, 5}},                     // a box of one row
    {{5, 16, 3, 3}, {8, 16, 3, 3}},                        // one position; g has too few channels
    {{2, 16, 5, 6}, {16, 16, 2, 2}, {.padding = {2, 2}}},  // more padding than taps
    {{2, 18, 21, 23}, {20, 18, 3, 4}, {.stride = {2, 3}, .padding = {1, 2}, .dilation = {3, 2}}},
    {{2, 18, 33, 70}, {20, 18, 3, 3}, {.stride = {1, 8}, .padding = {3, 0}}},
};

/// The dtypes of the kernels, float32 in the mode in which there is one.
struct Mode {
  DType dtype;
  MatmulPrecision precision;
};
const Mode modes[] = {{DType::bf16, MatmulPrecision::fp32}, {DType::f16, MatmulPrecision::fp32}, {DType::f32, MatmulPrecision::tf32}};

kernels::Convolution convolution_of(const Shapes& s) {
  kernels::WindowAxis axes[2];
  for (int i = 0; i < 2; ++i) {
    const auto d = static_cast<std::size_t>(i);
    const ConvOptions& o = s.options;
    const std::int64_t rest = s.x[2 + i] + 2 * o.padding[d] - o.dilation[d] * (s.w[2 + i] - 1) - 1;
    axes[i] = {s.w[2 + i], o.stride[d], o.padding[d], o.dilation[d], rest / o.stride[d] + 1};
  }
  return {{axes[0], axes[1]}, s.options.groups};
}
Shape result_shape(const Shapes& s) {
  const kernels::Convolution of = convolution_of(s);
  return {s.x[0], s.w[0], of.window.y.positions, of.window.x.positions};
}

bool has_kernel(const Tensor& x, const Tensor& w, const Shapes& s) {
  return cuda_has(x.device(), [&](auto dev) { return kernels::has_implicit_convolution(dev, x.view(), w.view(), convolution_of(s)); });
}
bool lacks_kernel() {
  const Tensor x = zeros({1, 16, 4, 4}, DType::bf16, cuda()), w = zeros({1, 16, 3, 3}, DType::bf16, cuda());
  if (has_kernel(x, w, {x.shape(), w.shape()})) return false;
  test::skip("the kernels are for Hopper GPUs");
  return true;
}

Tensor small_integers(const Shape& shape, const TensorOptions& options = {}) { return floor(rand(shape, options) * 3) - 1; }

/// y and the gradients of x, w and bias, on the CPU, in float64.
template <class F>
Tensors all_of(F convolve, const Tensors& operands, const Tensor& g) {
  Tensors leaves;
  for (const Tensor& operand : operands) leaves.push_back(clone(operand).set_requires_grad());
  const Tensor y = convolve(leaves[0], leaves[1], leaves[2]);
  backward({y}, {g});
  Tensors all = {y, leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
  for (Tensor& result : all) result = cast(to(result, cpu), DType::f64);
  return all;
}
Tensors moved(const Tensors& of, DType dtype, Device device) {
  Tensors result;
  for (const Tensor& tensor : of) result.push_back(to(cast(tensor, dtype), device));
  return result;
}

double largest(const Tensor& x) { return max(abs(x)).item<double>(); }

}  // namespace

TEST_CASE("implicit convolutions of integers are exactly those of the CPU and of columns", "[cuda]") {
  if (lacks_kernel()) return;
  for (const Mode& mode : modes) {
    const MatmulPrecisionMode scope(mode.precision);
    for (const Shapes& s : shapes) {
      INFO(name(mode.dtype) << " x " << to_string(s.x) << " w " << to_string(s.w));
      manual_seed(1);
      const Tensors operands = {small_integers(s.x), small_integers(s.w), small_integers({s.w[0]})};
      const Tensor g = small_integers(result_shape(s));
      const auto by = [&](auto f, DType dtype, Device device) {
        return all_of([&](const Tensor& x, const Tensor& w, const Tensor& bias) { return f(x, w, bias, s.options); },
                      moved(operands, dtype, device), moved({g}, dtype, device)[0]);
      };
      const Tensors there = moved(operands, mode.dtype, cuda());
      REQUIRE(has_kernel(there[0], there[1], s));
      const Tensors got = by(conv2d, mode.dtype, cuda()), exact = by(conv2d, DType::f64, cpu),
                    columns = by(test::plain(conv2d), mode.dtype, cuda());
      CHECK(largest(exact[0]) < 256);  // what bf16 has without rounding
      CHECK(largest(exact[1]) < 256);
      CHECK(largest(got[0] - exact[0]) == 0);
      CHECK(largest(got[0] - columns[0]) == 0);
      CHECK(largest(got[1] - exact[1]) == 0);
      CHECK(largest(got[1] - columns[1]) == 0);
      // Of weights and bias sums are larger, and rounded.
      for (const std::size_t i : {2, 3})
        CHECK(largest(got[i] - exact[i]) <= (mode.dtype == DType::bf16 ? 0x1p-7 : 0x1p-10) * largest(exact[i]));
    }
  }
}

TEST_CASE("implicit convolutions round once, and no more than the mode does", "[cuda]") {
  if (lacks_kernel()) return;
  const Shapes s{{2, 128, 28, 28}, {128, 128, 3, 3}, {.padding = {1, 1}}};
  for (const Mode& mode : modes) {
    const MatmulPrecisionMode scope(mode.precision);
    INFO(name(mode.dtype));
    manual_seed(2);
    Tensors operands = moved({randn(s.x), randn(s.w), randn({s.w[0]})}, mode.dtype, cpu);
    const Tensor g = cast(randn(result_shape(s)), mode.dtype);
    const auto by = [&](DType dtype, Device device) {
      return all_of([&](const Tensor& x, const Tensor& w, const Tensor& bias) { return conv2d(x, w, bias, s.options); },
                    moved(operands, dtype, device), moved({g}, dtype, device)[0]);
    };
    const Tensors got = by(mode.dtype, cuda()), exact = by(DType::f64, cpu);
    // Half a unit of the last place of the result, and what tensor cores drop in a sum, of the largest element. TF32: a product's operands
    // are off by 2^-11 at most each, and 1152 products in all by about that much of a usual sum, a fifth of the largest.
    const double rounding = mode.dtype == DType::bf16 ? 0x1p-8 : mode.dtype == DType::f16 ? 0x1p-11 : 0;
    const double of_sums = mode.dtype == DType::f32 ? 0x1p-11 : 0x1p-16;
    for (const std::size_t i : {0, 1}) {
      const Tensor error = abs(got[i] - exact[i]);
      CHECK(max(error - abs(exact[i]) * rounding).item<double>() <= of_sums * largest(exact[i]));
    }
  }
}

TEST_CASE("implicit convolutions read operands of any strides", "[cuda]") {
  if (lacks_kernel()) return;
  const Shapes s{{3, 24, 10, 12}, {40, 24, 3, 3}, {.stride = {1, 1}, .padding = {1, 1}}};
  for (const Mode& mode : modes) {
    const MatmulPrecisionMode scope(mode.precision);
    INFO(name(mode.dtype));
    manual_seed(3);
    const auto there = [&](const Tensor& x) { return to(cast(x, mode.dtype), cuda()); };
    const Tensor x = there(small_integers(s.x)), w = there(small_integers(s.w)), bias = there(small_integers({40}));
    const Tensor wanted = test::plain(conv2d)(x, w, bias, s.options);
    const auto last = [](const Tensor& t) { return transpose(contiguous(transpose(t, 1, 3)), 1, 3); };  // channels next to each other
    const auto part = [](const Tensor& t) {                                                             // of a larger tensor, misaligned
      const Tensor wide = zeros({t.size(0), t.size(1) + 1, t.size(2), t.size(3) + 3}, t.dtype(), t.device());
      const Tensor inner = slice(slice(wide, 1, 1), 3, 1, 1 + t.size(3));
      copy_(inner, t);
      return inner;
    };
    for (const auto& [a, b] : {std::pair{last(x), w}, {x, last(w)}, {part(x), part(w)}}) {
      REQUIRE_FALSE((a.is_contiguous() && b.is_contiguous()));
      REQUIRE(has_kernel(a, b, s));
      CHECK(largest(cast(to(conv2d(a, b, bias, s.options) - wanted, cpu), DType::f64)) == 0);
    }
    const Tensor leaf = clone(x).set_requires_grad(), other = clone(x).set_requires_grad();
    const Tensor g = last(there(small_integers(result_shape(s))));
    backward({conv2d(leaf, w, bias, s.options)}, {g});
    backward({test::plain(conv2d)(other, w, bias, s.options)}, {g});
    CHECK(largest(cast(to(leaf.grad() - other.grad(), cpu), DType::f64)) == 0);
  }
}

TEST_CASE("implicit convolutions write their result alone", "[cuda]") {
  if (lacks_kernel()) return;
  const MatmulPrecisionMode scope(MatmulPrecision::tf32);
  for (const Shapes& s : shapes) {
    INFO("x " << to_string(s.x) << " w " << to_string(s.w));
    const kernels::Convolution of = convolution_of(s);
    Twin x(DType::f32, s.x), w(DType::f32, s.w), y(DType::f32, result_shape(s)), dx(DType::f32, s.x);
    manual_seed(4);
    // Integers, written element by element.
    for (const auto& [twin, shape] : {std::pair{&x, s.x}, {&w, s.w}, {&y, result_shape(s)}}) {
      const std::vector<float> values = small_integers(shape).to_vector<float>();
      for (std::size_t i = 0; i < values.size(); ++i) twin->set(static_cast<std::int64_t>(i), values[i]);
      twin->upload();
    }
    dx.upload();
    const View none{};
    if (kernels::has_implicit_convolution_grad(Cuda{}, y.device(), w.device(), of, dx.device())) {
      const View nothing{};
      kernels::ConvolveGrad{x.host(), w.host(), y.host(), of, dx.host(), nothing, Write::overwrite, nothing, Write::overwrite}.run(Cpu{});
      kernels::ImplicitConvolveGrad{y.device(), w.device(), of, dx.device()}.run(Cuda{});
      CHECK(dx.difference(0) == "");
    }
    kernels::Convolve{x.host(), w.host(), none, of, y.host()}.run(Cpu{});
    kernels::ImplicitConvolve{x.device(), w.device(), none, of, y.device()}.run(Cuda{});
    CHECK(y.difference(0) == "");
  }
}

TEST_CASE("implicit convolutions take images in several runs", "[cuda]") {
  if (lacks_kernel()) return;
  manual_seed(5);
  // 20 MB an image turned, 64 MiB a run: three images, and two.
  const TensorOptions there{.device = cuda()};
  const Tensor x = cast(small_integers({5, 64, 400, 400}, there), DType::bf16),
               w = cast(small_integers({16, 64, 3, 3}, there), DType::bf16);
  const ConvOptions options{.padding = {1, 1}};
  const Tensor y = conv2d(x, w, {}, options);
  for (int image = 0; image < 5; ++image) {
    INFO("image " << image);
    CHECK(largest(cast(to(slice(y, 0, image, image + 1) - test::plain(conv2d)(slice(x, 0, image, image + 1), w, Tensor(), options), cpu),
                       DType::f64)) == 0);
  }
}

TEST_CASE("implicit convolutions give the same bits in every run", "[cuda]") {
  if (lacks_kernel()) return;
  for (const Mode& mode : modes) {
    const MatmulPrecisionMode scope(mode.precision);
    manual_seed(6);
    const Tensors operands = moved({randn({8, 64, 28, 28}), randn({64, 64, 3, 3}), randn({64})}, mode.dtype, cuda());
    const Tensor g = moved({randn({8, 64, 28, 28})}, mode.dtype, cuda())[0];
    const auto run = [&] {
      return all_of([](const Tensor& x, const Tensor& w, const Tensor& bias) { return conv2d(x, w, bias, {.padding = {1, 1}}); }, operands,
                    g);
    };
    const Tensors first = run();
    for (int i = 0; i < 5; ++i) {
      const Tensors again = run();
      for (std::size_t k = 0; k < first.size(); ++k) CHECK(largest(first[k] - again[k]) == 0);
    }
  }
}

TEST_CASE("implicit convolutions are for windows of many channels in 16 bits and TF32", "[cuda]") {
  if (lacks_kernel()) return;
  const auto has = [](DType dtype, MatmulPrecision precision, const Shape& of_x, const Shape& of_w, const ConvOptions& options) {
    const MatmulPrecisionMode scope(precision);
    const Shapes s{of_x, of_w, options};
    return has_kernel(zeros(of_x, dtype, cuda()), zeros(of_w, dtype, cuda()), s);
  };
  constexpr auto strict = MatmulPrecision::fp32;
  const Shape x = {2, 32, 8, 8}, w = {16, 32, 3, 3};
  CHECK(has(DType::bf16, strict, x, w, {}));
  CHECK(has(DType::f32, MatmulPrecision::tf32, x, w, {}));
  CHECK_FALSE(has(DType::f32, strict, x, w, {}));
  CHECK_FALSE(has(DType::f32, MatmulPrecision::tf32x3, x, w, {}));
  CHECK_FALSE(has(DType::f64, MatmulPrecision::tf32, x, w, {}));
  CHECK_FALSE(has(DType::bf16, strict, x, {16, 16, 3, 3}, {.groups = 2}));
  CHECK_FALSE(has(DType::bf16, strict, {2, 8, 8, 8}, {16, 8, 3, 3}, {}));
  CHECK_FALSE(has(DType::bf16, strict, x, {16, 32, 1, 1}, {}));
  CHECK_FALSE(has(DType::bf16, strict, x, w, {.padding = {9, 1}}));
  CHECK_FALSE(has(DType::bf16, strict, x, w, {.stride = {9, 1}, .padding = {1, 1}}));
  CHECK_FALSE(has(DType::bf16, strict, {0, 32, 8, 8}, w, {}));
}

}  // namespace tern
