// vjp and jvp beside their derivatives, which ops/op_jvp_test.cpp holds against differences for every op.
#include "autodiff/engine.h"
#include "catch.h"
#include "message.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/loss.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "values.h"

namespace tern {

namespace {

struct HalfKernel : Function<HalfKernel> {
  static Tensor forward(Tensors& saved, const Tensor& x) {
    saved = {x};
    return square(x);
  }
  static Tensors backward(const Backward& call) {
    const Tensor x = call.saved(0), g = contiguous(call.grad()), result = empty(x.shape(), DType::f64);
    for (std::int64_t i = 0; i < x.numel(); ++i) result.data<double>()[i] = 2 * x.data<double>()[i] * g.data<double>()[i];
    return {result};
  }
};

}  // namespace

TEST_CASE("jvp and vjp of an integer output are undefined, and of a constant one zero") {
  const Tensor x = values(1, {3, 5}), t = values(50, {3, 5}), u = values(70, {3, 5});
  const TensorFunction f = [](const Tensors& in) { return Tensors{argmax(in[0]), full({2}, 3, DType::f64), in[0]}; };
  const JacobianProduct forward = jvp(f, {x}, {t}), backward = vjp(f, {x}, {Tensor(), ones({2}, DType::f64), u});
  CHECK_FALSE(forward.products[0].defined());
  CHECK(forward.products[1].to_vector<double>() == Doubles(2));
  CHECK(forward.products[2].to_vector<double>() == t.to_vector<double>());
  CHECK(backward.products[0].to_vector<double>() == u.to_vector<double>());
  // And of an integer input.
  const TensorFunction loss = [](const Tensors& in) { return Tensors{cross_entropy(in[0], in[1])}; };
  const Tensor targets = Tensor::from<std::int64_t>({4, 0, 2}, {3});
  CHECK(jvp(loss, {x, targets}, {t, Tensor()}).products[0].defined());
  CHECK_FALSE(vjp(loss, {x, targets}, {ones({}, DType::f64)}).products[1].defined());
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
