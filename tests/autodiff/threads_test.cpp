// The context belongs to a thread; tensors and graphs may go from one to another.
#include <atomic>
#include <thread>

#include "autodiff/engine.h"
#include "catch.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"

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
  CHECK(context().generator.position() == 1);
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

}  // namespace tern
