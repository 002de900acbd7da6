#include "train/ema.h"

#include <cmath>

#include "autodiff/parameter_buffer.h"
#include "nn/fixture.h"
#include "ops/captured_step.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "train/train.h"

using namespace tern;

namespace {

nn::DecoderLM small_model(Device device = cpu) {
  manual_seed(5);
  return nn::DecoderLM({.vocab = 11, .length = 5, .width = 6, .layers = 1, .heads = 2, .ff = 7, .tied_head = true, .device = device});
}

/// All values of a module's masters.
std::vector<float> values_of(const nn::Module& module) {
  std::vector<float> result;
  for (const NamedTensor& entry : nn::named_masters(module))
    for (float value : floats(entry.tensor)) result.push_back(value);
  return result;
}

/// Parameters as the forward pass reads them.
std::vector<float> stored_in(const nn::Module& module) {
  std::vector<float> result;
  for (const NamedTensor& entry : nn::named_parameters(module))
    for (float value : floats(entry.tensor)) result.push_back(value);
  return result;
}

std::vector<float> averages_of(const train::Ema& ema) {
  std::vector<float> result;
  for (const NamedTensor& entry : ema.state())
    if (entry.name != "steps")
      for (float value : floats(entry.tensor)) result.push_back(value);
  return result;
}

Tensor token_ids(unsigned seed, Device device) {
  std::vector<std::int64_t> ids;
  for (float x : draw(seed, 15, 0.5, 0.5)) ids.push_back(static_cast<std::int64_t>(x * 10.9));
  return Tensor::from(ids, {3, 5}, device);
}

/// One update of everything.
Tensor step(const nn::DecoderLM& model, train::Optimizer& optimizer, train::Ema& ema, const Tensor& ids) {
  const Tensor loss = model.loss(ids, ids);
  train::update(loss, optimizer);
  ema.update();
  return loss.detach();
}

}  // namespace

TEST_CASE("An average of weights is the formula's in f64, in every precision") {
  for (const bool warmup : {true, false})
    for (const train::Precision precision : {train::Precision::fp32, train::Precision::bf16, train::Precision::fp16})
      for (const bool is_flat : {true, false}) {
        if (!is_flat && precision != train::Precision::fp32) continue;
        INFO(train::name(precision) << " warmup " << warmup << " flat " << is_flat);
        nn::DecoderLM model = small_model();
        if (is_flat) train::set_precision(model, precision);
        train::Adam optimizer(nn::parameters(model), {.lr = 0.05});
        constexpr double decay = 0.6;
        train::Ema ema(model, {.decay = decay, .warmup = warmup});
        std::vector<double> wanted;
        for (float value : values_of(model)) wanted.push_back(value);
        CHECK(distance(averages_of(ema), wanted) == 0);
        for (int t = 0; t < 12; ++t) {
          step(model, optimizer, ema, token_ids(static_cast<unsigned>(t), cpu));
          const double d = warmup ? std::min(decay, (1.0 + t) / (10.0 + t)) : decay;
          const std::vector<float> now = values_of(model);
          for (std::size_t i = 0; i < now.size(); ++i) wanted[i] = d * wanted[i] + (1 - d) * now[i];
          REQUIRE(distance(averages_of(ema), wanted) < 1e-6);
        }
        CHECK(ema.steps().item<float>() == 12);
        CHECK(distance(averages_of(ema), values_of(model)) > 1e-3);
        if (is_flat) CHECK(ema.state().size() == nn::named_parameters(model).size() + 1);
      }
}

TEST_CASE("A scope has the averages for weights, and then the weights again, bit for bit") {
  for (const train::Precision precision : {train::Precision::fp32, train::Precision::bf16, train::Precision::fp16}) {
    INFO(train::name(precision));
    // Two trainings, of which one looks at its averages after each update.
    std::vector<std::vector<float>> ends;
    for (const bool looks : {true, false}) {
      nn::DecoderLM model = small_model();
      train::set_precision(model, precision);
      train::Adam optimizer(nn::parameters(model), {.lr = 0.05});
      train::Ema ema(model, {.decay = 0.9});
      manual_seed(9);
      for (unsigned t = 0; t < 5; ++t) {
        step(model, optimizer, ema, token_ids(t, cpu));
        if (!looks) continue;
        const std::vector<float> masters = values_of(model), stored = stored_in(model), averages = averages_of(ema);
        {
          const train::EmaScope scope(ema);
          CHECK(values_of(model) == averages);
          CHECK(distance(stored_in(model), averages) < (precision == train::Precision::fp32 ? 1e-12 : 1e-2));
          CHECK(stored_in(model) != stored);
          CHECK_THROWS_AS(ema.update(), Error);
          CHECK_THROWS_AS(train::EmaScope(ema), Error);
        }
        CHECK(values_of(model) == masters);
        CHECK(stored_in(model) == stored);
        CHECK(averages_of(ema) == averages);
      }
      ends.push_back(values_of(model));
    }
    CHECK(ends[0] == ends[1]);
  }
}

TEST_CASE("An average's state, copied into another one, continues it") {
  nn::DecoderLM model = small_model();
  train::set_precision(model, train::Precision::bf16);
  train::Adam optimizer(nn::parameters(model), {.lr = 0.05});
  train::Ema one(model, {.decay = 0.7});
  for (unsigned t = 0; t < 4; ++t) step(model, optimizer, one, token_ids(t, cpu));
  train::Ema other(model, {.decay = 0.7});
  CHECK(averages_of(other) != averages_of(one));
  const auto from = one.state(), into = other.state();
  REQUIRE(from.size() == into.size());
  for (std::size_t i = 0; i < from.size(); ++i) {
    CHECK(from[i].name == into[i].name);
    copy_(into[i].tensor, from[i].tensor);
  }
  step(model, optimizer, one, token_ids(9, cpu));
  other.update();
  CHECK(averages_of(other) == averages_of(one));
}

TEST_CASE("Averages refuse a decay of 1, parameters that move, and 16 bits without masters; frozen ones have none") {
  nn::DecoderLM model = small_model();
  CHECK_THROWS_AS(train::Ema(model, {.decay = 1}), Error);
  CHECK_THROWS_AS(train::Ema(model, {.decay = -0.1}), Error);
  CHECK_THROWS_AS(train::Ema(model, {.decay = std::nan("")}), Error);
  train::Ema early(model);
  train::set_precision(model, train::Precision::fp32);  // which flattens
  CHECK_THROWS_AS(early.update(), Error);
  CHECK_THROWS_AS(train::EmaScope(early), Error);
  nn::DecoderLM halves = small_model();
  nn::to(halves, DType::bf16);
  CHECK_THROWS_AS(train::Ema(halves), Error);
  nn::DecoderLM frozen = small_model();
  Tensor(frozen.tokens.weight).set_requires_grad(false);
  for (const NamedTensor& entry : train::Ema(frozen).state()) CHECK(entry.name != "average.tokens.weight");
}

TEST_CASE("Averages of f64 are kept in f64") {
  nn::Linear layer(3, 2);
  nn::to(layer, DType::f64);
  train::Ema ema(layer, {.decay = 0.5, .warmup = false});
  {
    const NoGrad unrecorded;
    add_(layer.weight, 1e-12);
  }
  const auto before = layer.weight.detach().to_vector<double>();
  ema.update();
  const auto average = ema.state()[1].tensor.to_vector<double>();
  for (std::size_t i = 0; i < before.size(); ++i) CHECK(std::abs(average[i] - (before[i] - 0.5e-12)) < 1e-15);
}

TEST_CASE("An average in a captured step is that of a step as written", "[cuda]") {
  for (const train::Precision precision : {train::Precision::fp32, train::Precision::bf16}) {
    std::vector<std::vector<float>> ends;
    for (const bool is_captured : {true, false}) {
      nn::DecoderLM model = small_model(cuda());
      train::set_precision(model, precision);
      train::Adam optimizer(nn::parameters(model), {.lr = 0.05});
      train::Ema ema(model, {.decay = 0.9});
      CapturedStep captured([&](const Tensors& batch) { return step(model, optimizer, ema, batch[0]); }, cuda());
      manual_seed(9);
      for (unsigned t = 0; t < 20; ++t) {
        const Tensor ids = token_ids(t, cuda());
        if (is_captured) captured({ids});
        else step(model, optimizer, ema, ids);
        if (t % 7 == 3) {
          const train::EmaScope scope(ema);
          CHECK(values_of(model) == averages_of(ema));
        }
      }
      ends.push_back(averages_of(ema));
      ends.push_back(values_of(model));
    }
    CHECK(ends[0] == ends[2]);
    CHECK(ends[1] == ends[3]);
  }
}
