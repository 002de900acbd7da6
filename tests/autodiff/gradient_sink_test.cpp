// Gradient sinks: what is written straight into a leaf's gradient, lazily zero gradients, sums that are deferred, the event that a leaf is
// ready, and a pass within a pass.
#include <functional>
#include <thread>

#include "autodiff/autograd_state.h"
#include "autodiff/engine.h"
#include "autodiff/parameter_buffer.h"
#include "catch.h"
#include "message.h"
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

/// How a leaf's gradient is kept before a pass.
enum class Kept { none, elements, flat_zeros };
constexpr Kept all_kept[] = {Kept::none, Kept::elements, Kept::flat_zeros};

/// A layer's parameters, of whole numbers, so that sums are exact in any order.
struct Layer {
  explicit Layer(Device device, Kept kept = Kept::none) {
    const auto whole = [&](const Shape& shape, double start) {
      return cast(reshape(arange(start, start + static_cast<double>(numel(shape)), 1, DType::i64, device), shape), DType::f32)
          .set_requires_grad();
    };
    w = Tensor::from(std::vector<float>{1, -1, 0, 1, 1, -1, 0, 1, 1}, {3, 3}, device).set_requires_grad();
    b = whole({3}, -1), gamma = whole({3}, 1), beta = whole({3}, 0);
    const Tensor buffer = kept == Kept::flat_zeros ? flat_zeros(40, DType::f32, device) : zeros({40}, DType::f32, device);
    if (kept == Kept::flat_zeros) fill_(buffer, 1e3);
    std::int64_t offset = 0;
    for (Tensor* x : all()) {
      if (kept == Kept::none) continue;
      x->set_grad(buffer.window(x->shape(), contiguous_strides(x->shape()), offset));
      if (kept == Kept::flat_zeros) gradient_sink(*x).clear();
      offset += padded_size(x->numel(), DType::f32);
    }
  }
  std::vector<Tensor*> all() { return {&w, &b, &gamma, &beta}; }
  std::vector<std::vector<float>> gradients() {
    std::vector<std::vector<float>> result;
    for (const Tensor* x : all()) result.push_back(x->grad().defined() ? x->grad().to_vector<float>() : std::vector<float>());
    return result;
  }
  Tensor w, b, gamma, beta;
};

Tensor input(Device device, std::int64_t rows = 5) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < 3 * rows; ++i) values.push_back(static_cast<float>(i * i % 5 - 2));
  return Tensor::from(values, {rows, 3}, device);
}

/// Runs `body` unrecorded, and again in backward, where a pass of its own goes through it: activation checkpointing.
struct Recomputed : Function<Recomputed> {
  static inline std::function<Tensor(const Tensor&)> body;
  static Tensor forward(Tensors& saved, const Tensor& x) {
    saved = {x};
    return body(x);
  }
  static Tensors backward(const Backward& call) {
    const GradMode recorded(true);
    const Tensor x = call.saved(0).detach().set_requires_grad();
    tern::backward({body(x)}, {call.grad()});
    return {x.grad()};
  }
};

/// Passes its second input on, and gives the first no gradient.
struct Second : Function<Second> {
  static Tensor forward(Tensors&, const Tensor&, const Tensor& b) { return b + 0; }
  static Tensors backward(const Backward& call) { return {Tensor(), call.grad()}; }
};

struct Throws : Function<Throws> {
  static Tensor forward(Tensors&, const Tensor& x) { return x + 0; }
  static Tensors backward(const Backward&) { throw std::runtime_error("no gradient today"); }
};

/// Takes its leaf's sink, and then lets another pass add to the leaf.
struct Reenters : Function<Reenters> {
  static Tensor forward(Tensors& saved, const Tensor& x) {
    saved = {x};
    return x + 0;
  }
  static Tensors backward(const Backward& call) {
    const GradientTarget to = call.sink(0);
    const GradMode recorded(true);
    sum(call.saved(0) * 2).backward();
    return {to.result()};
  }
};

}  // namespace

TEST_CASE("A gradient slot that is filled beforehand is added to in place") {
  std::string message;
  // As a slice of one flat buffer, which an optimizer reads as a whole.
  const Tensor flat = zeros({5}, DType::f64);
  Tensor a = leaf({1, 2}), b = leaf({3, 4, 5});
  a.set_grad(slice(flat, 0, 0, 2));
  b.set_grad(slice(flat, 0, 2));
  const double* place = a.grad().data<double>();
  for (int step = 0; step < 2; ++step) (sum(a * a) + sum(b * 10)).backward();
  CHECK(a.grad().data<double>() == place);
  CHECK(a.grad().impl().storage == flat.impl().storage);
  CHECK(list(flat) == Doubles{4, 8, 20, 20, 20});
  message = message_of([&] { a.set_grad(zeros({3}, DType::f64)); });
  CHECK(contains(message, "[set_grad] expected a gradient of shape (2,), f64 on cpu but got (3,), f64 on cpu"));
  CHECK_THROWS_AS(a.set_grad(zeros({2})), Error);
  a.set_grad({});
  CHECK_FALSE(a.grad().defined());
}

TEST_CASE("Ops add to the gradient that a leaf has, in place and as often as it is used") {
  const auto gradients = [](bool filled, bool hooked) {
    Tensor w = leaf({1, 2, 3, 4, 5, 6}, {3, 2});
    const Tensor x = leaf({1, -1, 2, 0}, {2, 2});
    int calls = 0;
    if (hooked) on_gradient_ready(w, [&](const Tensor&) { ++calls; });
    const Tensor flat = zeros({7}, DType::f64), index = Tensor::from(std::vector<std::int64_t>{2, 0, 2}, {3});
    if (filled) w.set_grad(reshape(slice(flat, 0, 1), {3, 2}));
    Doubles result;
    for (int pass = 0; pass < 2; ++pass) {
      // Tied: the table is the weight of a product as well, and a slice of it is used by itself.
      (sum(linear(x, w) * 3) + sum(square(index_select(w, 0, index))) + sum(slice(w, 0, 1, 3) * 7) + sum(w * w)).backward();
      const Doubles now = list(w.grad());
      result.insert(result.end(), now.begin(), now.end());
    }
    CHECK(calls == (hooked ? 2 : 0));
    if (filled) CHECK(w.grad().impl().storage == flat.impl().storage);
    // A gradient that is asked for itself is not added to the leaf's.
    CHECK(list(grad({sum(linear(x, w))}, {w})[0]) == Doubles{3, -1, 3, -1, 3, -1});
    CHECK(list(w.grad()) == Doubles(result.end() - 6, result.end()));
    return result;
  };
  const Doubles expected = gradients(false, false);
  CHECK(gradients(true, false) == expected);
  CHECK(gradients(true, true) == expected);
}

TEST_CASE("A gradient that stands for zeros is overwritten, or its zeros are written when somebody looks", "[gradient_sink]") {
  const double old = 1e3;
  const Tensor index = Tensor::from(std::vector<std::int64_t>{2, 0, 2}, {3}), x = leaf({1, -1, 2, 0}, {2, 2});
  const std::vector<std::function<Tensor(const Tensor&, const Tensor&)>> uses = {
      [&](const Tensor& w, const Tensor&) { return sum(linear(x, w) * 3) + sum(square(index_select(w, 0, index))); },
      [&](const Tensor& w, const Tensor&) { return sum(slice(w, 0, 1, 3) * 7) + sum(linear(x, w)); },
      [&](const Tensor& w, const Tensor&) { return sum(w * w); },
      [&](const Tensor& w, const Tensor& b) { return sum(square(linear(x, w, b))) + sum(linear_gelu(x, w, b)); },
      [&](const Tensor& w, const Tensor& b) { return sum(square(feed_forward_gelu(x, w, b, transpose(w, 0, 1), slice(b, 0, 1)))); },
      [&](const Tensor& w, const Tensor&) { return sum(square(embedding(w, w, reshape(index, {1, 3}), 0, false))); },
      [&](const Tensor& w, const Tensor& b) {
        const Tensor y = layer_norm(transpose(w, 0, 1), b, b);
        return sum(square(y)) + sum(square(layer_norm(transpose(w, 0, 1), b, b * 2)));
      },
      [&](const Tensor& w, const Tensor& b) {
        const Tensor classes = Tensor::from(std::vector<std::int64_t>{1, 2}, {2});
        return linear_cross_entropy(x, w, b, classes) + sum(linear_cross_entropy(x, w, b, classes, {.reduction = Reduction::none}));
      },
      [&](const Tensor& w, const Tensor&) { return sum(slice(w, 0, 0, 0)); },
  };
  for (std::size_t use = 0; use < uses.size(); ++use) {
    CAPTURE(use);
    const auto gradients = [&](bool is_marked, bool create_graph) {
      Tensor w = leaf({1, 2, 3, 4, 5, 7}, {3, 2}), b = leaf({0.5, -1, 2});
      const Tensor flat = full({9}, is_marked ? old : 0, DType::f64);
      w.set_grad(reshape(slice(flat, 0, 0, 6), {3, 2}));
      b.set_grad(slice(flat, 0, 6));
      if (is_marked) gradient_sink(w).zero(), gradient_sink(b).zero(), gradient_sink(w).zero();
      uses[use](w, b).backward({}, false, create_graph);
      Doubles result = list(w.grad().detach());
      const Doubles more = list(b.grad().detach());
      result.insert(result.end(), more.begin(), more.end());
      if (!create_graph) CHECK(list(flat) == result);
      // A gradient that has a graph keeps its leaf alive, and the leaf it.
      w.set_grad({});
      b.set_grad({});
      Tensor(x).set_grad({});
      return result;
    };
    const Doubles expected = gradients(false, false), got = gradients(true, false), recorded = gradients(true, true);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      CHECK(got[i] == Approx(expected[i]).epsilon(1e-12).margin(1e-12));
      CHECK(recorded[i] == Approx(expected[i]).epsilon(1e-12).margin(1e-12));
    }
  }
  // A gradient that is replaced, a leaf that ends, and what write_lazy_zeros does.
  const Tensor flat = full({7}, old, DType::f64);
  {
    Tensor a = leaf({1, 2}), b = leaf({3, 4}), gone = leaf(Doubles{5});
    a.set_grad(slice(flat, 0, 0, 2));
    b.set_grad(slice(flat, 0, 2, 4));
    gone.set_grad(slice(flat, 0, 4, 5));
    for (const Tensor& leaving : {a, b, gone}) gradient_sink(leaving).zero();
    CHECK(list(flat) == Doubles(7, old));
    gone.set_grad({});
    write_lazy_zeros();
    CHECK(list(flat) == Doubles{0, 0, 0, 0, old, old, old});
    gradient_sink(a).zero();
    fill_(flat, old);
  }
  write_lazy_zeros();
  CHECK(list(flat) == Doubles(7, old));
  const std::string message = message_of([] { gradient_sink(leaf(1)).zero(); });
  CHECK(contains(message, "[zero_grad] expected a leaf that has a contiguous gradient"));
}

TEST_CASE("A linear layer adds to the gradients that its weight and bias have") {
  for (const bool has_gelu : {false, true}) {
    const auto gradients = [=](bool filled) {
      Tensor w = leaf({1, 2, 3, 4, 5, 6}, {3, 2}), b = leaf({0.5, -1, 2});
      const Tensor x = leaf({0.1, -0.1, 0.2, 0}, {2, 2}), flat = zeros({9}, DType::f64);
      if (filled) w.set_grad(reshape(slice(flat, 0, 0, 6), {3, 2}));
      if (filled) b.set_grad(slice(flat, 0, 6));
      Doubles result;
      for (int pass = 0; pass < 2; ++pass) {
        sum(square((has_gelu ? linear_gelu : linear)(x, w, b))).backward();
        for (const Tensor& g : {w.grad(), b.grad(), x.grad()}) {
          const Doubles now = list(g);
          result.insert(result.end(), now.begin(), now.end());
        }
      }
      if (filled) CHECK(b.grad().impl().storage == flat.impl().storage);
      return result;
    };
    CHECK(gradients(true) == gradients(false));
  }
}

TEST_CASE("Hooks see the finished gradient, once for each pass, in order") {
  const Tensor x = leaf({1, 2});
  std::vector<std::pair<int, Doubles>> calls;
  on_gradient_ready(x, [&](const Tensor& leaf_) { calls.push_back({1, list(leaf_.grad())}); });
  on_gradient_ready(x, [&](const Tensor& leaf_) {
    CHECK(leaf_.is_same(x));
    calls.push_back({2, list(leaf_.grad())});
  });
  const Tensor y = x * 2;
  (sum(y) + sum(x * y) + sum(x)).backward();  // three paths, one call
  CHECK(calls == std::vector<std::pair<int, Doubles>>{{1, {7, 11}}, {2, {7, 11}}});
  sum(x).backward();
  CHECK(calls.size() == 4);
  CHECK(calls.back().second == Doubles{8, 12});
  grad({sum(x)}, {x});
  CHECK(calls.size() == 4);
  CHECK_THROWS_WITH(on_gradient_ready(y, [](const Tensor&) {}), "[on_gradient_ready] expected a leaf that requires a gradient");
  CHECK_THROWS_AS(on_gradient_ready(ones({2}), [](const Tensor&) {}), Error);
}

TEST_CASE("A hook runs as soon as its leaf is done, before the rest of the pass") {
  const Tensor early = leaf(1), late = leaf(2);
  std::vector<int> order;
  on_gradient_ready(early, [&](const Tensor&) { order.push_back(1); });
  on_gradient_ready(late, [&](const Tensor&) { order.push_back(2); });
  Tensor y = early * 2;
  for (int i = 0; i < 5; ++i) y = y * 1.5;
  (y * late).backward();
  CHECK(order == std::vector<int>{2, 1});
}

TEST_CASE("A leaf is ready once a pass, when all its gradients are in", "[gradient_sink]") {
  for (const Kept kept : all_kept) {
    Layer layer(cpu, kept);
    Tensor unused = full({3}, 1.0).set_requires_grad(), silent = full({5, 3}, 1.0).set_requires_grad();
    std::vector<std::pair<int, std::vector<float>>> events;
    int number = 0;
    for (const Tensor& x : {layer.w, layer.b, layer.gamma, layer.beta, unused, silent}) {
      on_gradient_ready(x, [&events, number](const Tensor& ready) { events.emplace_back(number, ready.grad().to_vector<float>()); });
      ++number;
    }
    // The weight is used twice: straight by its layers, and by an op that has no kernel for it.
    const auto loss = [&] {
      const Tensor x = layer_norm(linear(linear(input(cpu), layer.w, layer.b), layer.w, layer.b), layer.gamma, layer.beta);
      return sum(Second::apply(silent, square(x))) + sum(layer.w * layer.w);
    };
    const auto check = [&](const std::vector<int>& order) {
      std::vector<int> seen;
      for (const auto& [which, gradient] : events) {
        seen.push_back(which);
        CHECK(gradient == layer.gradients()[static_cast<std::size_t>(which)]);
      }
      std::sort(seen.begin(), seen.end());
      CHECK(seen == order);
      events.clear();
    };
    const Tensor total = loss();
    total.backward({}, true);
    check({0, 1, 2, 3});
    total.backward();
    check({0, 1, 2, 3});
    grad({loss()}, {layer.w});
    check({});
    loss().backward({}, false, true);
    check({0, 1, 2, 3});
    for (Tensor* x : layer.all()) x->set_grad({});  // a gradient that has a graph keeps its leaf alive, and the leaf it
  }
}

static void check_hooks(Device device) {
  for (const Kept kept : all_kept) {
    const auto gradients = [&](bool hooked) {
      Layer layer(device, kept);
      int calls = 0;
      std::vector<std::vector<float>> at_hook(4);
      if (hooked)
        for (std::size_t i = 0; i < 4; ++i) on_gradient_ready(*layer.all()[i], [&calls](const Tensor&) { ++calls; });
      const std::size_t before = memory_statistics(device).allocations;
      for (int pass = 0; pass < 2; ++pass) {
        const Tensor x = linear_gelu(input(device), layer.w, layer.b);
        sum(square(layer_norm(linear(x, layer.w, layer.b), layer.gamma, layer.beta))).backward();
      }
      CHECK(calls == (hooked ? 8 : 0));
      return std::pair(memory_statistics(device).allocations - before, layer.gradients());
    };
    // The same memory is asked for, so the same kernels ran.
    CHECK(gradients(true) == gradients(false));
  }
}
TEST_CASE("Hooks do not change the kernels that run", "[gradient_sink]") { check_hooks(cpu); }
TEST_CASE("Hooks do not change the kernels that run on a GPU", "[gradient_sink][cuda]") { check_hooks(cuda()); }

static void check_nested(Device device) {
  for (const Kept kept : all_kept)
    for (const bool hooked : {false, true}) {
      const auto gradients = [&](bool nested) {
        Layer layer(device, kept);
        std::vector<std::size_t> calls(4);
        if (hooked)
          for (std::size_t i = 0; i < 4; ++i) on_gradient_ready(*layer.all()[i], [&calls, i](const Tensor&) { ++calls[i]; });
        // Exact: no mean, no root. The leaves are in both passes.
        const auto body = [&](const Tensor& x) { return linear(linear(x, layer.w, layer.b), layer.w, layer.b) * layer.gamma; };
        Recomputed::body = body;
        const auto inner = [&](const Tensor& x) { return nested ? Recomputed::apply(x) : body(x); };
        for (int pass = 0; pass < 2; ++pass) {
          const Tensor x = input(device).set_requires_grad();
          sum(linear(inner(linear(inner(x), layer.w, layer.b)), layer.w, layer.b) + layer.beta).backward();
        }
        Recomputed::body = nullptr;
        if (hooked) CHECK(calls == (nested ? std::vector<std::size_t>{6, 6, 4, 2} : std::vector<std::size_t>{2, 2, 2, 2}));
        return layer.gradients();
      };
      CHECK(gradients(true) == gradients(false));
    }
}
TEST_CASE("A backward pass within a backward pass adds to the same leaves", "[gradient_sink]") { check_nested(cpu); }
TEST_CASE("A backward pass within a backward pass adds to sums that the outer one deferred", "[gradient_sink][cuda]") {
  check_nested(cuda());
}

TEST_CASE("Sums that are deferred are there when a leaf is ready, and for whoever looks before", "[gradient_sink][cuda]") {
  const auto run = [](bool looks) {
    Layer layer(cuda(), Kept::flat_zeros);
    std::vector<std::vector<float>> seen;
    const auto record_gradient = [&](const Tensor& ready) { seen.push_back(ready.grad().to_vector<float>()); };
    on_gradient_ready(layer.b, record_gradient);
    on_gradient_ready(layer.beta, record_gradient);
    if (looks) on_gradient_ready(layer.w, [&](const Tensor&) { seen.push_back(layer.b.grad().to_vector<float>()); });
    sum(linear(input(cuda()), layer.w, layer.b) * 3 + 0).backward();
    sum(square(layer_norm(input(cuda()), layer.gamma, layer.beta))).backward();
    CHECK(seen.size() == (looks ? 3 : 2));
    CHECK(seen.front() == std::vector<float>{15, 15, 15});
    CHECK(seen.back() == layer.gradients()[3]);
    return layer.gradients();
  };
  CHECK(run(true) == run(false));
}

static void check_exception(Device device) {
  Layer layer(device, Kept::flat_zeros);
  const Tensor x = input(device).set_requires_grad();
  CHECK_THROWS_WITH(sum(linear(Throws::apply(x), layer.w, layer.b)).backward(), "no gradient today");
  // Gradients that the pass wrote before are whole, those that it did not reach are zero.
  CHECK(layer.gradients()[1] == std::vector<float>{5, 5, 5});
  CHECK(layer.gradients()[2] == std::vector<float>{0, 0, 0});
  sum(linear(x, layer.w, layer.b)).backward();
  CHECK(layer.gradients()[1] == std::vector<float>{10, 10, 10});
}
TEST_CASE("A pass that throws leaves gradients whole", "[gradient_sink]") { check_exception(cpu); }
TEST_CASE("A pass that throws leaves gradients on a GPU whole", "[gradient_sink][cuda]") { check_exception(cuda()); }

TEST_CASE("A pass within a backward call cannot add to a sink that the call has taken", "[gradient_sink]") {
  Tensor x = leaf({1, 2});
  x.set_grad(zeros({2}, DType::f64));
  gradient_sink(x).zero();
  const std::string message = message_of([&] { sum(Reenters::apply(x)).backward(); });
  CHECK(contains(message, "[backward] expected no gradient for a leaf whose sink is open"));
  CHECK(list(x.grad()) == Doubles{0, 0});
  sum(x * 3).backward();
  CHECK(list(x.grad()) == Doubles{3, 3});
}

TEST_CASE("A hook may change a gradient or take it away", "[gradient_sink]") {
  Tensor a = leaf({1, 2}), b = leaf({3, 4});
  Tensor taken;
  on_gradient_ready(a, [](const Tensor& ready) { mul_(ready.grad(), 10); });
  on_gradient_ready(b, [&](const Tensor& ready) {
    taken = ready.grad();
    Tensor(ready).set_grad({});
  });
  for (int pass = 0; pass < 2; ++pass) sum(a * b).backward();
  CHECK(list(a.grad()) == Doubles{(3 * 10 + 3) * 10, (4 * 10 + 4) * 10});
  CHECK_FALSE(b.grad().defined());
  CHECK(list(taken) == Doubles{1, 2});
}

TEST_CASE("Zeros are written by the thread that zeroed, and forgotten by any", "[gradient_sink]") {
  const Tensor memory = full({4}, 9.0, DType::f64);
  Tensor a = leaf({1, 2}), b = leaf({3, 4});
  a.set_grad(slice(memory, 0, 0, 2));
  b.set_grad(slice(memory, 0, 2));
  gradient_sink(a).zero();
  gradient_sink(b).zero();
  std::thread([&b] {
    write_lazy_zeros();
    b.set_grad({});
  }).join();
  CHECK(list(memory) == Doubles{9, 9, 9, 9});
  write_lazy_zeros();
  CHECK(list(memory) == Doubles{0, 0, 9, 9});
  // Marks of leaves that have ended do not pile up, and are not followed.
  for (int i = 0; i < 1000; ++i) {
    Tensor gone = leaf({1, 2});
    gone.set_grad(slice(memory, 0, 2));
    gradient_sink(gone).zero();
  }
  write_lazy_zeros();
  CHECK(list(memory) == Doubles{0, 0, 9, 9});
}

TEST_CASE("A hook may register another, and must be a function") {
  const Tensor x = leaf({1, 2});
  int outer = 0, inner = 0;
  on_gradient_ready(x, [&, big = Doubles(100)](const Tensor& leaf_) {
    for (int i = 0; i < 10; ++i) on_gradient_ready(leaf_, [&](const Tensor&) { ++inner; });
    outer += big.size() == 100;  // the hook itself is still whole
  });
  sum(x * x).backward();
  CHECK(outer == 1);
  CHECK(inner == 0);
  sum(x * x).backward();
  CHECK(outer == 2);
  CHECK(inner == 10);
  CHECK(message_of([&] { on_gradient_ready(x, nullptr); }) == "[on_gradient_ready] expected a function but got none");
}

TEST_CASE("A backward that threw is not repeated in silence") {
  const Tensor x = leaf({1, 2});
  const Tensor y = sum(Throws::apply(x * x) * x);
  CHECK_THROWS_AS(y.backward(), std::runtime_error);
  CHECK(contains(message_of([&] { y.backward(); }), "was freed by an earlier backward, which may have thrown"));
}

}  // namespace tern
