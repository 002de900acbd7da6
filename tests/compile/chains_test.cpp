// Chains of elementwise kernels that run by chunks: bit for bit what they are one by one.
#include <algorithm>
#include <random>

#include "autodiff/engine.h"
#include "catch.h"
#include "compile/compile.h"
#include "message.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "tensor/context.h"
#include "written_ops.h"

using namespace tern;

namespace {

/// A random function of x and y, of one shape, a row and a column: what it does depends on the seed alone.
Tensors random_chain(unsigned seed, const Tensor& x, const Tensor& y, const Tensor& row, const Tensor& column) {
  std::mt19937 draw(seed);
  const auto below = [&](unsigned n) { return draw() % n; };
  Tensors values{x, y};
  const auto any = [&]() -> Tensor {
    const unsigned choice = below(8);
    if (choice == 0) return row;
    if (choice == 1) return column;
    return values[values.size() - 1 - below(std::min<unsigned>(4, static_cast<unsigned>(values.size())))];
  };
  const auto whole = [&] { return values[values.size() - 1 - below(static_cast<unsigned>(std::min<std::size_t>(3, values.size())))]; };
  const int count = 4 + static_cast<int>(below(14));
  for (int i = 0; i < count; ++i) {
    const Tensor a = whole();
    switch (below(12)) {
      case 0: values.push_back(a * any()); break;
      case 1: values.push_back(a + any()); break;
      case 2: values.push_back(any() - a); break;
      case 3: values.push_back(tanh(a)); break;
      case 4: values.push_back(relu(a)); break;
      case 5: values.push_back(where(gt(a, any()), a, any())); break;
      case 6: values.push_back(cast(cast(a, DType::bf16), x.dtype())); break;
      case 7: values.push_back(a * 0.5 + 0.25); break;
      case 8: values.push_back(add_(a * 1.0, whole())); break;
      case 9: values.push_back(clamp(a, -1, 1)); break;
      case 10: values.push_back(a.size(0) == a.size(1) ? a + transpose(a, 0, 1) : maximum(a, any())); break;
      default: values.push_back(slice(cat({a, a}, 0), 0, 1, a.size(0) + 1)); break;
    }
  }
  return {values.back(), values[values.size() - 2], sum(values.back())};
}

std::vector<std::vector<double>> elements(const Tensors& xs) {
  std::vector<std::vector<double>> result;
  for (const Tensor& x : xs) {
    result.push_back(cast(x, DType::f64).to_vector<double>());
    for (double& e : result.back())
      if (e != e) e = 1e300;  // a NaN, which equals none
  }
  return result;
}

}  // namespace

TEST_CASE("Random chains of elementwise ops are bitwise those op by op") {
  const NoGrad unrecorded;
  std::size_t shorter = 0, all = 0;
  for (const int threads : {1, 2})
    for (const DType dtype : {DType::f32, DType::f64})
      for (const Shape& shape : {Shape{256, 256}, Shape{1000, 65}, Shape{3, 40000}, Shape{70001, 1}})
        for (unsigned seed = 0; seed < 24; ++seed) {
          INFO("seed " << seed << ", shape " << to_string(shape) << ", " << name(dtype) << ", " << threads << " threads");
          set_num_threads(threads);
          manual_seed(seed);
          auto f = tern::compile([&](const Tensor& x, const Tensor& y, const Tensor& row, const Tensor& column) {
            return random_chain(seed, x, y, row, column);
          });
          for (int call = 0; call < 4; ++call) {
            const Tensor x = randn(shape, 0, 1, dtype), y = randn(shape, 0, 1, dtype), row = randn({shape[1]}, 0, 1, dtype),
                         column = randn({shape[0], 1}, 0, 1, dtype);
            const auto want = elements(random_chain(seed, x, y, row, column));
            if (elements(f(x, y, row, column)) != want) FAIL_CHECK("call " << call << " differs");
          }
          const std::string report = f.report();
          const std::size_t at = report.find(" kernels in ");
          const int kernels = std::stoi(report.substr(report.rfind(": ", at) + 2)), steps = std::stoi(report.substr(at + 12));
          ++all, shorter += steps < kernels;
        }
  set_num_threads(2);
  CHECK(shorter > all / 2);
}

TEST_CASE("Random chains of elementwise ops on a GPU are bitwise those op by op", "[cuda]") {
  const NoGrad unrecorded;
  const DeviceScope here(cuda());
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16})
    for (const Shape& shape : {Shape{256, 256}, Shape{1000, 65}, Shape{3, 40000}, Shape{70001, 1}, Shape{7, 5}})
      for (unsigned seed = 0; seed < 12; ++seed) {
        INFO("seed " << seed << ", shape " << to_string(shape) << ", " << name(dtype));
        manual_seed(seed);
        const auto chain = [&](const Tensor& x, const Tensor& y, const Tensor& row, const Tensor& column) {
          Tensors results = random_chain(seed, x, y, row, column);
          results.pop_back();  // a sum, whose order is another one
          return results;
        };
        auto f = tern::compile(chain, cuda());
        for (int call = 0; call < 4; ++call) {
          const Tensor x = randn(shape, 0, 1, dtype), y = randn(shape, 0, 1, dtype), row = randn({shape[1]}, 0, 1, dtype),
                       column = randn({shape[0], 1}, 0, 1, dtype);
          const auto want = elements(chain(x, y, row, column));
          if (elements(f(x, y, row, column)) != want) FAIL_CHECK("call " << call << " differs\n" << f.show(Stage::code));
        }
        CHECK_FALSE(contains(f.report(), "op by op"));
      }
}

TEST_CASE("A chain ends where an element depends on another one") {
  const NoGrad unrecorded;
  auto f = tern::compile([](const Tensor& x) {
    const Tensor y = exp(x) + 1;
    return y + transpose(y, 0, 1) * 2;
  });
  for (int call = 0; call < 5; ++call) {
    const Tensor x = randn({300, 300});
    const Tensor y = exp(x) + 1;
    CHECK(f(x).to_vector<float>() == (y + transpose(y, 0, 1) * 2).to_vector<float>());
  }
  INFO(f.report());
  CHECK(contains(f.report(), "4 kernels in 2 steps"));
}

TEST_CASE("A chain computes again what it would read by more bytes, where both are divided into chunks") {
  manual_seed(4);
  const Tensor w = randn({256, 256}, 0, 0.1), v = randn({256, 256}, 0, 0.1);
  // Kernels that a run of a GELU between products, and its gradient, has more than the function.
  const auto more = [&](const Shape& shape) {
    const auto f = [&](const Tensor& in) {
      Tensor x = in.detach();
      x.set_requires_grad();
      const Tensor y = reshape(matmul(reshape(x, {-1, 256}), w), shape);
      const Tensor z = matmul(reshape(test::gelu_of_ops(y), {-1, 256}), v);
      return grad({sum(z * z)}, {x})[0];
    };
    auto compiled = tern::compile(f);
    auto plain = tern::compile(f, default_device(), {.fuse = false});
    for (int call = 0; call < 4; ++call) {
      const Tensor in = randn(shape);
      CHECK(compiled(in).to_vector<float>() == plain(in).to_vector<float>());
    }
    const ProgramOverview program = compiled.overview();
    std::ptrdiff_t kernels = -static_cast<std::ptrdiff_t>(program.kernels);
    for (const ProgramOverview::Group& group : program.groups) kernels += static_cast<std::ptrdiff_t>(group.kernels.size());
    return kernels;
  };
  CHECK(more({1024, 256}) > 4);
  CHECK(more({64, 256}) == 0);  // in cache
}

TEST_CASE("Elementwise parts of a concatenation are computed in their place, products are copied on the CPU") {
  const Tensor w = randn({7, 7});
  const auto f = [&](const Tensor& x) {
    const NoGrad unrecorded;
    return sum(cat({tanh(x), x * 2.0, matmul(x, w)}, 1), 1);
  };
  auto compiled = tern::compile(f);
  for (int call = 0; call < 4; ++call) {
    const Tensor x = randn({5, 7});
    CHECK(compiled(x).to_vector<float>() == f(x).to_vector<float>());
  }
  std::ptrdiff_t copies = 0;
  for (const ProgramOverview::Group& group : compiled.overview().groups)
    copies += std::count(group.kernels.begin(), group.kernels.end(), "cat");
  CHECK(copies == 1);
}
