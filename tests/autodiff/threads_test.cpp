// The context belongs to a thread; tensors and graphs may go from one to another.
#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "autodiff/engine.h"
#include "autodiff/parameter_buffer.h"
#include "catch.h"
#include "message.h"
#include "ops/factory.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"

namespace tern {

TEST_CASE("Grad mode and random numbers belong to a thread") {
  const NoGrad unrecorded;
  manual_seed(5);
  const auto here = rand({4}).to_vector<float>();
  bool grad_there = false;
  std::uint64_t position_there = 99;
  std::vector<float> there;
  std::thread([&] {
    grad_there = context().grad;
    position_there = context().generator.position();
    manual_seed(5);
    there = rand({4}).to_vector<float>();
  }).join();
  CHECK(grad_there);
  CHECK(position_there == 0);
  CHECK(there == here);
  CHECK(context().generator.position() == 2);
  CHECK_FALSE(context().grad);
}

TEST_CASE("Threads train side by side") {
  std::atomic<int> right = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        const Tensor x = full({3}, t + 1.0, DType::f64).set_requires_grad();
        sum(x * x * x).backward();
        right += x.grad().to_vector<double>() == std::vector<double>(3, 3.0 * (t + 1) * (t + 1));
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(right == 800);
}

TEST_CASE("A graph that two threads recorded one after the other is walked in order") {
  const Tensor x = full({}, 3, DType::f64).set_requires_grad();
  Tensor a = x;
  for (int i = 0; i < 20; ++i) a = a * 1.0;
  Tensor y;
  // A new thread counts its ops from the start; the ops that it adds come after the others all the same.
  std::thread([&] {
    const Tensor b = a * a;
    y = b * a + b;
  }).join();
  y.backward();
  CHECK(x.grad().item<double>() == 3 * 9 + 2 * 3);
}

TEST_CASE("A graph is released by a thread that did not record it") {
  Tensor y = full({}, 1, DType::f64).set_requires_grad();
  for (int i = 0; i < 100000; ++i) y = sin(y);
  std::thread([y = std::move(y)]() mutable { y = {}; }).join();
  CHECK_FALSE(y.defined());
}

namespace {

/// Two layers of whole numbers, so that sums are exact in any order.
struct Model {
  Tensor w = leaf({3, 3}, {1, -1, 0, 1, 1, -1, 0, 1, 1}), b = leaf({3}, {0, 1, -1}), v = leaf({3, 3}, {0, 1, 1, -1, 0, 1, 1, 1, 0});

  static Tensor leaf(const Shape& shape, const std::vector<float>& values) { return Tensor::from(values, shape).set_requires_grad(); }
  Tensor loss(const Tensor& x) const { return sum(linear(linear(linear(x, w, b), v), w, b)); }
  Tensors parameters() const { return {w, b, v}; }
  /// Places in one buffer, as those of a flat optimizer.
  void flatten_gradients() const {
    const Tensor flat = flat_zeros(32, DType::f32, cpu);
    std::int64_t offset = 0;
    for (Tensor x : parameters()) {
      x.set_grad(reshape(slice(flat, 0, offset, offset + x.numel()), x.shape()));
      offset += padded_size(x.numel(), x.dtype());
    }
  }
};

void run_threads(int count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int t = 0; t < count; ++t) threads.emplace_back(body, t);
  for (std::thread& thread : threads) thread.join();
}

constexpr int rounds =
#ifdef __SANITIZE_THREAD__
    300;
#else
    20000;
#endif

}  // namespace

TEST_CASE("Threads share a model's forward", "[threads]") {
  const Model model;
  const Tensor x = ones({2, 3});
  const float expected = model.loss(x).item();
  std::atomic<int> right = 0;
  run_threads(4, [&](int) {
    for (int i = 0; i < rounds; ++i) right += linear(x, model.w, model.b).requires_grad();
    right += model.loss(x).item() == expected;
  });
  CHECK(right == 4 * rounds + 4);
}

TEST_CASE("Threads that take turns in backward add all of their gradients to one model", "[threads]") {
  const Tensor x = ones({2, 3});
  const Model alone;
  alone.loss(x).backward();
  for (const bool is_flat : {false, true}) {
    Model shared;
    if (is_flat) shared.flatten_gradients();
    int calls = 0;
    on_gradient_ready(shared.v, [&](const Tensor& leaf) { calls += leaf.grad().defined(); });
    const int passes = rounds / 20;
    std::mutex turn;
    run_threads(4, [&](int) {
      for (int i = 0; i < passes; ++i) {
        const Tensor loss = shared.loss(x);
        const std::lock_guard lock(turn);
        loss.backward();
      }
    });
    CHECK(calls == 4 * passes);
    for (std::size_t i = 0; i < 3; ++i)
      CHECK(shared.parameters()[i].grad().to_vector<float>() == (alone.parameters()[i].grad() * (4.0 * passes)).to_vector<float>());
  }
}

TEST_CASE("A backward into a leaf that another thread's backward has reached is an error, and both may go on", "[threads]") {
  const Tensor shared = full({2}, 3, DType::f64).set_requires_grad(), own = full({2}, 1, DType::f64).set_requires_grad();
  std::string message;
  const auto pass = [&] { message = message_of([&] { sum(shared * own).backward(); }); };
  on_gradient_ready(shared, [&](const Tensor&) {
    if (message.empty()) std::thread(pass).join();
  });
  sum(shared * shared).backward();
  CHECK(message ==
        "[backward] expected a leaf that no other thread's backward adds to but one of shape (2,) is in use: let the threads "
        "take turns, or give each its own copy of the model");
  CHECK(shared.grad().to_vector<double>() == std::vector<double>{6, 6});
  std::thread(pass).join();
  CHECK(message.empty());
  CHECK(shared.grad().to_vector<double>() == std::vector<double>{7, 7});
}

}  // namespace tern
