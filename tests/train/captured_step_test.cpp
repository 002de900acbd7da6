#include "ops/captured_step.h"

#include <map>

#include "autodiff/autograd_state.h"
#include "autodiff/node.h"
#include "nn/fixture.h"
#include "ops/factory.h"
#include "ops/loss.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "skip.h"
#include "train/train.h"
#include "train/training.h"

using namespace tern;

namespace {

Tensor ids(unsigned seed, std::int64_t length, Device device) { return draw_ids(seed, {4, length}, 19, device); }

/// Everything a training leaves behind, after 100 steps on two lengths with a learning rate that moves.
std::vector<float> train_steps(bool captured, bool is_fused, train::Precision precision, Device device, std::size_t expected_recordings) {
  Training training(is_fused, precision, device);
  CapturedStep replay([&](const Tensors& batch) { return training.step(batch[0]); }, device);
  std::vector<float> result;
  manual_seed(8);
  for (unsigned step = 0; step < 100; ++step) {
    training.optimizer.set_lr_factor(1 / (1 + 0.01 * step));
    const Tensors batch{ids(step, step % 3 == 2 ? 7 : 9, device)};
    const Tensor loss = captured ? replay(batch) : training.step(batch[0]);
    if (step % 10 == 9) result.push_back(loss.item<float>());
    if (step == 50) rand({5}, 0, 1, DType::f32, device);  // somebody else draws
    if (step == 70) manual_seed(77);
  }
  CHECK(replay.recordings() == (captured ? expected_recordings : 0));
  if (captured && expected_recordings > 0) CHECK(replay.nodes() > 10);
  for (const NamedTensor& entry : training.optimizer.state())
    for (float value : floats(entry.tensor)) result.push_back(value);
  for (const NamedTensor& entry : nn::named_masters(training.model))
    for (float value : floats(entry.tensor)) result.push_back(value);
  if (training.scaler) result.push_back(training.scaler->scale().item<float>());
  result.push_back(static_cast<float>(context().generator.position()));
  return result;
}

/// The logits that a model with dropout has for a batch that goes through in parts, in each of four calls.
std::vector<float> logits_of_parts(const std::vector<BatchRows>& parts, bool is_fused, Device device) {
  const Training training(is_fused, train::Precision::fp32, device);
  CapturedStep forward([&](const Tensors& batch) { return training.model.forward(batch[0]); }, device);
  const NoGrad unrecorded;
  std::vector<float> result;
  manual_seed(8);
  for (unsigned call = 0; call < 4; ++call) {
    const Tensor batch = cat({ids(call, 9, device), ids(call + 10, 9, device), ids(call + 20, 9, device)});
    const std::uint64_t begin = context().generator.position();
    for (const BatchRows& part : parts) {
      context().generator.set_position(begin);
      const BatchRowsScope rows(part);
      const auto logits = forward({slice(batch, 0, part.first, part.first + part.count)}).to_vector<float>();
      result.insert(result.end(), logits.begin(), logits.end());
    }
  }
  CHECK(forward.recordings() == (device == cpu ? 0 : parts.size()));
  return result;
}

void check_parts(Device device) {
  for (const bool is_fused : {false, true}) {
    INFO((is_fused ? "fused" : "plain"));
    const auto whole = logits_of_parts({{0, 12, 12}}, is_fused, device);
    const auto parts = logits_of_parts({{0, 4, 12}, {4, 4, 12}, {8, 4, 12}}, is_fused, device);
    REQUIRE(parts.size() == whole.size());
    float furthest = 0, largest = 0;
    for (std::size_t i = 0; i < whole.size(); ++i) {
      furthest = std::max(furthest, std::abs(whole[i] - parts[i]));
      largest = std::max(largest, std::abs(whole[i]));
    }
    CHECK(furthest < 1e-4 * largest);
  }
}

}  // namespace

TEST_CASE("a part of a batch gets the dropout of its rows within the whole", "[capture]") { check_parts(cpu); }
TEST_CASE("a part of a batch gets the dropout of its rows within the whole, replayed too", "[capture][cuda]") { check_parts(cuda()); }

TEST_CASE("on the CPU a captured step runs as written", "[capture]") {
  for (const train::Precision precision : {train::Precision::fp32, train::Precision::bf16})
    CHECK(train_steps(true, false, precision, cpu, 0) == train_steps(false, false, precision, cpu, 0));
}

TEST_CASE("replayed steps are bitwise those that run as written, dropout included", "[capture][cuda]") {
  for (const train::Precision precision : {train::Precision::fp32, train::Precision::bf16, train::Precision::fp16})
    for (const bool is_fused : {false, true}) {
      INFO(train::name(precision) << (is_fused ? ", fused" : ", plain"));
      const auto captured = train_steps(true, is_fused, precision, cuda(), 2);
      CHECK(captured == train_steps(false, is_fused, precision, cuda(), 0));
      CHECK(std::all_of(captured.begin(), captured.end(), [](float value) { return std::isfinite(value); }));
    }
}

TEST_CASE("steps on a second GPU are bitwise those on the first, captured or not, while the first is current",
          "[capture][cuda][two-gpus]") {
  if (test::lacks_second_gpu()) return;
  for (const train::Precision precision : {train::Precision::fp32, train::Precision::bf16, train::Precision::fp16})
    for (const bool is_fused : {false, true}) {
      INFO(train::name(precision) << (is_fused ? ", fused" : ", plain"));
      const auto expected = train_steps(true, is_fused, precision, cuda(0), 2);
      synchronize(cuda(0));
      CHECK(train_steps(false, is_fused, precision, cuda(1), 0) == expected);
      synchronize(cuda(0));
      CHECK(train_steps(true, is_fused, precision, cuda(1), 2) == expected);
    }
}

TEST_CASE("a step that waits for the device is refused, and the next is well", "[capture][cuda]") {
  bool waits = true;
  CapturedStep step([&](const Tensors& x) { return waits && sum(x[0]).item<float>() > 100 ? x[0] : x[0] + 1; }, cuda());
  const Tensor x = full({3}, 2, DType::f32, cuda());
  step({x});  // runs as written, where waiting is allowed
  CHECK_THROWS_AS(step({x}), Error);
  waits = false;
  CHECK(step({x}).to_vector<float>() == std::vector<float>{3, 3, 3});
  CHECK(step({x + 1}).to_vector<float>() == std::vector<float>{4, 4, 4});
  CHECK_THROWS_AS(step({Tensor()}), Error);
  CHECK_THROWS_AS(step({full({3}, 2)}), Error);
}

TEST_CASE("a captured step takes inputs of any number and stride, and gradients zeroed outside of it", "[capture][cuda]") {
  const Device device = cuda();
  Tensor w = full({3}, 2.0, DType::f32, device).set_requires_grad();
  const Tensor gradient = zeros({3}, DType::f32, device);
  w.set_grad(gradient);
  CapturedStep step(
      [&](const Tensors& inputs) {
        Tensor total = sum(w * inputs[0]);
        for (std::size_t i = 1; i < inputs.size(); ++i) total = total + sum(w * inputs[i]);
        total.backward();
        return total.detach();
      },
      device);
  double expected = 0;
  for (int pass = 0; pass < 6; ++pass) {
    if (pass != 3) gradient_sink(w).zero(), expected = 0;
    Tensors inputs;
    double sum_of_inputs = 0;
    for (int i = 0; i < 40; ++i) {
      const double value = 1 + pass + 0.5 * i;
      sum_of_inputs += value;
      const Tensor wide = full({3, 2}, value, DType::f32, device);
      inputs.push_back(i % 2 == 0 ? select(wide, 1, 1) : full({3}, value, DType::f32, device));
    }
    expected += sum_of_inputs;
    CHECK(step(inputs).item<float>() == Approx(6 * sum_of_inputs));
    CHECK(w.grad().to_vector<float>() == std::vector<float>(3, static_cast<float>(expected)));
  }
  CHECK(step.recordings() == 1);
}

TEST_CASE("What comes seldom is not recorded, and what was recorded can be forgotten", "[capture][cuda]") {
  const Tensor total = zeros({4}, DType::f32, cuda());
  int runs = 0;
  CapturedStep step(
      [&](const Tensors& x) {
        ++runs;
        copy_(total, total + x[0]);
        return total * 2.0;
      },
      cuda(), 3);
  for (int call = 1; call <= 8; ++call) {
    if (call == 7) step.forget();
    CHECK(step({full({4}, 1, DType::f32, cuda())}).to_vector<float>() == std::vector<float>(4, static_cast<float>(2 * call)));
    CHECK((step.nodes() > 0) == (call >= 4 && call < 7));
    CHECK(runs == (call < 7 ? std::min(call, 4) : 4 + call - 6));
  }
}

TEST_CASE("A replay leaves alone what was made since its capture, and the results of other shapes", "[capture][cuda]") {
  std::map<std::int64_t, Tensor> states;
  CapturedStep step(
      [&](const Tensors& x) {
        Tensor& state = states[x[0].numel()];
        if (!state.defined()) state = zeros(x[0].shape(), DType::f32, cuda());
        copy_(state, state + (x[0] * 2.0 + 1.0) * 3.0);
        return state * 2.0;
      },
      cuda());
  std::map<std::int64_t, float> expected;
  std::map<std::int64_t, Tensor> results;
  for (const std::int64_t n : {100, 100, 101, 101, 100, 102, 102, 101, 100, 102, 101, 100}) {
    results[n] = step({full({n}, static_cast<double>(n), DType::f32, cuda())});
    expected[n] += static_cast<float>(6 * n + 3);
    for (const auto& [m, value] : expected) {
      INFO(m << " after " << n);
      CHECK(states[m].to_vector<float>() == std::vector<float>(static_cast<std::size_t>(m), value));
      CHECK(results[m].to_vector<float>() == std::vector<float>(static_cast<std::size_t>(m), 2 * value));
    }
  }
}

TEST_CASE("The shapes used last are kept, and one that was dropped is recorded anew", "[capture][cuda]") {
  int runs = 0;
  CapturedStep step([&](const Tensors& x) { return ++runs, x[0] * 2.0; }, cuda());
  constexpr std::int64_t most = CapturedStep::max_recordings;
  const auto call = [&](std::int64_t n) {
    CHECK(step({full({n}, static_cast<double>(n), DType::f32, cuda())}).to_vector<float>() ==
          std::vector<float>(static_cast<std::size_t>(n), static_cast<float>(2 * n)));
  };
  const auto calls = [&](std::int64_t n) {
    const int before = runs;
    for (int i = 0; i < 3; ++i) call(n);  // as written, captured, replayed
    return runs - before;
  };
  for (std::int64_t n = 1; n <= most; ++n) CHECK(calls(n) == 2);
  CHECK(step.recordings() == most);
  CHECK(calls(1) == 0);
  CHECK(calls(most + 1) == 2);  // in place of 2
  CHECK(step.recordings() == most);
  CHECK(calls(1) == 0);
  CHECK(calls(2) == 2);  // in place of 3
  CHECK(calls(4) == 0);

  // Memory: the graphs of dropped shapes leave nothing behind.
  synchronize(cuda());
  const std::size_t before = memory_statistics(cuda()).allocated;
  for (std::int64_t n = 2 * most; n < 5 * most; ++n) calls(n);
  synchronize(cuda());
  CHECK(step.recordings() == most);
  CHECK(memory_statistics(cuda()).allocated <= before + 8 * most * std::size_t{4096});
}

TEST_CASE("A step without a function is an error where it is made") {
  CHECK_THROWS_WITH(CapturedStep(nullptr), "[CapturedStep] expected a function but got none");
  CHECK_THROWS_WITH(CapturedStep([](const Tensors& x) { return x[0]; }, cpu, 0),
                    "[CapturedStep] expected one run as written or more but got 0");
}

namespace {

struct Named {
  Tensor x, scale, shift;  // scale may be undefined
};

void check_named(Device device) {
  CapturedStep step([](const Named& batch) { return (batch.scale.defined() ? batch.x * batch.scale : batch.x) - batch.shift; }, device);
  for (int call = 0; call < 4; ++call) {
    const float value = static_cast<float>(call);
    const Tensor x = full({2}, value, DType::f32, device), shift = full({2}, 1, DType::f32, device);
    CHECK(step(Named{x, {}, shift}).to_vector<float>() == std::vector<float>(2, value - 1));
    CHECK(step(Named{x, full({2}, 3, DType::f32, device), shift}).to_vector<float>() == std::vector<float>(2, 3 * value - 1));
  }
  CHECK(step.recordings() == (device == cpu ? 0 : 2));
}

}  // namespace

TEST_CASE("a step takes a batch with names, of which some may be undefined", "[capture]") { check_named(cpu); }
TEST_CASE("a step takes a batch with names, of which some may be undefined, replayed too", "[capture][cuda]") { check_named(cuda()); }
