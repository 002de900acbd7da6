// Modules of images: that they give their parameters and options to ops, which the op table tests; BatchNorm against loops in float64.
#include "nn/fixture.h"
#include "ops/conv.h"
#include "ops/factory.h"
#include "ops/normalize.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"

using namespace tern;

namespace {

using Doubles = std::vector<double>;

Doubles values(const Tensor& x) { return cast(x.detach(), DType::f64).to_vector<double>(); }

}  // namespace

TEST_CASE("Convolution modules give the op's result of their weights, with stride, padding, dilation and groups", "[convolution]") {
  manual_seed(1);
  for (const nn::Conv2dOptions& o : {nn::Conv2dOptions{},
                                     {.stride = 2, .padding = 1},
                                     {.stride = {1, 2}, .padding = {2, 0}, .dilation = {2, 1}, .bias = false},
                                     {.padding = 1, .groups = 2}}) {
    const nn::Conv2d conv(4, 6, {3, 2}, o);
    CHECK(conv.weight.shape() == Shape{6, 4 / o.groups, 3, 2});
    CHECK(conv.bias.defined() == o.bias);
    const Tensor x = randn({2, 4, 7, 5});
    const ConvOptions options{.stride = o.stride, .padding = o.padding, .dilation = o.dilation, .groups = o.groups};
    CHECK(distance(conv(x), conv2d(x, conv.weight, conv.bias, options)) == 0);
  }
  for (const nn::Conv1dOptions& o :
       {nn::Conv1dOptions{}, {.stride = 2, .padding = 1, .dilation = 2}, {.padding = 2, .groups = 3, .bias = false}}) {
    const nn::Conv1d conv(3, 6, 3, o);
    CHECK(conv.weight.shape() == Shape{6, 3 / o.groups, 3});
    const Tensor x = randn({2, 3, 9});
    const Conv1dOptions options{.stride = o.stride, .padding = o.padding, .dilation = o.dilation, .groups = o.groups};
    CHECK(distance(conv(x), conv1d(x, conv.weight, conv.bias, options)) == 0);
  }
}

TEST_CASE("convolutions start uniform in one over the root of their inputs", "[convolution]") {
  manual_seed(3);
  const nn::Conv2d conv(16, 64, 3, {.groups = 2});
  const double bound = 1 / std::sqrt(8.0 * 9);
  for (const Tensor& x : {conv.weight, conv.bias}) {
    const double largest = max(abs(x)).item();
    CHECK(largest <= bound * (1 + 1e-6));
    CHECK(largest > bound * 0.9);
    CHECK(x.requires_grad());
  }
  CHECK(std::sqrt(var(conv.weight).item()) == Approx(bound / std::sqrt(3.0)).epsilon(0.03));
}

TEST_CASE("pooling takes the largest or the mean of each window", "[convolution]") {
  const Tensor x = reshape(cast(arange(16), DType::f32), {1, 1, 4, 4});
  CHECK(values(nn::MaxPool2d(2)(x)) == Doubles{5, 7, 13, 15});
  CHECK(values(nn::AvgPool2d(2)(x)) == Doubles{2.5, 4.5, 10.5, 12.5});
  CHECK(values(nn::MaxPool2d(3, {.stride = 1})(x)) == Doubles{10, 11, 14, 15});
  CHECK(values(nn::MaxPool2d({1, 4})(x)) == Doubles{3, 7, 11, 15});
  CHECK(values(nn::AvgPool2d(2, {.padding = 1})(x)) == Doubles{0, 0.75, 0.75, 3, 7.5, 4.5, 3, 6.75, 3.75});
}

TEST_CASE("modules of images print their sizes and refuse wrong ones", "[convolution]") {
  CHECK(nn::to_string(nn::Conv2d(3, 8, 3)) == "Conv2d(in=3, out=8, kernel=3)");
  CHECK(nn::to_string(nn::Conv2d(4, 8, {3, 1}, {.stride = 2, .padding = {1, 0}, .groups = 2, .bias = false})) ==
        "Conv2d(in=4, out=8, kernel=(3, 1), stride=2, padding=(1, 0), groups=2, bias=false)");
  CHECK(nn::to_string(nn::Conv1d(3, 8, 5, {.dilation = 2})) == "Conv1d(in=3, out=8, kernel=5, dilation=2)");
  CHECK(nn::to_string(nn::MaxPool2d(2)) == "MaxPool2d(kernel=2)");
  CHECK(nn::to_string(nn::AvgPool2d(3, {.stride = 2, .padding = 1})) == "AvgPool2d(kernel=3, stride=2, padding=1)");
  CHECK(nn::to_string(nn::BatchNorm2d(8)) == "BatchNorm2d(8, eps=1e-05, momentum=0.1)");
  CHECK(nn::to_string(nn::BatchNorm1d(8, {.affine = false})) == "BatchNorm1d(8, eps=1e-05, momentum=0.1, affine=false)");
  CHECK(nn::to_string(nn::GroupNorm(2, 8)) == "GroupNorm(2, 8, eps=1e-05)");
  CHECK_THROWS_AS(nn::Conv2d(3, 8, 3, {.groups = 2}), Error);
  CHECK_THROWS_AS(nn::Conv2d(4, 3, 3, {.groups = 2}), Error);
  CHECK_THROWS_AS(nn::Conv2d(4, 3, 0), Error);
  CHECK_THROWS_AS(nn::Conv2d(4, 3, 1, {.stride = 0}), Error);
  CHECK_THROWS_AS(nn::Conv1d(4, 3, 1, {.padding = -1}), Error);
  CHECK_THROWS_AS(nn::Conv1d(4, 3, 1, {.groups = 0}), Error);
  CHECK_THROWS_AS(nn::MaxPool2d(2, {.padding = 2}), Error);
  CHECK_THROWS_AS(nn::AvgPool2d(0), Error);
  CHECK_THROWS_AS(nn::BatchNorm2d(0), Error);
  CHECK_THROWS_AS(nn::BatchNorm2d(2, {.momentum = 2}), Error);
  CHECK_THROWS_AS(nn::GroupNorm(3, 8), Error);
  const nn::BatchNorm2d norm(3);
  CHECK_THROWS_WITH(norm(zeros({2, 3})), "[BatchNorm2d] expected x (B, 3, H, W) but got (2, 3)");
  CHECK_THROWS_WITH(nn::BatchNorm1d(3)(zeros({2, 4})), "[BatchNorm1d] expected x (B, 3) or (B, C, L) but got (2, 4)");
  CHECK_THROWS_AS(norm(zeros({1, 3, 1, 1})), Error);
}

TEST_CASE("BatchNorm trains with the batch, keeps running statistics, and evaluates with them", "[batch_norm]") {
  manual_seed(4);
  constexpr double eps = 1e-3, momentum = 0.3;
  for (const bool is_image : {true, false}) {
    const Shape shape = is_image ? Shape{3, 2, 4, 5} : Shape{7, 2};
    nn::BatchNorm2d two(2, {.eps = eps, .momentum = momentum});
    nn::BatchNorm1d one(2, {.eps = eps, .momentum = momentum});
    nn::BatchNorm& norm = is_image ? static_cast<nn::BatchNorm&>(two) : one;
    norm.weight = Tensor::from({1.5f, -0.5f}, {2}).set_requires_grad();
    norm.bias = Tensor::from({0.25f, 2.f}, {2}).set_requires_grad();
    const Doubles gamma = values(norm.weight), beta = values(norm.bias);
    Doubles mean_now = {0, 0}, var_now = {1, 1};
    Tensor x;
    const auto expected = [&](const Doubles& mean, const Doubles& variance) {
      Doubles y = values(x);
      const std::size_t inner = static_cast<std::size_t>(x.numel() / x.size(0) / 2);
      for (std::size_t i = 0; i < y.size(); ++i) {
        const std::size_t c = i / inner % 2;
        y[i] = (y[i] - mean[c]) / std::sqrt(variance[c] + eps) * gamma[c] + beta[c];
      }
      return y;
    };
    for (int step = 0; step < 3; ++step) {
      x = randn(shape, 0.5 * step, 1 + step);
      const Doubles all = values(x);
      const std::size_t inner = static_cast<std::size_t>(x.numel() / x.size(0) / 2);
      Doubles sums = {0, 0}, squares = {0, 0};
      const double n = static_cast<double>(all.size()) / 2;
      for (std::size_t i = 0; i < all.size(); ++i) sums[i / inner % 2] += all[i] / n;
      for (std::size_t i = 0; i < all.size(); ++i) squares[i / inner % 2] += std::pow(all[i] - sums[i / inner % 2], 2) / n;
      CHECK(distance(floats(norm(x)), expected(sums, squares)) < 1e-5);
      for (std::size_t c = 0; c < 2; ++c) {
        mean_now[c] = (1 - momentum) * mean_now[c] + momentum * sums[c];
        var_now[c] = (1 - momentum) * var_now[c] + momentum * squares[c] * n / (n - 1);
      }
    }
    CHECK(distance(floats(norm.running_mean), mean_now) < 1e-5);
    CHECK(distance(floats(norm.running_var), var_now) < 1e-5);
    CHECK(norm.batches_tracked.item<std::int64_t>() == 3);
    norm.eval();
    CHECK(distance(floats(norm(x)), expected(mean_now, var_now)) < 1e-5);
    CHECK(norm.batches_tracked.item<std::int64_t>() == 3);
    CHECK(!norm.running_mean.requires_grad());
  }
}

TEST_CASE("BatchNorm's state has PyTorch's names and follows the module", "[batch_norm]") {
  nn::BatchNorm2d norm(3);
  std::vector<std::string> names;
  for (const NamedTensor& entry : nn::named_buffers(norm)) names.push_back(entry.name);
  CHECK(names == std::vector<std::string>{"running_mean", "running_var", "num_batches_tracked"});
  nn::BatchNorm2d own = nn::clone(norm);
  own(randn({2, 3, 4, 4}));
  CHECK(own.batches_tracked.item<std::int64_t>() == 1);
  CHECK(norm.batches_tracked.item<std::int64_t>() == 0);
  nn::to(norm, DType::f64);
  CHECK(norm.running_var.dtype() == DType::f64);
  CHECK(norm.batches_tracked.dtype() == DType::i64);
  norm(randn({2, 3, 4, 4}, 0, 1, DType::f64));
  // Without running statistics evaluation takes the batch's.
  nn::BatchNorm1d without(3, {.affine = false, .tracks_running = false});
  CHECK(nn::named_parameters(without).empty());
  const Tensor x = randn({5, 3});
  const Tensor trained = without(x);
  without.eval();
  CHECK(distance(without(x), trained) == 0);
  // f32 parameters and activations of 16 bits.
  nn::BatchNorm1d wide(3);
  CHECK(wide(cast(x, DType::bf16)).dtype() == DType::bf16);
  CHECK(wide.running_mean.dtype() == DType::f32);
}

TEST_CASE("GroupNorm is the op's with the module's parameters", "[group_norm]") {
  manual_seed(6);
  nn::GroupNorm norm(2, 4, {.eps = 1e-3});
  norm.weight = randn({4}).set_requires_grad();
  norm.bias = randn({4}).set_requires_grad();
  const Tensor x = randn({3, 4, 5});
  CHECK(distance(norm(x), group_norm(x, 2, norm.weight, norm.bias, 1e-3)) == 0);
  CHECK(!nn::GroupNorm(2, 4, {.affine = false}).weight.defined());
  CHECK_THROWS_AS(norm(zeros({3, 5})), Error);
}
