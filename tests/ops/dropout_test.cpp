#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "autodiff/engine.h"
#include "catch.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/normalize.h"
#include "ops/random.h"
#include "ops/view.h"
#include "tensor/tensor.h"

namespace tern {

namespace {

/// Infinities, and numbers so large that x / 0.9 is infinite.
Tensor extremes(DType dtype, const Shape& shape) {
  const double infinity = std::numeric_limits<double>::infinity();
  const double large = dtype == DType::f64 ? 1.7e308 : dtype == DType::f16 ? 65000 : 3.3e38;
  const double values[] = {infinity, large, 1, -infinity, -large, 0, -1.5};
  std::vector<double> elements(static_cast<std::size_t>(numel(shape)));
  for (std::size_t i = 0; i < elements.size(); ++i) elements[i] = values[i % std::size(values)];
  return cast(Tensor::from(elements, shape), dtype);
}

/// The elements that f makes on the device, with the same draws on all of them.
std::vector<double> elements_of(const std::function<Tensor(Device)>& f, Device device) {
  manual_seed(5);
  const Tensor result = cast(to(f(device), cpu), DType::f64);
  return result.to_vector<double>();
}

/// Calls check(f) for functions of a device that drop elements of extremes(dtype), alone and within other ops.
template <class F>
void for_each_dropout(DType dtype, F check) {
  for (const std::int64_t columns : {64, 61, 4096}) {
    check([=](Device device) { return dropout(to(extremes(dtype, {8, columns}), device), 0.1); });
    check([=](Device device) {
      const Tensor x = to(extremes(dtype, {8, columns}), device), ones = ones_like(x), zeros = zeros_like(x);
      return residual_layer_norm(x, zeros, select(ones, 0, 0), select(zeros, 0, 0), 1e-5, {.dropout = 0.1}).sum;
    });
    // Gradients so large that g / 0.9 is infinite.
    for (const bool with_norm : {false, true})
      check([=](Device device) {
        const Tensor x = ones({8, columns}, dtype, device).set_requires_grad();
        const Tensor y = with_norm ? residual_layer_norm(x, zeros_like(x), {}, {}, 1e-5, {.dropout = 0.1}).sum : dropout(x, 0.1);
        return grad({y}, {x}, {to(extremes(dtype, {8, columns}), device)})[0];
      });
  }
  check([=](Device device) {
    const Tensor table = to(extremes(dtype, {8, 64}), device),
                 ids = to(Tensor::from(std::vector<std::int64_t>{0, 7, 3, 5}, {2, 2}), device);
    return embedding(table, zeros_like(table), ids, 0.1);
  });
}

}  // namespace

TEST_CASE("Dropout of infinite and of very large numbers is 0, infinite, or the quotient") {
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16})
    for_each_dropout(dtype, [&](auto f) {
      INFO(name(dtype));
      for (const double x : elements_of(f, cpu)) CHECK((std::isinf(x) || std::abs(x) < 2));
    });
}

TEST_CASE("Dropout of infinite and of very large numbers on the GPU is what the CPU makes of them", "[cuda]") {
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16})
    for_each_dropout(dtype, [&](auto f) {
      INFO(name(dtype));
      CHECK(elements_of(f, cuda()) == elements_of(f, cpu));
    });
}

}  // namespace tern
