// vjp and jvp against the Jacobian that differences give, for composed, fused, integer and constant outputs.
#include <cmath>

#include "autodiff/engine.h"
#include "catch.h"
#include "message.h"
#include "ops/attention.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/loss.h"
#include "ops/matmul.h"
#include "ops/normalize.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "values.h"

namespace tern {

namespace {

using Doubles = std::vector<double>;

double inner_product(const Tensor& a, const Tensor& b) { return sum(a * b).item<double>(); }

/// The derivative of f's outputs along the tangents by central differences.
Tensors differences(const TensorFunction& f, const Tensors& inputs, const Tensors& tangents) {
  const double h = 1e-5;
  const auto at = [&](double t) {
    const NoGrad unrecorded;
    Tensors moved;
    for (std::size_t i = 0; i < inputs.size(); ++i) moved.push_back(tangents[i].defined() ? inputs[i] + t * tangents[i] : inputs[i]);
    return f(moved);
  };
  const Tensors high = at(h), low = at(-h);
  Tensors result;
  for (std::size_t i = 0; i < high.size(); ++i) result.push_back(is_floating(high[i].dtype()) ? (high[i] - low[i]) / (2 * h) : Tensor());
  return result;
}

void check(const TensorFunction& f, const Tensors& inputs) {
  Tensors tangents;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    tangents.push_back(is_floating(inputs[i].dtype()) ? values(50 + i, inputs[i].shape()) : Tensor());
  const JacobianProduct forward = jvp(f, inputs, tangents);
  const Tensors wanted = differences(f, inputs, tangents);
  REQUIRE(forward.products.size() == wanted.size());
  Tensors cotangents;
  double from_jvp = 0, from_vjp = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    CHECK(forward.products[i].defined() == wanted[i].defined());
    cotangents.push_back(wanted[i].defined() ? values(70 + i, wanted[i].shape()) : Tensor());
    if (!wanted[i].defined()) continue;
    CHECK_FALSE(forward.products[i].requires_grad());
    CHECK(max(abs(forward.products[i] - wanted[i])).item<double>() < 1e-8);
    from_jvp += inner_product(cotangents[i], wanted[i]);
  }
  // u^T (J t) from the differences is (u^T J) t.
  const JacobianProduct backward = vjp(f, inputs, cotangents);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    CHECK(backward.products[i].defined() == tangents[i].defined());
    if (tangents[i].defined()) from_vjp += inner_product(backward.products[i], tangents[i]);
  }
  CHECK(from_vjp == Approx(from_jvp).epsilon(1e-7));
}

struct HalfKernel : Function<HalfKernel> {
  static Tensor forward(Tensors& saved, const Tensor& x) {
    saved = {x};
    return square(x);
  }
  static Tensors backward(const Backward& call) {
    const Tensor x = call.saved(0), g = call.grad(), result = empty(x.shape(), DType::f64);
    for (std::int64_t i = 0; i < x.numel(); ++i) result.data<double>()[i] = 2 * x.data<double>()[i] * g.data<double>()[i];
    return {result};
  }
};

}  // namespace

TEST_CASE("jvp and vjp agree with differences") {
  check([](const Tensors& x) { return Tensors{sin(x[0]) * x[1], sum(exp(x[0]), {1})}; }, {values(1, {3, 5}), values(2, {3, 5})});
  check([](const Tensors& x) { return Tensors{matmul(x[0], x[1])}; }, {values(1, {3, 5}), values(2, {5, 2})});
  check([](const Tensors& x) { return Tensors{layer_norm(x[0], x[1], x[2])}; }, {values(1, {3, 5}), values(2, {5}), values(3, {5})});
  check([](const Tensors& x) { return Tensors{softmax(x[0], 1), log_softmax(x[0], 1)}; }, {values(1, {3, 5})});
  check([](const Tensors& x) { return Tensors{cross_entropy(x[0], x[1])}; },
        {values(1, {3, 5}), Tensor::from<std::int64_t>({4, 0, 2}, {3})});
  check([](const Tensors& x) { return Tensors{gelu(x[0]), argmax(x[0]), x[0]}; }, {values(1, {3, 5})});
  check([](const Tensors& x) { return Tensors{transpose(x[0], 0, 1) * 2.0, slice(x[0], 1, 1, 3), full({2}, 3, DType::f64)}; },
        {values(1, {3, 5})});
}

TEST_CASE("Rows of the Jacobian come from vjp, and its columns from jvp") {
  const TensorFunction f = [](const Tensors& x) { return Tensors{matmul(tanh(x[0]), x[0])}; };
  const Tensor x = values(5, {3, 3});
  std::vector<Doubles> rows, columns;
  for (std::int64_t i = 0; i < 9; ++i) {
    Doubles unit(9);
    unit[std::size_t(i)] = 1;
    rows.push_back(vjp(f, {x}, {Tensor::from(unit, {3, 3})}).products[0].to_vector<double>());
    columns.push_back(jvp(f, {x}, {Tensor::from(unit, {3, 3})}).products[0].to_vector<double>());
  }
  for (std::size_t i = 0; i < 9; ++i)
    for (std::size_t j = 0; j < 9; ++j) CHECK(rows[i][j] == Approx(columns[j][i]).margin(1e-13));
  CHECK(f({x})[0].to_vector<double>() == jvp(f, {x}, {x}).outputs[0].to_vector<double>());
}

TEST_CASE("jvp and vjp leave the caller's gradients and history alone, and work where nothing is recorded") {
  const Tensor x = values(5, {4}).set_requires_grad(), w = values(6, {4}).set_requires_grad();
  const TensorFunction f = [&](const Tensors& inputs) { return Tensors{inputs[0] * w}; };
  const NoGrad unrecorded;
  const JacobianProduct product = jvp(f, {x}, {ones({4}, DType::f64)});
  CHECK(product.products[0].to_vector<double>() == w.to_vector<double>());
  CHECK(vjp(f, {x}, {Tensor()}).products[0].to_vector<double>() == Doubles(4));
  CHECK(vjp(f, {x}, {ones({4}, DType::f64)}).products[0].to_vector<double>() == w.to_vector<double>());
  CHECK_FALSE(product.outputs[0].requires_grad());
  CHECK_FALSE(x.grad().defined());
  CHECK_FALSE(w.grad().defined());
}

TEST_CASE("jvp is an error where an op has no second derivative") {
  const TensorFunction f = [](const Tensors& x) { return Tensors{HalfKernel::apply(x[0] * x[0])}; };
  const Tensor x = values(5, {4});
  CHECK(contains(message_of([&] { jvp(f, {x}, {x}); }), "once differentiable"));
  const Doubles first = vjp(f, {x}, {ones({4}, DType::f64)}).products[0].to_vector<double>(), at = x.to_vector<double>();
  for (std::size_t i = 0; i < 4; ++i) CHECK(first[i] == Approx(4 * at[i] * at[i] * at[i]));
}

TEST_CASE("jvp and vjp refuse vectors of another form") {
  const TensorFunction f = [](const Tensors& x) { return Tensors{x[0] * 2.0}; };
  const Tensor x = values(5, {4});
  CHECK_THROWS_WITH(jvp(f, {x}, {}), "[jvp] expected 1 tangents, one for each, but got 0");
  CHECK_THROWS_WITH(jvp(f, {x}, {values(1, {3})}), "[jvp] expected tangent 0 of f64 (4,) on cpu but got f64 (3,) on cpu");
  CHECK_THROWS_WITH(vjp(f, {x}, {ones({4})}), "[vjp] expected cotangent 0 of f64 (4,) on cpu but got f32 (4,) on cpu");
  CHECK_THROWS_WITH(jvp(f, {arange(3)}, {arange(3)}), "[jvp] expected an undefined tangent 0 for a tensor that is not floating");
}

}  // namespace tern
