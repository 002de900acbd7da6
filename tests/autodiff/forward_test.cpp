// Forward mode: memory, Hessian-vector products, a jvp within a jvp, what ends tangents, what is refused. Every op: ops/op_jvp_test.cpp.
#include "autodiff/engine.h"
#include "catch.h"
#include "message.h"
#include "ops/autocast.h"
#include "ops/captured_step.h"
#include "ops/checkpoint.h"
#include "ops/factory.h"
#include "ops/matmul.h"
#include "ops/normalize.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "values.h"

namespace tern {

namespace {

double distance(const Tensor& a, const Tensor& b) { return max(abs(a - b)).item<double>(); }

/// The derivative of the vjp with respect to its cotangents, by two reverse passes: jvp without forward mode (Townsend, 2017).
Tensor by_two_passes(const std::function<Tensor(const Tensor&)>& f, const Tensor& x, const Tensor& tangent) {
  Tensor leaf = x.detach();
  leaf.set_requires_grad();
  const Tensor y = f(leaf), u = zeros_like(y).set_requires_grad();
  return grad({grad({y}, {leaf}, {u}, true)[0]}, {u}, {tangent})[0];
}

/// A block of a network, from rows (N, 16) to rows.
Tensor block(const Tensor& x, const Tensor& w) { return layer_norm(x + matmul(gelu(matmul(x, w)), transpose(w, 0, 1)), {}, {}); }

const Tensor& weights() {
  static const Tensor w = values(3, {16, 16});
  return w;
}

/// A number, of which the Hessian is not diagonal.
Tensor loss(const Tensor& x) { return sum(square(block(block(x, weights()), weights())) * values(4, {16})); }

Tensor gradient_of_loss(const Tensor& x) {
  return vjp([](const Tensors& in) -> Tensors { return {loss(in[0])}; }, {x}, {ones({}, DType::f64)}).products[0];
}

JacobianProduct jvp_of(const std::function<Tensor(const Tensor&)>& f, const Tensor& x, const Tensor& tangent) {
  return jvp([&](const Tensors& in) -> Tensors { return {f(in[0])}; }, {x}, {tangent});
}

}  // namespace

TEST_CASE("jvp keeps no more memory of a deep function than of a flat one") {
  // Weights that are trained keep no graph either.
  Tensor w = weights().detach();
  w.set_requires_grad();
  const Tensor x = values(1, {256, 16}), t = values(2, {256, 16});
  const auto peak_of = [&](int layers) {
    const std::size_t before = memory_statistics(cpu).allocated;
    reset_peak_memory(cpu);
    const JacobianProduct found = jvp_of(
        [&](const Tensor& in) {
          Tensor y = in;
          for (int i = 0; i < layers; ++i) y = block(y, w);
          return y;
        },
        x, t);
    CHECK_FALSE(found.outputs[0].requires_grad());
    return memory_statistics(cpu).peak_allocated - before;
  };
  peak_of(1);  // what the allocator and the kernels keep from then on
  const std::size_t values_alone = [&] {
    const NoGrad unrecorded;
    const std::size_t before = memory_statistics(cpu).allocated;
    reset_peak_memory(cpu);
    block(x, w);
    return memory_statistics(cpu).peak_allocated - before;
  }();
  const std::size_t flat = peak_of(8), deep = peak_of(64), bytes = 256 * 16 * 8;
  CHECK(deep <= flat + bytes / 8);
  CHECK(flat < values_alone + 8 * bytes);  // a graph of 8 blocks keeps more than 40 such tensors
}

TEST_CASE("Hessian-vector products by jvp of a gradient are those of two reverse passes") {
  const Tensor x = values(1, {5, 16}), t = values(2, {5, 16});
  Tensor leaf = x.detach();
  leaf.set_requires_grad();
  const Tensor want = grad({grad({loss(leaf)}, {leaf}, {}, true)[0]}, {leaf}, {t})[0];
  const JacobianProduct found = jvp_of(gradient_of_loss, x, t);
  CHECK(distance(found.products[0], want) < 1e-11);
  CHECK_FALSE(found.products[0].requires_grad());
  CHECK(distance(found.outputs[0], grad({loss(leaf)}, {leaf})[0]) < 1e-12);

  const auto by_grad = [](bool create_graph) {
    return [create_graph](const Tensor& in) {
      const GradMode recorded(true);
      Tensor own = in;
      own.set_requires_grad();
      return grad({loss(own)}, {own}, {}, create_graph)[0];
    };
  };
  CHECK(distance(jvp_of(by_grad(false), x, t).products[0], want) < 1e-11);
  CHECK(distance(jvp_of(by_grad(true), x, t).products[0], want) < 1e-11);
}

TEST_CASE("A gradient within jvp follows the tangent of its cotangent alone") {
  // f is linear, so that no tangent but that of u reaches f's vjp: J^T t.
  const Tensor w = weights(), x = values(1, {4, 16}), t = values(2, {4, 16});
  const auto linear_vjp = [&](const Tensor& u) {
    return vjp([&](const Tensors& in) -> Tensors { return {matmul(in[0], w)}; }, {x}, {u}).products[0];
  };
  CHECK(distance(jvp_of(linear_vjp, values(5, {4, 16}), t).products[0], matmul(t, transpose(w, 0, 1))) < 1e-13);
}

TEST_CASE("A jvp within a jvp has tangents of its own") {
  const Tensor x = values(1, {5, 16}), s = values(2, {5, 16}), t = values(3, {5, 16});
  const auto inner = [&](const Tensor& in) { return jvp_of(loss, in, s).products[0]; };
  // s^T H t, as the Hessian-vector product gives it.
  const double want = sum(s * jvp_of(gradient_of_loss, x, t).products[0]).item<double>();
  CHECK(jvp_of(inner, x, t).products[0].item<double>() == Approx(want).epsilon(1e-11));

  // x (d/dy of x y at y) is x^2, whose derivative is 2 x: the tangents of x and y are not to be confused.
  const Tensor two = full({}, 2, DType::f64), one = ones({}, DType::f64);
  const auto confusing = [&](const Tensor& a) {
    return a * jvp_of([&](const Tensor& y) { return a * y; }, full({}, 7, DType::f64), one).products[0];
  };
  CHECK(jvp_of(confusing, two, one).products[0].item<double>() == 4);
  // The inner function's output depends on the outer input alone.
  const auto constant = [&](const Tensor& a) { return jvp_of([&](const Tensor&) { return a * a; }, one, one); };
  CHECK(jvp_of([&](const Tensor& a) { return constant(a).products[0]; }, two, one).products[0].item<double>() == 0);
  CHECK(jvp_of([&](const Tensor& a) { return constant(a).outputs[0]; }, two, one).products[0].item<double>() == 4);
}

TEST_CASE("detach, NoGrad and integers end tangents") {
  const Tensor x = values(1, {6}), t = values(2, {6});
  CHECK(distance(jvp_of([](const Tensor& in) { return in * in.detach(); }, x, t).products[0], t * x) < 1e-15);
  const auto unrecorded = [](const Tensor& in) {
    const Tensor scale = [&] {
      const NoGrad constant;
      return exp(in) * jvp_of([](const Tensor& y) { return y * y; }, in, in).products[0];
    }();
    return in * scale;
  };
  CHECK(distance(jvp_of(unrecorded, x, t).products[0], t * exp(x) * square(x) * 2) < 1e-15);
  CHECK(distance(jvp_of([](const Tensor& in) { return in * cast(gt(in, 0), DType::f64); }, x, t).products[0],
                 t * cast(gt(x, 0), DType::f64)) == 0);
  // A tensor that outlives its jvp is a constant from then on.
  Tensor kept;
  jvp_of([&](const Tensor& in) { return kept = in * 2.0; }, x, t);
  CHECK(distance(jvp_of([&](const Tensor& in) { return in * kept; }, x, t).products[0], t * kept) == 0);
}

TEST_CASE("Views of a tensor have views of its tangent") {
  const Tensor x = values(1, {4, 6}), t = values(2, {4, 6});
  const JacobianProduct found = jvp(
      [](const Tensors& in) {
        Tensors parts = split(transpose(in[0], 0, 1), {1, 5}, 0);
        parts.push_back(slice(in[0], 1, 1, 6, 2));
        parts.push_back(expand(unsqueeze(in[0], 0), {3, 4, 6}));
        return parts;
      },
      {x}, {t});
  for (const Tensor& product : found.products) CHECK(product.impl().storage == found.products[0].impl().storage);
  CHECK(distance(found.products[2], slice(t, 1, 1, 6, 2)) == 0);
  CHECK(found.products[3].strides()[0] == 0);
}

TEST_CASE("The tangent of dropout is dropped where the value is") {
  const Tensor x = ones({1000}, DType::f64), t = values(2, {1000});
  manual_seed(5);
  const JacobianProduct found = jvp_of([](const Tensor& in) { return dropout(in, 0.3); }, x, t);
  CHECK(distance(found.products[0], found.outputs[0] * t) < 1e-15);
  manual_seed(5);
  CHECK(distance(dropout(x, 0.3), found.outputs[0]) == 0);
  CHECK(min(found.outputs[0]).item<double>() == 0);
  const Tensor next = randn({8});  // tangents draw nothing
  manual_seed(5);
  dropout(x, 0.3);
  CHECK(distance(randn({8}), next) == 0);
}

TEST_CASE("jvp goes through checkpointed functions, and so does jvp of their gradient") {
  const Tensor x = values(1, {5, 16}), t = values(2, {5, 16});
  const auto run = [&](CheckpointPolicy policy) {
    const std::function<Tensor(const Tensor&)> f = [=](const Tensor& in) {
      return sum(square(checkpoint([](const Tensor& rows) { return block(gelu(rows) * rows, weights()); }, in, policy)) * values(4, {16}));
    };
    const auto gradient = [=](const Tensor& in) {
      return vjp([&](const Tensors& y) -> Tensors { return {f(y[0])}; }, {in}, {ones({}, DType::f64)}).products[0];
    };
    return Tensors{jvp_of(f, x, t).products[0], jvp_of(gradient, x, t).products[0]};
  };
  const Tensors want = run(CheckpointPolicy::none);
  for (const CheckpointPolicy policy : {CheckpointPolicy::full, CheckpointPolicy::selective}) {
    INFO(name(policy));
    const Tensors found = run(policy);
    CHECK(distance(found[0], want[0]) == 0);
    CHECK(distance(found[1], want[1]) < 1e-12);
  }
}

TEST_CASE("Tangents have the dtypes that autocast chose for the values") {
  const Tensor x = cast(values(1, {8, 16}), DType::f32), t = cast(values(2, {8, 16}), DType::f32), w = cast(weights(), DType::f32);
  const std::function<Tensor(const Tensor&)> f = [&](const Tensor& in) {
    const Autocast lower(DType::bf16);
    return matmul(in, w);
  };
  const JacobianProduct found = jvp_of(f, x, t);
  CHECK(found.outputs[0].dtype() == DType::bf16);
  CHECK(found.products[0].dtype() == DType::bf16);
  CHECK(max(abs(cast(found.products[0], DType::f32) - by_two_passes([&](const Tensor& in) { return cast(f(in), DType::f32); }, x, t)))
            .item<float>() < 0.03f);
}

TEST_CASE("A function that jvp differentiates is told where it edits, accumulates or finds no graph") {
  const Tensor x = values(1, {4}), t = values(2, {4});
  const auto message = [&](const std::function<Tensor(const Tensor&)>& f) { return message_of([&] { jvp_of(f, x, t); }); };
  CHECK(
      contains(message([](const Tensor& in) { return add_(in * 2.0, in); }), "[add_] expected an in-place edit of (4,) outside autograd"));
  CHECK(contains(message([](const Tensor& in) {
                   const Tensor y = in * 2.0;
                   {
                     const NoGrad unrecorded;
                     add_(y, 1.0);
                   }
                   return exp(y);
                 }),
                 "[exp] expected the operand (4,) of a function that jvp differentiates to be unchanged"));
  CHECK(contains(message([](const Tensor& in) {
                   const GradMode recorded(true);
                   Tensor leaf = in;
                   leaf.set_requires_grad();
                   sum(leaf * leaf).backward();
                   return leaf.grad();
                 }),
                 "[backward] expected a function that jvp differentiates to call grad() or vjp()"));
  CHECK(contains(message([](const Tensor& in) {
                   Tensor leaf = in;
                   leaf.set_requires_grad();
                   return grad({sum(leaf * leaf)}, {leaf})[0];
                 }),
                 "jvp records nothing, but where the function calls vjp() or opens GradMode(true)"));
}

TEST_CASE("A captured step refuses inputs with tangents", "[cuda]") {
  CapturedStep step([](const Tensors& in) { return sum(in[0]); }, cuda());
  const Tensor x = ones({4}, DType::f32, cuda());
  CHECK(contains(message_of([&] { jvp_of([&](const Tensor& in) { return step({in}); }, x, x); }),
                 "[CapturedStep] expected inputs without tangents"));
}

TEST_CASE("A backward pass of something else within jvp adds to leaves as ever") {
  Tensor w = values(3, {4});
  w.set_requires_grad();
  const Tensor x = values(1, {4}), t = values(2, {4});
  const JacobianProduct found = jvp_of(
      [&](const Tensor& in) {
        const GradMode recorded(true);
        sum(w * w).backward();
        return in * w.detach();
      },
      x, t);
  CHECK(distance(w.grad(), w.detach() * 2.0) == 0);
  CHECK(distance(found.products[0], t * w.detach()) == 0);
}

}  // namespace tern
