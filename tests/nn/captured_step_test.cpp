#include "nn/captured_step.h"

#include "fixture.h"
#include "ops/factory.h"
#include "ops/loss.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"

using namespace tern;

namespace {

Tensor ids(unsigned seed, std::int64_t length, Device device) {
  std::vector<std::int64_t> values;
  for (float x : draw(seed, 4 * length, 0.5, 0.5)) values.push_back(static_cast<std::int64_t>(x * 19));
  return Tensor::from(values, {4, length}, device);
}

/// A model, and what a training loop does with it.
struct Training {
  explicit Training(bool use_fused_kernel, Device device)
      : model(options(use_fused_kernel, device)), optimizer((nn::flatten_parameters(model), nn::parameters(model)), {.lr = 1e-2}) {
    model.train();
  }
  static nn::DecoderLMOptions options(bool use_fused_kernel, Device device) {
    manual_seed(3);
    return {.vocab = 19, .length = 9, .width = 24, .layers = 2, .heads = 3, .ff = 40, .dropout = 0.2, .use_fused_kernel = use_fused_kernel, .device = device};
  }
  Tensor step(const Tensors& batch) {
    optimizer.zero_grad();
    const Tensor loss = cross_entropy(model.forward(batch[0]), batch[0]);
    loss.backward();
    nn::clip_grad_norm(optimizer.parameters(), 0.5);
    optimizer.step();
    return loss.detach();
  }
  nn::DecoderLM model;
  nn::Adam optimizer;
};

/// Everything a training leaves behind, after 100 steps on two lengths with a learning rate that moves.
std::vector<float> train(bool captured, bool use_fused_kernel, Device device, std::size_t expected_recordings) {
  Training training(use_fused_kernel, device);
  nn::CapturedStep replay([&](const Tensors& batch) { return training.step(batch); }, device);
  std::vector<float> result;
  manual_seed(8);
  for (unsigned step = 0; step < 100; ++step) {
    training.optimizer.set_lr_factor(1 / (1 + 0.01 * step));
    const Tensors batch{ids(step, step % 3 == 2 ? 7 : 9, device)};
    const Tensor loss = captured ? replay(batch) : training.step(batch);
    if (step % 10 == 9) result.push_back(loss.item<float>());
    if (step == 50) rand({5}, 0, 1, DType::f32, device);  // somebody else draws
    if (step == 70) manual_seed(77);
  }
  CHECK(replay.recordings() == (captured ? expected_recordings : 0));
  if (captured && expected_recordings > 0) CHECK(replay.nodes() > 10);
  for (const Tensor& x : nn::parameters(training.model))
    for (float value : floats(x)) result.push_back(value);
  result.push_back(static_cast<float>(context().generator.position()));
  return result;
}

}  // namespace

TEST_CASE("on the CPU a captured step runs as written", "[capture]") { CHECK(train(true, false, cpu, 0) == train(false, false, cpu, 0)); }

TEST_CASE("replayed steps are bitwise those that run as written, dropout included", "[capture][cuda]") {
  for (const bool use_fused_kernel : {false, true}) CHECK(train(true, use_fused_kernel, cuda(), 2) == train(false, use_fused_kernel, cuda(), 0));
}

TEST_CASE("a step that waits for the device is refused, and the next is well", "[capture][cuda]") {
  bool waits = true;
  nn::CapturedStep step([&](const Tensors& x) { return waits && sum(x[0]).item<float>() > 100 ? x[0] : x[0] + 1; }, cuda());
  const Tensor x = full({3}, 2, DType::f32, cuda());
  step({x});  // runs as written, where waiting is allowed
  CHECK_THROWS_AS(step({x}), Error);
  waits = false;
  CHECK(step({x}).to_vector<float>() == std::vector<float>{3, 3, 3});
  CHECK(step({x + 1}).to_vector<float>() == std::vector<float>{4, 4, 4});
  CHECK_THROWS_AS(step({Tensor()}), Error);
  CHECK_THROWS_AS(step({full({3}, 2)}), Error);
}
