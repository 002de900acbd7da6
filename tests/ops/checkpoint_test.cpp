// Activation checkpointing: gradients are those of the function itself, bit for bit, and memory is what the policy keeps.
#include "ops/checkpoint.h"

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "autodiff/engine.h"
#include "backend/memory.h"
#include "catch.h"
#include "message.h"
#include "ops/attention.h"
#include "ops/autocast.h"
#include "ops/factory.h"
#include "ops/matmul.h"
#include "ops/normalize.h"
#include "ops/op.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "plain.h"
#include "threads.h"

namespace tern {

namespace {

constexpr CheckpointPolicy policies[] = {CheckpointPolicy::none, CheckpointPolicy::selective, CheckpointPolicy::full};

std::vector<double> numbers(const Tensor& x) { return cast(to(x.detach(), cpu), DType::f64).to_vector<double>(); }

/// A residual block with everything that has to be the same in a second run: products, a norm, dropout, products in 16 bits.
struct Block {
  Block(std::int64_t width, DType dtype, Device device) {
    manual_seed(3);
    const auto parameter = [&](const Shape& shape) { return to(cast(randn(shape) * 0.3, dtype), device).set_requires_grad(); };
    up = parameter({3 * width, width}), up_bias = parameter({3 * width}), down = parameter({width, 3 * width});
    gain = parameter({width}), shift = parameter({width});
  }
  Tensor forward(const Tensor& x) const {
    const Tensor hidden = dropout(gelu(linear(layer_norm(x, gain, shift), up, up_bias)), 0.3);
    return x + dropout(linear(hidden, down, {}), 0.2);
  }
  Tensors parameters() const { return {up, up_bias, down, gain, shift}; }

  Tensor up, up_bias, down, gain, shift;
};

using Wrap = std::function<Tensor(const std::function<Tensor(const Tensor&)>&, const Tensor&)>;

/// The result of two blocks, the gradients of all that it comes from, and the position of the random numbers behind it.
std::vector<std::vector<double>> pass(const Wrap& wrap, DType dtype, std::optional<DType> autocast, Device device) {
  const Block a(6, dtype, device), b(6, dtype, device);
  const Tensor x = to(cast(rand({4, 6}), dtype), device).set_requires_grad();
  manual_seed(9);
  Tensor y;
  {
    std::optional<Autocast> scope;
    if (autocast) scope.emplace(*autocast);
    y = wrap([&](const Tensor& in) { return b.forward(a.forward(in)); }, exp(x));
  }
  const double position = static_cast<double>(context().generator.position());
  sum(y * y).backward();
  std::vector<std::vector<double>> result = {numbers(y), numbers(x.grad()), {position}};
  CHECK(static_cast<double>(context().generator.position()) == position);
  for (const Block* block : {&a, &b})
    for (const Tensor& p : block->parameters()) result.push_back(numbers(p.grad()));
  return result;
}

void check_gradients(Device device) {
  const Wrap plain = [](const auto& f, const Tensor& x) { return f(x); };
  struct Form {
    DType dtype;
    std::optional<DType> autocast;
  };
  for (const Form form :
       {Form{DType::f64, {}}, Form{DType::f32, {}}, Form{DType::bf16, {}}, Form{DType::f32, DType::bf16}, Form{DType::f32, DType::f16}}) {
    const auto want = pass(plain, form.dtype, form.autocast, device);
    for (const CheckpointPolicy policy : policies) {
      INFO(name(form.dtype) << ", autocast " << (form.autocast ? name(*form.autocast) : "none") << ", policy " << int(policy));
      CHECK(pass([=](const auto& f, const Tensor& x) { return checkpoint(f, x, policy); }, form.dtype, form.autocast, device) == want);
      for (const CheckpointPolicy inner : policies) {
        INFO("around policy " << int(inner));
        const Wrap nested = [=](const auto& f, const Tensor& x) {
          return checkpoint([=](const Tensor& in) { return checkpoint(f, in, inner); }, x, policy);
        };
        CHECK(pass(nested, form.dtype, form.autocast, device) == want);
      }
    }
  }
}

std::size_t allocated() { return backend::memory_statistics(Cpu{}, cpu).allocated; }

}  // namespace

TEST_CASE("A checkpointed function has the gradients of the function itself, bit for bit") { check_gradients(cpu); }
TEST_CASE("On a GPU a checkpointed function has the gradients of the function itself, bit for bit", "[cuda]") { check_gradients(cuda()); }

TEST_CASE("A checkpointed function runs again once, when backward first needs it, and no further than to the last saved tensor") {
  int begun = 0, saved = 0, ended = 0;
  const auto f = [&](const Tensor& x) {
    ++begun;
    const Tensor y = exp(x);
    ++saved;
    const Tensor z = sin(y);
    ++ended;
    return z * 2.0;
  };
  const Tensor x = full({3}, 0.5).set_requires_grad();
  const Tensor y = checkpoint(f, x);
  CHECK(begun == 1);
  sum(y).backward();
  CHECK(begun == 2);
  CHECK(saved == 2);
  CHECK(ended == 1);
}

TEST_CASE("A checkpointed function runs once where nobody asks for gradients, or all is kept") {
  int runs = 0;
  const auto f = [&](const Tensor& x) {
    ++runs;
    return exp(x);
  };
  const Tensor x = full({3}, 0.5).set_requires_grad();
  sum(checkpoint(f, x, CheckpointPolicy::none)).backward();
  CHECK(runs == 1);
  {
    const NoGrad unrecorded;
    CHECK_FALSE(checkpoint(f, x).requires_grad());
  }
  CHECK(runs == 2);
  checkpoint(f, full({3}, 0.5));
  CHECK(runs == 3);
}

TEST_CASE("Calls within calls run again once for each call around them") {
  int outer = 0, inner = 0;
  const auto f = [&](const Tensor& x) {
    ++outer;
    const auto g = [&](const Tensor& in) {
      ++inner;
      return sin(exp(in));
    };
    return checkpoint(g, checkpoint(g, x));
  };
  const Tensor x = full({3}, 0.5).set_requires_grad();
  sum(checkpoint(f, x)).backward();
  CHECK(outer == 2);
  // Two of the first run; two of the outer function's second run, for the second call's input; then each call's own.
  CHECK(inner == 5);
}

TEST_CASE("Costly results are kept as the policy says") {
  for (const CheckpointPolicy policy : {CheckpointPolicy::selective, CheckpointPolicy::full}) {
    int first = 0, last = 0;
    const auto costly = [](int& calls, const Tensor& x) {
      return detail::costly([&]() -> Tensors { return {++calls ? clone(x.detach()) : x}; })[0];
    };
    const auto f = [&](const Tensor& x) {
      const Tensor y = exp(x) + costly(first, x);
      const Tensor z = exp(y) + x;
      const Tensor kept = costly(last, z);
      return record({"identity"}, kept, {z}, {z}, [](const Backward& call) -> Tensors { return {call.grad() + 0 * call.saved(0)}; });
    };
    const Tensor x = full({3}, 0.5).set_requires_grad();
    sum(checkpoint(f, x, policy)).backward();
    CHECK(first == (policy == CheckpointPolicy::full ? 2 : 1));
    CHECK(last == 1);  // the result of the call itself
  }
}

TEST_CASE("A costly result that was edited since is computed again") {
  int calls = 0;
  const auto f = [&](const Tensor& x) {
    const Tensor y = detail::costly([&]() -> Tensors { return {++calls ? clone(x.detach()) : x}; })[0];
    const Tensor z = exp(x + y);
    const NoGrad unrecorded;
    fill_(y, 7);
    return z;
  };
  const Tensor x = full({3}, 0.5).set_requires_grad();
  sum(checkpoint(f, x, CheckpointPolicy::selective)).backward();
  CHECK(calls == 2);
  CHECK(x.grad().to_vector<float>()[0] == exp(full({1}, 1.0)).to_vector<float>()[0]);
}

TEST_CASE("Products and attention are the ops whose results selective checkpointing keeps") {
  struct Count final : SavedTensorHooks {
    struct Whole final : PackedTensor {
      Tensor tensor;
      Tensor unpack(const char*) override { return tensor; }
    };
    Ref<PackedTensor> pack(const Tensor& x) override {
      auto packed = make_ref<Whole>();
      packed->tensor = x;
      return packed;
    }
    Tensors costly(const std::function<Tensors()>& compute) override {
      ++calls;
      return compute();
    }
    int calls = 0;
  };
  const auto calls = [](const std::function<void()>& f) {
    Count hooks;
    const ScopedValue<SavedTensorHooks*> scope(context().saved_tensor_hooks, &hooks);
    f();
    return hooks.calls;
  };
  const Tensor x = rand({2, 4}), w = rand({4, 4}), bias = rand({4}), q = rand({1, 3, 2, 4});
  CHECK(calls([&] { matmul(x, w); }) == 1);
  CHECK(calls([&] { linear(x, w, bias); }) == 1);
  CHECK(calls([&] { linear_gelu(x, w, bias); }) == 1);
  CHECK(calls([&] { feed_forward_gelu(x, w, bias, w, bias); }) == 2);
  CHECK(calls([&] { scaled_dot_product_attention(q, q, q, {}); }) == 1);
  CHECK(calls(test::plain([&] { scaled_dot_product_attention(q, q, q, {}); })) == 2);
  CHECK(calls([&] { layer_norm(x, bias, bias); }) == 0);
}

TEST_CASE("A checkpointed function keeps its inputs until backward, a selective one its products as well") {
  constexpr std::int64_t width = 64, rows = 256, unit = rows * width * 4;
  const Block block(width, DType::f32, cpu);
  const Tensor x = rand({rows, width}).set_requires_grad();
  std::size_t kept[3], after[3];
  for (const CheckpointPolicy policy : policies) {
    const std::size_t before = allocated();
    const Tensor y = checkpoint([&](const Tensor& in) { return block.forward(in); }, x, policy);
    kept[int(policy)] = allocated() - before - unit;  // without the result
    sum(y).backward();
    after[int(policy)] = allocated() - before - unit;
  }
  CHECK(kept[int(CheckpointPolicy::full)] < unit / 8);
  // 3 + 1 of products.
  CHECK(kept[int(CheckpointPolicy::selective)] >= 4 * unit);
  CHECK(kept[int(CheckpointPolicy::selective)] < 4 * unit + unit / 8);
  // The norm's result, what GELU was given, and what the second product was.
  CHECK(kept[int(CheckpointPolicy::none)] >= 7 * unit);
  CHECK(after[int(CheckpointPolicy::full)] <= after[int(CheckpointPolicy::none)]);
  CHECK(after[int(CheckpointPolicy::selective)] <= after[int(CheckpointPolicy::none)]);
}

TEST_CASE("A fused feed-forward part that is checkpointed selectively keeps what GELU was given, and not what it gave") {
  constexpr std::int64_t width = 32, rows = 256, unit = rows * width * 4;
  const Tensor x = rand({rows, width}).set_requires_grad(), fc = rand({4 * width, width}), bias = rand({4 * width}),
               proj = rand({width, 4 * width});
  for (const Tensor& p : {fc, bias, proj}) Tensor(p).set_requires_grad();
  const auto f = [&](const Tensor& in) { return feed_forward_gelu(in, fc, bias, proj, {}); };
  const std::size_t before = allocated();
  const Tensor y = checkpoint(f, x, CheckpointPolicy::selective);
  const std::size_t kept = allocated() - before - unit;  // without the result
  CHECK(kept >= 4 * unit);
  CHECK(kept < 4 * unit + unit / 8);
}

TEST_CASE("A chain of checkpointed calls fills memory for one call at a time") {
  constexpr std::int64_t width = 32, rows = 256, depth = 12;
  const test::Threads two(2);  // each packs panels of its own for a product, which count
  const Block block(width, DType::f32, cpu);
  const auto peak = [&](CheckpointPolicy policy) {
    const Tensor x = rand({rows, width}).set_requires_grad();
    for (const Tensor& p : block.parameters()) p.grad();
    backend::reset_peak_memory(Cpu{}, cpu);
    const std::size_t before = allocated();
    Tensor y = x;
    for (int i = 0; i < depth; ++i) y = checkpoint([&](const Tensor& in) { return block.forward(in); }, y, policy);
    sum(y).backward();
    return backend::memory_statistics(Cpu{}, cpu).peak_allocated - before;
  };
  peak(CheckpointPolicy::none);  // gradients have their memory from here on
  const std::size_t all = peak(CheckpointPolicy::none), products = peak(CheckpointPolicy::selective), inputs = peak(CheckpointPolicy::full);
  CHECK(static_cast<double>(inputs) < 0.4 * static_cast<double>(all));
  CHECK(static_cast<double>(products) < 0.75 * static_cast<double>(all));
}

TEST_CASE("Checkpointed functions can be differentiated twice, and again while the graph is kept") {
  for (const CheckpointPolicy policy : policies) {
    const Block block(4, DType::f64, cpu);
    const auto run = [&](bool is_checkpointed) {
      manual_seed(4);
      const Tensor x = cast(rand({3, 4}), DType::f64).set_requires_grad();
      const std::function<Tensor(const Tensor&)> f = [&](const Tensor& in) { return block.forward(in); };
      const Tensor y = is_checkpointed ? checkpoint(f, x, policy) : f(x);
      const Tensor first = grad({sum(y * y)}, {x}, {}, true)[0];
      const Tensors second = grad({sum(first * first)}, {x, block.up, block.gain}, {}, false, true);
      const Tensors again = grad({sum(first * first)}, {x, block.up, block.gain});
      std::vector<std::vector<double>> result = {numbers(first)};
      for (const Tensor& g : second) result.push_back(numbers(g));
      for (const Tensor& g : again) result.push_back(numbers(g));
      return result;
    };
    CHECK(run(true) == run(false));
  }
}

TEST_CASE("A backward pass within a checkpointed function is a part of it") {
  const auto f = [](const Tensor& x) {
    const Tensor y = exp(x);
    return x * grad({sum(y * y)}, {x}, {}, true)[0];
  };
  std::vector<double> gradients[2];
  for (const bool is_checkpointed : {false, true}) {
    const Tensor leaf = full({3}, 0.25, DType::f64).set_requires_grad();
    const Tensor in = leaf * 2.0;
    sum(is_checkpointed ? checkpoint(f, in) : f(in)).backward();
    gradients[is_checkpointed] = numbers(leaf.grad());
  }
  CHECK(gradients[0] == gradients[1]);
}

TEST_CASE("Functions that cannot run again as they did are refused") {
  const auto message = [](const std::function<Tensor(const Tensor&)>& f, const std::function<void(const Tensor&)>& before_backward) {
    const Tensor leaf = full({2, 3}, 0.5).set_requires_grad(), x = leaf + 1.0;
    const Tensor y = checkpoint(f, x);
    before_backward(x);
    return message_of([&] { sum(y).backward(); });
  };
  int runs = 0;
  const auto nothing = [](const Tensor&) {};
  CHECK(message([&](const Tensor& x) { return ++runs == 1 ? sum(exp(x)) : sum(exp(sum(x, {0}))); }, nothing)
            .find("tensor 0 was f32 (2, 3) "
                  "and is f32 (3,)") != std::string::npos);
  runs = 0;
  CHECK(message([&](const Tensor& x) { return ++runs == 1 ? sum(exp(exp(x))) : sum(exp(x)); }, nothing)
            .find("save 2 tensors again, but it "
                  "saved 1") != std::string::npos);
  const auto edit = [](const Tensor& x) {
    const NoGrad unrecorded;
    fill_(x, 1);
  };
  CHECK(message([](const Tensor& x) { return sum(exp(x)); }, edit).find("edited in place") != std::string::npos);
}

TEST_CASE("A second run that throws leaves the thread as it was") {
  int runs = 0;
  const auto f = [&](const Tensor& x) {
    const Tensor y = dropout(exp(x), 0.5);
    if (++runs == 2) throw Error("stopped");
    return exp(y);
  };
  const Tensor x = rand({5}).set_requires_grad();
  const Tensor y = sum(checkpoint(f, x));
  const std::uint64_t position = context().generator.position();
  CHECK_THROWS_AS(y.backward(), Error);
  CHECK(context().generator.position() == position);
  CHECK(context().saved_tensor_hooks == nullptr);
  CHECK(context().grad);
}

TEST_CASE("A long chain of checkpointed calls ends without a deep recursion") {
  Tensor y = full({1}, 0.5).set_requires_grad();
  for (int i = 0; i < 100'000; ++i) y = checkpoint([](const Tensor& x) { return x * x; }, y);
  y = {};
}

}  // namespace tern
