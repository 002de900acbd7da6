// Layers with fused kernels against the same layers with plain ones, and against loops.
#include "nn/fixture.h"
#include "ops/factory.h"
#include "ops/loss.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "plain.h"

using namespace tern;

namespace {

constexpr std::int64_t rows = 3, length = 7, vocab = 19;

nn::DecoderLMOptions options(Device device, double dropout = 0) {
  return {.vocab = vocab, .length = length, .width = 24, .layers = 3, .heads = 3, .ff = 40, .dropout = dropout, .device = device};
}

Tensor ids(unsigned seed, Device device) { return draw_ids(seed, {rows, length}, vocab, device); }

/// Padding at the end, in a row none, in another all but one key.
Tensor padding(Device device) {
  Tensor hidden = full({rows, length}, 0, DType::boolean);
  for (std::int64_t t = 4; t < length; ++t) hidden.data<bool>()[length + t] = true;
  for (std::int64_t t = 1; t < length; ++t) hidden.data<bool>()[2 * length + t] = true;
  return to(hidden, device);
}

AttentionMask mask(int kind, Device device) {
  AttentionMask o{.causal = kind != 1};
  if (kind >= 1) o.padding = padding(device);
  if (kind == 3) o.prefix = Tensor::from(std::vector<std::int64_t>{3, 0, 7}, {rows}, device);
  return o;
}

struct Pass {
  Tensor logits, loss;
  Tensors gradients;
};

Pass pass(nn::DecoderLM& model, int kind, Device device) {
  manual_seed(5);  // for dropout
  Pass result;
  result.logits = model.forward(ids(1, device), mask(kind, device));
  manual_seed(5);
  result.loss = model.loss(ids(1, device), ids(2, device), {.label_smoothing = 0.1}, mask(kind, device));
  CHECK(distance(result.loss, cross_entropy(result.logits, ids(2, device), {.label_smoothing = 0.1})) < 1e-6);
  result.loss.backward();
  for (const Tensor& x : nn::parameters(model)) result.gradients.push_back(x.grad());
  return result;
}

void check_agreement(Device device) {
  for (const double dropout : {0.0, 0.3})
    for (const bool final_norm : {true, false})
      for (int kind = 0; kind < 4; ++kind) {
        INFO("dropout " << dropout << ", final norm " << final_norm << ", mask " << kind);
        Pass passes[2];
        for (const bool fused : {false, true}) {
          manual_seed(3);
          const FusedKernels kernels(fused);
          nn::DecoderLMOptions o = options(device, dropout);
          o.final_norm = final_norm;
          nn::DecoderLM model(o);
          model.train();
          passes[fused] = pass(model, kind, device);
        }
        CHECK(distance(passes[0].logits, passes[1].logits) < 5e-6);
        CHECK(distance(passes[0].loss, passes[1].loss) < 1e-6);
        for (std::size_t i = 0; i < passes[0].gradients.size(); ++i) CHECK(distance(passes[0].gradients[i], passes[1].gradients[i]) < 2e-6);
      }
}

}  // namespace

TEST_CASE("fused and plain models agree under every mask, with the same dropout", "[fused]") { check_agreement(cpu); }
TEST_CASE("fused and plain models agree on a GPU", "[fused][cuda]") { check_agreement(cuda()); }
TEST_CASE("a query that sees nothing gets zeros, plain and fused", "[fused]") {
  const Tensor hidden = full({1, 3}, 1, DType::boolean);
  nn::MultiHeadAttention layer(8, {.heads = 2, .bias = false});
  for (const bool fused : {false, true}) {
    const FusedKernels kernels(fused);
    const Tensor x = randn({1, 3, 8}, 0, 1).set_requires_grad();
    const Tensor y = layer.forward(x, {.padding = hidden});
    CHECK(distance(y, zeros({1, 3, 8})) == 0);
    y.backward(ones({1, 3, 8}));
    CHECK(distance(x.grad(), zeros({1, 3, 8})) == 0);
  }
}

TEST_CASE("a scope chooses the kernels of a whole model, which are fused without one", "[fused]") {
  manual_seed(3);
  const nn::DecoderLM model(options(cpu));
  const auto logits = [&] { return floats(model.forward(ids(1, cpu), mask(2, cpu))); };
  const std::vector<float> fused = logits(), plain = test::plain(logits)();
  CHECK(fused != plain);  // they do round differently
  CHECK(logits() == fused);
}

TEST_CASE("one mask serves plain and fused layers", "[fused]") {
  manual_seed(12);
  const nn::TransformerLayer layer({.width = 24, .heads = 3, .ff = 40, .dropout = 0});
  const Tensor x = randn({rows, length, 24});
  for (int kind = 0; kind < 4; ++kind) {
    const AttentionMask shared = nn::shared_by_layers(mask(kind, cpu));
    const auto states = [&] { return layer.forward(x, shared); };
    CHECK(distance(test::plain(states)(), states()) < 5e-6);
  }
}

TEST_CASE("fused linear layers agree with their plain ones", "[fused]") {
  manual_seed(13);
  const nn::Linear layer(6, 9);
  const Tensor x = randn({4, 6}), targets = Tensor::from(std::vector<std::int64_t>{1, 8, 0, 3}, {4});
  CHECK(distance(layer.forward(x, {}) + layer.bias, layer.forward(x)) < 1e-6);
  for (const nn::Activation a : {nn::Activation::gelu, nn::Activation::gelu_tanh, nn::Activation::relu, nn::Activation::silu}) {
    const nn::FeedForward ff(6, 9, {.activation = a});
    const Tensor composed = nn::activate(a, ff.fc.forward(x));
    for (const bool adds_bias : {true, false}) {
      const auto both = [&] { return ff.forward(x, adds_bias); };
      const Tensor expected = adds_bias ? ff.proj.forward(composed) : ff.proj.forward(composed, {});
      CHECK(floats(test::plain(both)()) == floats(expected));
      CHECK(distance(both(), expected) < 1e-6);
    }
  }
  const CrossEntropyOptions smoothed{.label_smoothing = 0.1};
  const auto loss = [&] { return layer.cross_entropy(x, targets, smoothed); };
  const Tensor expected = cross_entropy(layer.forward(x), targets, smoothed);
  CHECK(distance(test::plain(loss)(), expected) == 0);
  CHECK(distance(loss(), expected) < 1e-6);
}

TEST_CASE("the Llama architecture trains, plain and fused alike, and knows positions by rotation", "[fused]") {
  Tensor logits[2];
  for (const bool fused : {false, true}) {
    manual_seed(6);
    const FusedKernels kernels(fused);
    nn::DecoderLMOptions o = options(cpu);
    o.activation = nn::Activation::silu;
    o.gated = true;
    o.bias = o.head_bias = false;
    o.norm = nn::NormKind::rms;
    o.positions = nn::Positions::rotary;
    nn::DecoderLM model(o);
    for (const auto& entry : nn::named_parameters(model)) {
      CHECK_FALSE(entry.name.ends_with("bias"));
      CHECK_FALSE(entry.name.starts_with("positions"));
    }
    CHECK(nn::named_parameters(model)[6].name == "blocks.0.ff.gate.weight");
    logits[fused] = model.forward(ids(1, cpu));
    cross_entropy(logits[fused], ids(2, cpu)).backward();
    for (const Tensor& x : nn::parameters(model)) REQUIRE(x.grad().defined());
    // Equal tokens at other places give other logits after the first layer; where nothing tells places apart, they would not.
    const Tensor same = full({1, length}, 3, DType::i64);
    const std::vector<float> row = floats(model.forward(same));
    CHECK(distance(std::vector<float>(row.begin(), row.begin() + vocab), std::vector<float>(row.end() - vocab, row.end())) < 1e-5);
    const Tensor mixed = Tensor::from(std::vector<std::int64_t>{1, 2, 3, 4, 1, 2, 3}, {1, length});
    const std::vector<float> other = floats(model.forward(mixed));
    CHECK(distance(std::vector<float>(other.begin(), other.begin() + vocab),
                   std::vector<float>(other.begin() + 4 * vocab, other.begin() + 5 * vocab)) > 1e-4);
    CHECK_THROWS_AS(model.forward(mixed, {.causal = true}, mixed), Error);
    o.heads = 8;  // heads of 3
    CHECK_THROWS_AS(nn::DecoderLM(o), Error);
  }
  CHECK(distance(logits[0], logits[1]) < 5e-6);
}
