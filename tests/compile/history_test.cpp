// Results of compiled functions have a history: their gradients are those of the function as written.
#include <functional>

#include "autodiff/engine.h"
#include "backend/memory.h"
#include "catch.h"
#include "compile/compile.h"
#include "message.h"
#include "ops/factory.h"
#include "ops/matmul.h"
#include "ops/normalize.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "tensor/context.h"

using namespace tern;

namespace {

Tensor leaf(const Shape& shape, Device device = cpu) {
  Tensor x = randn(shape, 0, 1, DType::f32, device);
  x.set_requires_grad();
  return x;
}

std::vector<double> values_of(const Tensor& x) { return x.detach().to(DType::f64).to_vector<double>(); }
Tensor half(const Tensor& x) { return x * 0.5; }

}  // namespace

TEST_CASE("A compiled function is a part of a step as written") {
  // The same model twice: a hidden layer with dropout, whose loss and update are outside.
  const auto losses = [](bool is_compiled) {
    manual_seed(3);
    Tensor w = leaf({17, 33}), v = leaf({33, 5});
    const auto model = [&](const Tensor& x) { return matmul(dropout(relu(matmul(x, w)), 0.25), v); };
    auto f = tern::compile(model);
    std::vector<float> found;
    for (int step = 0; step < 14; ++step) {
      Tensor x = leaf({9, 17});
      const Tensor y = dropout(half(is_compiled ? f(x) : model(x)), 0.5);
      const Tensor loss = sum(y * y);
      loss.backward();
      found.push_back(loss.item<float>());
      found.push_back(sum(x.grad() * x).item<float>());
      const NoGrad unrecorded;
      for (Tensor p : {w, v}) sub_(p, p.grad() * 0.001), p.set_grad({});
    }
    if (is_compiled) {
      CHECK(f.programs() == 1);
      CHECK(f.runs() == 10);  // all but the first, two traced ones, and the tenth of these
    }
    return found;
  };
  CHECK(losses(true) == losses(false));
}

TEST_CASE("Gradients of a compiled function are the caller's, and its arguments are not needed any more") {
  Tensor w = leaf({300, 300});
  auto f = tern::compile([&](const Tensor& x) { return x * w * w; });
  Tensors held;
  for (int call = 0; call < 6; ++call) {
    const Tensor x = full({300, 300}, call);
    const Tensor y = f(x);
    if (call > 2) fill_(x, NAN);  // a program has a copy of it
    held.push_back(grad({sum(y)}, {w})[0]);
  }
  for (int call = 0; call < 6; ++call) CHECK(max(abs(held[static_cast<std::size_t>(call)] - w * (2.0 * call))).item<float>() < 1e-4f);
}

TEST_CASE("Calls of a compiled function before their backward passes keep what each needs") {
  Tensor w = leaf({6, 6});
  const auto written = [&](const Tensor& x) { return tanh(matmul(exp(matmul(x, w) * -0.1), w)); };
  auto f = tern::compile(written);
  for (int round = 0; round < 5; ++round) {
    Tensors xs;
    Tensor loss, want;
    w.set_grad({});
    for (int i = 0; i < 5; ++i) {
      xs.push_back(leaf({4, 6}));
      const Tensor y = f(xs.back());
      loss = loss.defined() ? loss + sum(y * y * static_cast<double>(i + 1)) : sum(y * y);
    }
    loss.backward();
    const Tensor got = w.grad();
    w.set_grad({});
    Tensors ys;
    for (const Tensor& x : xs) ys.push_back(x.detach()), ys.back().set_requires_grad();
    for (std::size_t i = 0; i < ys.size(); ++i) {
      const Tensor y = written(ys[i]);
      want = want.defined() ? want + sum(y * y * static_cast<double>(i + 1)) : sum(y * y);
    }
    want.backward();
    CHECK(max(abs(got - w.grad())).item<float>() < 1e-4f);
    for (std::size_t i = 0; i < xs.size(); ++i) CHECK(values_of(xs[i].grad()) == values_of(ys[i].grad()));
  }
  CHECK(f.programs() == 5);
}

TEST_CASE("Programs of many shapes share the memory that they keep for backward passes") {
  Tensor w = leaf({64, 64});
  const auto written = [&](const Tensor& x) { return matmul(exp(matmul(exp(matmul(x, w) * 0.01), w) * 0.01), w); };
  auto f = tern::compile(written);
  const std::size_t before = memory_statistics(cpu).allocated;
  constexpr std::size_t most = 64 * 128 * sizeof(float);  // of one value
  for (const bool is_awaited : {false, true})
    for (std::int64_t rows = 128; rows > 118; --rows)
      for (int call = 0; call < 4; ++call) {
        const Tensor y = f(ones({rows, 64})), other = is_awaited ? f(ones({rows, 64})) : y;
        sum(y * other).backward();
        w.set_grad({});
      }
  CHECK(f.programs() == 20);
  // Of each program its argument, its result, and the gradients of that and of w; and what two calls keep, and the arena.
  CHECK(memory_statistics(cpu).allocated - before < 20 * (3 * most + 64 * 64 * sizeof(float)) + 12 * most);
  // Programs that had the same memory, one after the other, wait for their backward passes together.
  const Tensor x = ones({128, 64}), y = ones({120, 64}) * 2.0;
  const auto gradient = [&](auto&& g) { return grad({sum(g(x)) + sum(g(y))}, {w})[0]; };
  CHECK(max(abs(gradient(f) - gradient(written))).item<float>() <= 1e-6f * max(abs(gradient(written))).item<float>());
}

TEST_CASE("More calls than programs before their backward pass run as written") {
  Tensor w = leaf({3, 3});
  auto f = tern::compile([&](const Tensor& h) { return tanh(matmul(h, w)); });
  const auto gradient = [&](auto&& cell) {
    Tensor h = full({1, 3}, 0.5);
    for (int t = 0; t < 70; ++t) h = cell(h);
    return grad({sum(h)}, {w})[0];
  };
  const Tensor want = gradient([&](const Tensor& h) { return tanh(matmul(h, w)); });
  for (int sequence = 0; sequence < 4; ++sequence) CHECK(max(abs(gradient(f) - want)).item<float>() < 1e-6f);
  CHECK(f.programs() == 1 + 32);
  CHECK(f.runs() == 1 + 2 * 32);  // the first step of the last sequence, and those of the last two
}

TEST_CASE("A function that was called without a backward pass is compiled without one") {
  Tensor w = leaf({3});
  auto f = tern::compile([&](const Tensor& x) { return exp(x * w); });
  const Tensor x = ones({3});
  for (int call = 0; call < 12; ++call) CHECK(values_of(f(x)) == values_of(exp(x * w).detach()));
  CHECK(f.programs() == 1);
  CHECK(f.runs() == 8);
  CHECK(contains(message_of([&] { sum(f(x)).backward(); }), "got one of a later call: call it under NoGrad where no pass follows"));
  for (int call = 0; call < 4; ++call) {
    w.set_grad({});
    sum(f(x)).backward();
    CHECK(values_of(w.grad()) == values_of(exp(x * w).detach()));
  }
  // The second call of another kind shows that a pass follows, the third is compared with it.
  for (int call = 0; call < 5; ++call) {
    const Tensor y = sum(f(ones({1})));
    if (call > 0) y.backward();
    CHECK(f.runs() == 11 + std::max(0, call - 2));
  }
  // Evaluation in between is of another kind.
  const NoGrad unrecorded;
  CHECK_FALSE(f(x).requires_grad());
}

TEST_CASE("Results with and without a history, that are arguments, leaves and integers") {
  Tensor w = leaf({4}), u = leaf({4});
  const auto written = [&](const Tensor& x, const Tensor& c) -> Tensors {
    return {x * w, x.detach() * 2.0, argmax(x, 0), x, w, reshape(u, {2, 2}), c + 1.0, Tensor()};
  };
  auto f = tern::compile([&](const Tensors& in) { return written(in[0], in[1]); });
  for (int call = 0; call < 5; ++call) {
    Tensor x = leaf({4});
    const Tensor c = randn({4});
    for (Tensor p : {w, u}) p.set_grad({});
    const Tensors got = f({x, c}), want = written(x, c);
    REQUIRE(got.size() == want.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      CHECK(got[i].defined() == want[i].defined());
      if (!got[i].defined()) continue;
      CHECK(got[i].requires_grad() == want[i].requires_grad());
      CHECK(values_of(got[i]) == values_of(want[i].detach()));
    }
    const auto gradients = [&](const Tensors& y) {  // no gradient arrives at y[5]
      return grad({sum(y[0] * y[3]) + sum(y[4] * 3.0)}, {x, w, u});
    };
    const Tensors a = gradients(got), b = gradients(want);
    for (std::size_t i = 0; i < 2; ++i) CHECK(max(abs(a[i] - b[i])).item<float>() <= 1e-6f);
    if (a[2].defined()) CHECK(max(abs(a[2])).item<float>() == 0);
  }
}

TEST_CASE("Running means are those of the calls, with and without backward passes") {
  struct Norm {
    Tensor gamma = leaf({3}), beta = leaf({3}), running = zeros({3});
    Tensor operator()(const Tensor& x) const {
      const BatchNormResult result = batch_norm(x, gamma, beta);
      const NoGrad unrecorded;
      add_(mul_(running, 0.9), result.mean * 0.1);
      return result.y;
    }
  };
  manual_seed(1);
  const Norm norm;
  manual_seed(1);
  const Norm same;
  auto f = tern::compile(std::cref(norm));
  for (int call = 0; call < 12; ++call) {
    const Tensor x = randn({4, 3, 5, 5});
    const Tensor y = f(x), want = same(x);
    CHECK(values_of(y) == values_of(want));
    CHECK(values_of(norm.running) == values_of(same.running));
    if (call % 3 == 2) continue;
    const Tensors got = grad({sum(y * y)}, {norm.gamma, norm.beta}), as_written = grad({sum(want * want)}, {same.gamma, same.beta});
    for (std::size_t i = 0; i < 2; ++i) CHECK(values_of(got[i]) == values_of(as_written[i]));
  }
}

TEST_CASE("An edit from outside is done in the call, though a kernel of the backward pass could take it in") {
  struct Product : Function<Product> {  // with a backward that is one elementwise kernel
    static Tensor forward(Tensors& saved, const Tensor& x, const Tensor& w, const Tensor& total) {
      saved = {total};
      return matmul(x, w);
    }
    static Tensors backward(const Backward& call) { return {Tensor(), call.grad() * call.saved(0), Tensor()}; }
  };
  Tensor w = leaf({300, 300}), total = zeros({300, 300});
  auto f = tern::compile([&](const Tensor& x) {
    {
      const NoGrad unrecorded;
      add_(total, w);
    }
    return Product::apply(x, w, total);
  });
  for (int call = 0; call < 8; ++call) {
    const Tensor y = sum(f(ones({300, 300})));
    CHECK(max(abs(total - w * static_cast<double>(call + 1))).item<float>() < 1e-4f);
    CHECK(values_of(grad({y}, {w})[0]) == values_of(total));
  }
}

TEST_CASE("The result of a step has no history if the step has used it") {
  Tensor w = leaf({3});
  auto step = tern::compile([&](const Tensor& x) -> Tensors {
    const Tensor loss = sum(x * w);
    loss.backward();
    return {loss, loss * 2.0};
  });
  for (int call = 0; call < 5; ++call)
    for (const Tensor& result : step(ones({3}))) CHECK_FALSE(result.requires_grad());
  CHECK(step.runs() == 2);
}

TEST_CASE("Backward passes of compiled functions that cannot be right are refused") {
  Tensor w = leaf({4});
  auto f = tern::compile([&](const Tensor& x) { return tanh(x * w) * w; });
  for (int call = 0; call < 4; ++call) sum(f(ones({4}))).backward();
  const auto replayed = [&] { return f(ones({4})); };
  SECTION("a second one") {
    const Tensor y = sum(replayed());
    backward({y}, {}, true);
    CHECK(message_of([&] { y.backward(); }) == "[compile] expected one backward pass for each call but got a second one");
  }
  SECTION("one to be differentiated again") {
    CHECK(contains(message_of([&] { grad({sum(replayed())}, {w}, {}, true); }), "expected no create_graph"));
  }
  SECTION("one of what was edited since") {
    const Tensor y = replayed();
    {
      const NoGrad unrecorded;
      mul_(w, 2.0);
    }
    CHECK(contains(message_of([&] { sum(y).backward(); }), "of it were edited in place"));
  }
  SECTION("one that draws random numbers") {
    struct Noisy : Function<Noisy> {
      static Tensor forward(Tensors&, const Tensor& x) { return x * 2.0; }
      static Tensors backward(const Backward& call) { return {call.grad() * rand({4})}; }
    };
    auto g = tern::compile([&](const Tensor& x) { return Noisy::apply(x * w); });
    sum(g(ones({4}))).backward();
    CHECK(contains(message_of([&] { sum(g(ones({4}))).backward(); }), "expected a backward pass that draws no random numbers"));
  }
  SECTION("a history from outside") {
    const Tensor h = w * 2.0;
    auto g = tern::compile([&](const Tensor& x) { return x * h; });
    sum(g(ones({4}))).backward();
    CHECK(contains(message_of([&] { g(ones({4})); }), "got a history from outside, of mul: pass its tensor as an argument"));
  }
  for (int call = 0; call < 4; ++call) {  // the function goes on
    w.set_grad({});
    sum(replayed()).backward();
    const Tensor y = tanh(w.detach());
    CHECK(max(abs(w.grad() - (y + w.detach() * (1.0 - y * y)))).item<float>() < 1e-5f);
  }
}

TEST_CASE("A history outlives its compiled function") {
  Tensor w = leaf({5});
  Tensor y;
  {
    auto f = tern::compile([&](const Tensor& x) { return exp(x * w); });
    for (int call = 0; call < 4; ++call) sum(f(ones({5}))).backward();
    y = f(ones({5}));
    auto moved = std::move(f);
  }
  w.set_grad({});
  sum(y).backward();
  CHECK(values_of(w.grad()) == values_of(exp(w).detach()));
}
