// What a compiled function survives, and what it refuses: kernels that throw, threads, arguments that share memory.
#include <thread>

#include "backend/observer.h"
#include "catch.h"
#include "compile/compile.h"
#include "message.h"
#include "nn/nn.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "tensor/context.h"
#include "tensor/from_blob.h"
#include "train/train.h"

using namespace tern;

namespace {

/// Throws instead of one of the kernels that run in its scope.
class Fault : public backend::Observer {
 public:
  explicit Fault(std::int64_t kernel) : left_(kernel) { watch(); }
  ~Fault() override { unwatch(); }
  std::int64_t kernels() const { return seen_; }

 private:
  void begin_kernel() override {
    ++seen_;
    if (left_-- == 0) fail("fault", "no such kernel today");
  }
  std::int64_t left_, seen_ = 0;
};

struct Model final : nn::Module {
  Model() : in(5, 8), out(8, 3) {}
  void visit(nn::Visitor& v) override { v("in", in), v("drop", drop), v("out", out); }
  nn::Linear in, out;
  nn::Dropout drop{0.25};
};

struct Training {
  explicit Training(unsigned seed) : model((manual_seed(seed), Model())), optimizer(nn::parameters(model), {.lr = 0.05}) {}
  Tensor step(const Tensor& x) {
    optimizer.zero_grad();
    const Tensor y = model.out.forward(model.drop(tanh(model.in.forward(x))));
    const Tensor loss = mean(y * y);
    loss.backward();
    optimizer.step();
    return loss.detach();
  }
  /// Losses of more steps, and parameters.
  std::vector<float> elements() const {
    std::vector<float> result;
    for (const Tensor& x : nn::parameters(model))
      for (const float value : x.to_vector<float>()) result.push_back(value);
    return result;
  }
  Model model;
  train::AdamW optimizer;
};

Tensor batch(int call) { return sin(arange(30, DType::f32).reshape({6, 5}) + call); }

}  // namespace

TEST_CASE("A kernel that throws within a trace leaves what it leaves within the function as written") {
  std::int64_t kernels = 0;
  {
    Training training(1);
    training.step(batch(0));
    const Fault none(-1);
    training.step(batch(1));
    kernels = none.kernels();
  }
  CHECK(kernels > 20);
  for (const int traced : {1, 2})
    for (std::int64_t k = 0; k < kernels; ++k) {
      INFO("call " << traced << ", kernel " << k);
      Training plain(1), mine(1);
      auto f = tern::compile([&](const Tensor& x) { return mine.step(x); });
      manual_seed(5);
      for (int call = 0; call < traced; ++call) plain.step(batch(call));
      {
        const Fault fault(k);
        CHECK(contains(message_of([&] { plain.step(batch(traced)); }), "no such kernel"));
      }
      const std::uint64_t position = context().generator.position();
      manual_seed(5);
      for (int call = 0; call < traced; ++call) f(batch(call));
      {
        const Fault fault(k + 1);  // after the copy of the argument
        CHECK(contains(message_of([&] { f(batch(traced)); }), "no such kernel"));
      }
      CHECK(context().generator.position() == position);
      CHECK(mine.elements() == plain.elements());
      mine.step(batch(3));  // as written
      const std::uint64_t later = context().generator.position();
      context().generator.set_position(position);
      plain.step(batch(3));
      CHECK(context().generator.position() == later);
      CHECK(mine.elements() == plain.elements());
      for (int call = 4; call < 8; ++call) {
        const std::uint64_t before = context().generator.position();
        const float want = plain.step(batch(call)).item<float>();
        context().generator.set_position(before);
        CHECK(f(batch(call)).item<float>() == want);
      }
      CHECK(mine.elements() == plain.elements());
    }
}

TEST_CASE("A kernel that throws within a program does not break the program") {
  const Tensor w = sin(arange(5, DType::f32));
  const auto g = [&](const Tensor& x) { return dropout(exp(x) * w, 0.5) + sum(x, {1}, true); };
  auto f = tern::compile(g);
  for (int call = 0; call < 4; ++call) f(batch(call));
  for (std::int64_t k = 0; k < 4; ++k) {
    manual_seed(9);
    {
      const Fault fault(k);
      message_of([&] { f(batch(4)); });
    }
    manual_seed(9);
    const auto want = g(batch(5)).to_vector<float>();
    manual_seed(9);
    CHECK(f(batch(5)).to_vector<float>() == want);
  }
}

TEST_CASE("A function may have no arguments and no result") {
  const Tensor state = zeros({3});
  auto f = tern::compile([&] { add_(state, 1.0); });
  for (int call = 0; call < 12; ++call) f();
  CHECK(state.to_vector<float>() == std::vector<float>(3, 12));
  CHECK(f.programs() == 1);
}

TEST_CASE("Threads have compiled functions of their own") {
  const auto losses = [](unsigned seed, bool is_compiled) {
    Training training(seed);
    auto f = tern::compile([&](const Tensor& x) { return training.step(x); });
    std::vector<float> result;
    manual_seed(seed);
    for (int call = 0; call < 40; ++call) result.push_back((is_compiled ? f(batch(call)) : training.step(batch(call))).item<float>());
    for (const float x : training.elements()) result.push_back(x);
    return result;
  };
  std::vector<float> found[2];
  {
    std::jthread other([&] { found[1] = losses(12, true); });
    found[0] = losses(11, true);
  }
  CHECK(found[0] == losses(11, false));
  CHECK(found[1] == losses(12, false));
}

TEST_CASE("A result of at most 64 KiB is the caller's over any number of calls") {
  auto f = tern::compile([](const Tensor& x) -> Tensors { return {x + 1, sum(x)}; });
  std::vector<Tensors> held;
  for (int call = 0; call < 12; ++call) held.push_back(f(full({1 << 14}, call)));
  for (int call = 0; call < 12; ++call) {
    const std::size_t i = static_cast<std::size_t>(call);
    CHECK(min(held[i][0]).item<float>() == static_cast<float>(call + 1));
    CHECK(max(held[i][0]).item<float>() == static_cast<float>(call + 1));
    CHECK(held[i][1].item<float>() == static_cast<float>(call << 14));
  }
}

TEST_CASE("Two tensors on one memory, of which a trace could not see that they share it, are refused") {
  std::vector<float> memory(8, 1.0f);
  const Tensor whole = from_blob(memory.data(), {8}, DType::f32), part = from_blob(memory.data() + 4, {4}, DType::f32);
  auto f = tern::compile([&](const Tensor& x) {
    add_(whole, 1.0);
    return sum(part) + sum(x);
  });
  CHECK(f(ones({1})).item<float>() == 8 + 1);
  CHECK(contains(message_of([&] { f(ones({1})); }), "got two tensors on it, as from_blob makes: use a view"));
  const Tensor before = from_blob(memory.data(), {4}, DType::f32);  // that ends where the other begins
  auto reads = tern::compile([&](const Tensor& x) { return sum(before * x + part); });
  for (int call = 0; call < 4; ++call) CHECK(reads(ones({4})).item<float>() == sum(before + part).item<float>());
}

TEST_CASE("Arguments that share memory are read, but not with what the function edits") {
  const Tensor state = ones({4}), two = arange(8, DType::f32);
  const Tensor low = slice(two, 0, 0, 5), high = slice(two, 0, 3);
  auto reads = tern::compile([&](const Tensor& a, const Tensor& b) { return sum(a * b) + sum(state); });
  auto edits = tern::compile([&](const Tensor& a, const Tensor& b) { return sum(mul_(a, 2.0)) + sum(b); });
  auto edits_outside = tern::compile([&](const Tensor& a) { return sum(add_(state, 1.0)) + sum(a); });
  for (int call = 0; call < 5; ++call) {
    CHECK(reads(low, high).item<float>() == 0 * 3 + 1 * 4 + 2 * 5 + 3 * 6 + 4 * 7 + 4);
    CHECK(reads(low, low).item<float>() == 30 + 4);
    CHECK(edits(low, low.to(DType::f64).to(DType::f32)).item<float>() == 30);
    if (call > 0)
      CHECK(contains(message_of([&] { edits(low, high); }), "share no memory with what the function edits but got one of shape (5,)"));
  }
  for (int call = 0; call < 5; ++call) {
    CHECK(edits_outside(ones({4})).item<float>() == static_cast<float>(4 * (call + 2) + 4));
  }
  CHECK(contains(message_of([&] { edits_outside(state); }), "share no memory with what the function edits but got one of shape (4,)"));
  CHECK(two.to_vector<float>() == std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7});
}
