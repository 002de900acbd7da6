// The backward pass: accumulation, graphs of every shape, higher orders, what is freed and what is not.
#include <cmath>
#include <functional>

#include "autodiff/engine.h"
#include "catch.h"
#include "message.h"
#include "ops/factory.h"
#include "ops/gradcheck.h"
#include "ops/index.h"
#include "ops/loss.h"
#include "ops/matmul.h"
#include "ops/normalize.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "values.h"

namespace tern {

TEST_CASE("backward adds to the gradients of leaves") {
  const Tensor x = leaf({1, 2, 3}), y = leaf({4, 5, 6});
  CHECK_FALSE(x.grad().defined());
  sum(x * y).backward();
  CHECK(list(x.grad()) == Doubles{4, 5, 6});
  CHECK(list(y.grad()) == Doubles{1, 2, 3});
  sum(x * 10).backward();
  CHECK(list(x.grad()) == Doubles{14, 15, 16});
  CHECK(list(y.grad()) == Doubles{1, 2, 3});
  CHECK_FALSE(x.grad().requires_grad());
}

TEST_CASE("A leaf's own backward is its gradient") {
  const Tensor x = leaf(3);
  x.backward();
  x.backward();
  CHECK(x.grad().item<double>() == 2);
}

TEST_CASE("A value used more than once gathers all its gradients") {
  const Tensor x = leaf(3);
  const Tensor a = x * x, b = a + x, c = a * b;  // x^4 + x^3
  (c + c).backward();
  CHECK(x.grad().item<double>() == 2 * (4 * 27 + 3 * 9));
  // One tensor as both operands.
  const Tensor z = leaf({2, 3});
  sum(matmul(reshape(z, {1, 2}), reshape(z, {2, 1}))).backward();
  CHECK(list(z.grad()) == Doubles{4, 6});
}

TEST_CASE("A ladder of diamonds costs each node once") {
  const Tensor x = leaf(1);
  Tensor y = x;
  for (int i = 0; i < 50; ++i) y = (y + y) * 0.5 + 0.0;  // 2^50 paths
  y.backward();
  CHECK(x.grad().item<double>() == 1);
}

TEST_CASE("Gradients keep the shape of a leaf that was broadcast") {
  const Tensor x = leaf({1, 2, 3}, {3, 1}), y = leaf(2);
  sum(x * y + zeros({2, 3, 4}, DType::f64)).backward();
  CHECK(x.grad().shape() == Shape{3, 1});
  CHECK(list(x.grad()) == Doubles{16, 16, 16});
  CHECK(y.grad().shape() == Shape{});
  CHECK(y.grad().item<double>() == 48);
}

TEST_CASE("Derivatives of higher order") {
  const Tensor x = leaf(3);
  Tensor d = pow(x, 4);
  for (double want : {108.0, 108.0, 72.0, 24.0}) {
    d = grad({d}, {x}, {}, true)[0];
    CHECK(d.item<double>() == Approx(want));
  }
  CHECK(d.requires_grad());
  Tensor s = sin(x);
  for (double want : {std::cos(3.0), -std::sin(3.0), -std::cos(3.0), std::sin(3.0), std::cos(3.0)}) {
    s = grad({s}, {x}, {}, true)[0];
    CHECK(s.item<double>() == Approx(want));
  }
  CHECK_FALSE(x.grad().defined());
  // The Hessian of x^T A x is A + A^T.
  const Tensor v = leaf({1, 2}), a = Tensor::from(Doubles{1, 2, 3, 4}, {2, 2});
  const Tensor g = grad({matmul(v, matmul(a, v))}, {v}, {}, true)[0];
  CHECK(list(grad({select(g, 0, 0)}, {v}, {}, false, true)[0]) == Doubles{2, 5});
  CHECK(list(grad({select(g, 0, 1)}, {v})[0]) == Doubles{5, 8});
}

TEST_CASE("create_graph makes accumulated gradients differentiable") {
  const Tensor x = leaf(2);
  pow(x, 3).backward({}, false, true);
  CHECK(x.grad().requires_grad());
  const Tensor penalty = square(x.grad());  // 9 x^4
  CHECK(grad({penalty}, {x})[0].item<double>() == 9 * 4 * 8);
  Tensor(x).set_grad({});  // which the leaf keeps alive, and itself with it
  // Without it the gradient is plain again.
  const Tensor y = leaf(2);
  pow(y, 3).backward();
  CHECK_FALSE(y.grad().requires_grad());
}

TEST_CASE("Only floating leaves ask for gradients, only in grad mode are ops recorded") {
  std::string message;
  CHECK_THROWS_WITH(arange(3).set_requires_grad(), "[set_requires_grad] expected a floating dtype but got i64");
  const Tensor x = leaf({1, 2});
  {
    const NoGrad unrecorded;
    CHECK_FALSE((x * 2).requires_grad());
    CHECK(x.requires_grad());
    const GradMode recorded(true);
    CHECK((x * 2).requires_grad());
  }
  CHECK((x * 2).requires_grad());
  CHECK_FALSE((x * 2).is_leaf());
  CHECK(x.is_leaf());
  CHECK_FALSE((x.detach() * 2).requires_grad());
  CHECK_FALSE(gt(x, 1).requires_grad());
  CHECK_FALSE(cast(x, DType::i64).requires_grad());
  message = message_of([&] { (x * 2).set_requires_grad(false); });
  CHECK(contains(message, "[set_requires_grad] expected a leaf"));
  Tensor y = leaf({1});
  y.set_requires_grad(false);
  CHECK_FALSE((y * 2).requires_grad());
}

TEST_CASE("detach cuts the graph and shares the memory") {
  const Tensor x = leaf({1, 2});
  const Tensor y = x * 3, z = y.detach();
  CHECK(z.is_leaf());
  CHECK(z.data<double>() == y.data<double>());
  sum(y * z).backward();
  CHECK(list(x.grad()) == Doubles{9, 18});
}

TEST_CASE("grad takes any tensors of the graph, and leaves accumulate nothing") {
  const Tensor x = leaf({1, 2});
  const Tensor y = x * 3, z = sum(y * y);
  const Tensors g = grad({z}, {y, x, z}, {}, false, true);
  CHECK(list(g[0]) == Doubles{6, 12});
  CHECK(list(g[1]) == Doubles{18, 36});
  CHECK(g[2].item<double>() == 1);
  CHECK_FALSE(x.grad().defined());
  CHECK_THROWS_WITH(grad({z}, {x.detach()}), "[grad] expected input 0 to require a gradient");
}

TEST_CASE("An input that an output does not depend on has an undefined gradient") {
  const Tensor x = leaf({1, 2}), unused = leaf({3});
  const Tensors g = grad({sum(x)}, {unused, x});
  CHECK_FALSE(g[0].defined());
  CHECK(list(g[1]) == Doubles{1, 1});
}

TEST_CASE("Several outputs at once, with given gradients") {
  const Tensor x = leaf({1, 2});
  const Tensor a = x * 2, b = x * x;
  backward({a, b}, {Tensor::from(Doubles{1, 10}, {2}), Tensor::from(Doubles{100, 1000}, {2})});
  CHECK(list(x.grad()) == Doubles{202, 4020});
  // One output twice counts twice.
  const Tensor y = leaf(5), z = y * 2;
  backward({z, z});
  CHECK(y.grad().item<double>() == 4);
}

TEST_CASE("Gradients that do not fit are errors") {
  std::string message;
  const Tensor x = leaf({1, 2});
  message = message_of([&] { (x * 2).backward(); });
  CHECK(contains(message, "[backward] expected a gradient for an output of shape (2,)"));
  message = message_of([&] { (x * 2).backward(ones({3}, DType::f64)); });
  CHECK(contains(message, "expected a gradient of shape (2,), f64 but got (3,), f64"));
  message = message_of([&] { (x * 2).backward(ones({2})); });
  CHECK(contains(message, "expected a gradient of shape (2,), f64 but got (2,), f32"));
  message = message_of([&] { ones({}).backward(); });
  CHECK(contains(message, "[backward] expected a tensor that was computed from one that requires a gradient"));
  CHECK_THROWS_WITH(backward({sum(x), sum(x)}, {ones({}, DType::f64)}), "[backward] expected 2 gradients of outputs but got 1");
  CHECK_THROWS_AS(Tensor().backward(), Error);
}

TEST_CASE("A graph is freed by its backward pass unless it is retained") {
  std::string message;
  const Tensor x = leaf({1, 2});
  const Tensor y = sum(exp(x));
  y.backward({}, true);
  y.backward();
  CHECK(x.grad().to_vector<double>()[0] == Approx(2 * std::exp(1.0)));
  message = message_of([&] { y.backward(); });
  CHECK(contains(message, "[backward] expected a graph that is still alive, but 'sum' was freed"));
  CHECK(contains(message, "retain_graph"));
  // Half of a graph: the shared part is gone.
  const Tensor shared = exp(x);
  sum(shared).backward();
  message = message_of([&] { sum(shared * 2).backward(); });
  CHECK(contains(message, "'exp' was freed"));
}

TEST_CASE("What an op saved is released with the pass, and with the graph") {
  const auto live = [] { return memory_statistics(cpu).allocated; };
  const Tensor x = rand({1000}, 0, 1, DType::f64).set_requires_grad();
  const auto before = live();
  {
    const Tensor y = sum(exp(exp(x)));
    CHECK(live() > before + 16000);
    y.backward();
    CHECK(live() < before + 16000);
  }
  CHECK(live() < before + 9000);  // the gradient
  const auto with_gradient = live();
  {
    const Tensor y = exp(exp(x));
  }
  CHECK(live() == with_gradient);
  {
    const Tensor y = sum(exp(x));
    Tensors g = grad({y}, {x}, {}, true);
    g = grad({sum(g[0])}, {x}, {}, true);
  }
  CHECK(live() == with_gradient);
}

TEST_CASE("An op that keeps its own output makes no cycle") {
  const auto before = memory_statistics(cpu).allocated;
  {
    const Tensor x = leaf({1, 2});
    const Tensor y = exp(tanh(sigmoid(x)));
    const Tensor g = grad({sum(y)}, {x}, {}, true)[0];
    sum(g).backward();
  }
  CHECK(memory_statistics(cpu).allocated == before);
}

TEST_CASE("Ops with several outputs take missing gradients as zero") {
  const Tensor x = leaf({1, 2, 3, 4});
  const Tensors halves = split(x, 2);
  sum(halves[1] * 5).backward();
  CHECK(list(x.grad()) == Doubles{0, 0, 5, 5});
  const Tensors rows = unstack(reshape(x, {2, 2}));
  CHECK(list(grad({sum(rows[0] * rows[0])}, {x})[0]) == Doubles{2, 4, 0, 0});
  // A piece is dropped before the others are used.
  Tensor last;
  {
    const Tensors pieces = split(x, {1, 2, 1});
    last = pieces[2];
  }
  CHECK(list(grad({sum(last)}, {x})[0]) == Doubles{0, 0, 0, 1});
  const Sorted sorted = sort(x, 0, true);
  CHECK_FALSE(sorted.indices.requires_grad());
  CHECK(list(grad({select(sorted.values, 0, 0)}, {x})[0]) == Doubles{0, 0, 0, 1});
}

TEST_CASE("Gradients flow between floating dtypes and add up in the leaf's own") {
  const Tensor x = ones({3}).set_requires_grad();
  sum(cast(x, DType::f64) * 2).backward();
  sum(cast(x, DType::f16) * 3).backward();
  CHECK(x.grad().dtype() == DType::f32);
  CHECK(x.grad().to_vector<float>() == std::vector<float>{5, 5, 5});
}

TEST_CASE("An accumulated gradient owns its memory") {
  const Tensor x = leaf({1, 2});
  const Tensor seed = ones({2}, DType::f64);
  (x + 0).backward(seed);
  fill_(seed, 50);
  CHECK(list(x.grad()) == Doubles{1, 1});
  // Two leaves that receive one tensor do not share it.
  const Tensor a = leaf({1, 2}), b = leaf({3, 4});
  (a + b).backward(ones({2}, DType::f64));
  fill_(a.grad(), 9);
  CHECK(list(b.grad()) == Doubles{1, 1});
  // A broadcast gradient is laid out before it is kept.
  const Tensor c = leaf({1, 2});
  sum(c).backward();
  CHECK(c.grad().is_contiguous());
  sum(c).backward();
  CHECK(list(c.grad()) == Doubles{2, 2});
}

TEST_CASE("In-place edits of what an op saved are detected, and name the op") {
  std::string message;
  const Tensor x = leaf({1, 2});
  const Tensor input = Tensor::from(Doubles{3, 4}, {2});
  Tensor y = x * input;
  fill_(input, 0);
  message = message_of([&] { sum(y).backward(); });
  CHECK(contains(message, "[mul]"));
  CHECK(contains(message, "(2,)"));
  CHECK(contains(message, "edited in place"));
  // The op's own output, through a view of it.
  y = exp(x);
  fill_(slice(y.detach(), 0, 1), 0);
  message = message_of([&] { sum(y).backward(); });
  CHECK(contains(message, "[exp]"));
  CHECK(contains(message, "edited in place"));
  // Tensors that backward does not need may change.
  y = x + input;
  fill_(input, 1);
  sum(y).backward();
  CHECK(list(x.grad()) == Doubles{1, 1});
  // A parameter that is updated between forward and backward.
  y = x * x;
  {
    const NoGrad unrecorded;
    add_(x, 1);
  }
  message = message_of([&] { sum(y).backward(); });
  CHECK(contains(message, "[mul]"));
}

TEST_CASE("In-place edits that autograd would miss are errors") {
  std::string message;
  const Tensor x = leaf({1, 2});
  message = message_of([&] { add_(x, 1); });
  CHECK(contains(message, "[add_] expected an in-place edit of (2,) outside autograd"));
  message = message_of([&] { add_(zeros({2}, DType::f64), x); });
  CHECK(contains(message, "[add_]"));
  message = message_of([&] { fill_(x * 2, 1); });
  CHECK(contains(message, "[fill_]"));
  CHECK(list(x) == Doubles{1, 2});
  CHECK(x.version() == 0);
}

TEST_CASE("A million ops are released without deep recursion") {
  const Tensor x = leaf(1);
  {
    Tensor y = x;
    for (int i = 0; i < 1000000; ++i) y = y + 1;
  }
  {
    Tensor y = x;  // each op also saves the tensor before it
    for (int i = 0; i < 1000000; ++i) y = sin(y);
  }
  Tensor y = x;
  for (int i = 0; i < 1000000; ++i) y = y * 1.0;
  y.backward();
  CHECK(x.grad().item<double>() == 1);
}

TEST_CASE("A deep graph through saved outputs and second derivatives is released, too") {
  const Tensor x = leaf(0.5);
  Tensor y = x;
  for (int i = 0; i < 100000; ++i) y = tanh(y);
  Tensor g = grad({y}, {x}, {}, true)[0];
  CHECK(g.requires_grad());
  y = {};
  g = {};
  CHECK(x.is_leaf());
}

TEST_CASE("An exception inside backward leaves everything usable") {
  const Tensor x = leaf({1, 2}), input = Tensor::from(Doubles{3, 4}, {2});
  const Tensor y = sum(exp(x * input));
  fill_(input, 5);
  const NoGrad outer;  // what is restored must be what was
  CHECK_THROWS_AS(y.backward(), Error);
  CHECK_FALSE(context().grad);
  const GradMode recorded(true);
  CHECK_THROWS_AS(y.backward(), Error);
  CHECK(context().grad);
  const Tensor z = leaf({1, 2});
  sum(z * z).backward();
  CHECK(list(z.grad()) == Doubles{2, 4});
  // A hook that throws.
  on_gradient_ready(x, [](const Tensor&) { throw std::runtime_error("hook"); });
  CHECK_THROWS_WITH(sum(x).backward(), "hook");
  sum(z).backward();
  CHECK(list(z.grad()) == Doubles{3, 5});
}

}  // namespace tern
