// Trainings of models that are written in plain ops: each loss of 300 compiled steps is that of the steps as written, bit for bit unless
// products of one weight run as one.
#include <cmath>
#include <memory>

#include "catch.h"
#include "compile/compile.h"
#include "nn/nn.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "tensor/context.h"
#include "train/train.h"

using namespace tern;

namespace {

Tensor normalized(const Tensor& x, const Tensor& gamma, const Tensor& beta) {
  const Tensor centered = x - mean(x, {-1}, true);
  return centered * rsqrt(mean(centered * centered, {-1}, true) + 1e-5) * gamma + beta;
}
Tensor weights_of(const Tensor& scores) {
  const Tensor e = exp(scores - max(scores, {-1}, true));
  return e / sum(e, {-1}, true);
}
Tensor gelu_of(const Tensor& x) { return x * 0.5 * (tanh((x + x * x * x * 0.044715) * 0.7978845608) + 1); }

/// A decoder of characters.
struct CharModel final : nn::Module {
  static constexpr std::int64_t vocab = 29, length = 12, width = 24, heads = 2;
  struct Layer final : nn::Module {
    void visit(nn::Visitor& v) override {
      v("qkv", qkv), v("proj", proj), v("up", up), v("down", down), v("gamma", gamma), v("beta", beta);
    }
    nn::Linear qkv{width, 3 * width}, proj{width, width}, up{width, 4 * width}, down{4 * width, width};
    Tensor gamma = ones({width}), beta = zeros({width});
  };
  CharModel() : tokens(vocab, width), positions(length, width), head(width, vocab), mask(triu(full({length, length}, -INFINITY), 1)) {
    for (Layer& layer : layers) layer.gamma.set_requires_grad(), layer.beta.set_requires_grad();
  }
  void visit(nn::Visitor& v) override {
    v("tokens", tokens), v("positions", positions), v("head", head), v("first", layers[0]), v("second", layers[1]);
  }
  Tensor loss(const Tensor& ids, const Tensor& targets) const {
    const std::int64_t batch = ids.size(0);
    Tensor x = dropout(tokens.forward(ids) + positions.weight, 0.1);
    for (const Layer& layer : layers) {
      const Tensor all =
          transpose(reshape(layer.qkv.forward(normalized(x, layer.gamma, layer.beta)), {batch, length, 3 * heads, width / heads}), 1, 2);
      const Tensors qkv = split(all, heads, 1);
      const Tensor scores = cast(matmul(qkv[0], transpose(qkv[1], -2, -1)), DType::f32) * std::sqrt(double(heads) / width) + mask;
      const Tensor mixed = matmul(dropout(cast(weights_of(scores), x.dtype()), 0.1), qkv[2]);
      x = x + dropout(layer.proj.forward(reshape(transpose(mixed, 1, 2), {batch, length, width})), 0.1);
      x = x + dropout(layer.down.forward(gelu_of(layer.up.forward(normalized(x, layer.gamma, layer.beta)))), 0.1);
    }
    const Tensor logits = cast(reshape(head.forward(x), {batch * length, vocab}), DType::f32);
    return mean(logsumexp(logits, {1}) - reshape(gather(logits, 1, reshape(targets, {batch * length, 1})), {batch * length}));
  }
  nn::Embedding tokens, positions;
  nn::Linear head;
  Layer layers[2];
  Tensor mask;
};

/// An LSTM of ops, which guesses the next input.
struct Lstm final : nn::Module {
  static constexpr std::int64_t width = 12;
  void visit(nn::Visitor& v) override { v("input", input), v("state", state), v("head", head); }
  Tensor loss(const Tensor& x, const Tensor& next) const {
    Tensor h = zeros({x.size(0), width}, input.weight.dtype()), c = h;
    Tensors outputs;
    for (std::int64_t t = 0; t < x.size(1); ++t) {
      const Tensors gates = split(input.forward(select(x, 1, t)) + state.forward(dropout(h, 0.1)), width, 1);
      c = sigmoid(gates[1]) * c + sigmoid(gates[0]) * tanh(gates[2]);
      h = sigmoid(gates[3]) * tanh(c);
      outputs.push_back(head.forward(h));
    }
    const Tensor distance = cast(stack(outputs, 1) - next, DType::f32);
    return mean(distance * distance);
  }
  nn::Linear input{width, 4 * width}, state{width, 4 * width}, head{width, width};
};

/// Losses of 300 steps on changing data, and what the parameters are then.
template <class Model, class Data>
std::vector<float> losses(bool is_compiled, train::Precision precision, const Data& data) {
  manual_seed(4);
  Model model;
  train::set_precision(model, precision);
  train::AdamW optimizer(nn::parameters(model), {.lr = 1e-3});
  const train::PrecisionScope scope(precision);
  const auto step = [&](const Tensor& x, const Tensor& y) {
    const Tensor loss = model.loss(x, y);
    train::update(loss, optimizer, {.max_norm = 1});
    return loss.detach();
  };
  auto compiled = tern::compile(step);
  std::vector<float> result;
  for (int i = 0; i < 300; ++i) {
    const auto [x, y] = data(i);
    optimizer.set_lr_factor(1 / (1 + 0.01 * i));
    result.push_back((is_compiled ? compiled(x, y) : step(x, y)).template item<float>());
  }
  if (is_compiled) CHECK(compiled.programs() == 1);
  CHECK(result.back() < 0.9f * result.front());
  for (const Tensor& x : nn::parameters(model))
    for (const float value : cast(x, DType::f32).to_vector<float>()) result.push_back(value);
  result.push_back(static_cast<float>(context().generator.position()));
  return result;
}

}  // namespace

TEST_CASE("300 compiled steps of a model of characters have the losses of those as written") {
  const auto data = [](int i) {
    const Tensor at = arange(4 * (CharModel::length + 1)).reshape({4, -1}) + i * 5;
    const Tensor ids = remainder(at * at + at * 3, CharModel::vocab);
    return std::pair{contiguous(slice(ids, 1, 0, CharModel::length)), contiguous(slice(ids, 1, 1))};
  };
  for (const train::Precision precision : {train::Precision::fp32, train::Precision::bf16})
    CHECK(losses<CharModel>(true, precision, data) == losses<CharModel>(false, precision, data));
}

TEST_CASE("300 compiled steps of an LSTM of ops have the losses of those as written") {
  const auto data = [](int i) {
    const Tensor wave = sin(arange(3 * 9 * Lstm::width, DType::f32).reshape({3, 9, -1}) * 0.3 + i * 0.7) * 0.5;
    return std::pair{contiguous(slice(wave, 1, 0, 8)), contiguous(slice(wave, 1, 1))};
  };
  const std::vector<float> compiled = losses<Lstm>(true, train::Precision::fp32, data),
                           written = losses<Lstm>(false, train::Precision::fp32, data);
  CHECK(compiled == losses<Lstm>(true, train::Precision::fp32, data));
  // Sums over all steps have another order than those step by step.
  REQUIRE(compiled.size() == written.size());
  CHECK(compiled.back() == written.back());
  for (std::size_t i = 0; i < written.size(); ++i) CHECK(std::abs(compiled[i] - written[i]) <= 1e-5f * (1 + std::abs(written[i])));
}
