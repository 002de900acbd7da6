#include <cmath>

#include "autodiff/parameter_buffer.h"
#include "message.h"
#include "nn/fixture.h"
#include "ops/factory.h"
#include "ops/loss.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"

using namespace tern;

namespace {

/// Odd sizes, so that flat slices need padding.
nn::DecoderLMOptions odd_options() { return {.vocab = 13, .length = 7, .width = 6, .layers = 2, .heads = 3, .ff = 5, .dropout = 0}; }

Tensor some_ids(std::int64_t rows = 2, std::int64_t columns = 7, std::int64_t vocab = 13) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(rows * columns));
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(i * i + 3 * i) % vocab;
  return Tensor::from(ids, {rows, columns});
}

Tensor loss_of(const nn::DecoderLM& model) { return cross_entropy(model.forward(some_ids()), some_ids()); }

std::vector<std::string> names_of(const std::vector<NamedTensor>& entries) {
  std::vector<std::string> names;
  for (const NamedTensor& entry : entries) names.push_back(entry.name);
  return names;
}

struct WithBuffer final : nn::Module {
  void visit(nn::Visitor& v) override {
    v("fc", fc);
    v.buffer("mean", mean);
    v("none", none);
  }
  nn::Linear fc{3, 2};
  Tensor mean = ones({2});
  Tensor none;
};

}  // namespace

TEST_CASE("parameters are named by their path", "[module]") {
  const nn::DecoderLM model({.vocab = 13, .length = 7, .width = 6, .layers = 1, .heads = 3, .ff = 5});
  CHECK(names_of(nn::named_parameters(model)) ==
        std::vector<std::string>{"tokens.weight", "positions.weight", "blocks.0.norm1.weight", "blocks.0.norm1.bias",
                                 "blocks.0.attn.qkv.weight", "blocks.0.attn.qkv.bias", "blocks.0.attn.proj.weight",
                                 "blocks.0.attn.proj.bias", "blocks.0.norm2.weight", "blocks.0.norm2.bias", "blocks.0.ff.fc.weight",
                                 "blocks.0.ff.fc.bias", "blocks.0.ff.proj.weight", "blocks.0.ff.proj.bias", "norm.weight", "norm.bias",
                                 "head.weight", "head.bias"});
  for (const Tensor& x : nn::parameters(model)) CHECK(x.requires_grad());
}

TEST_CASE("a model may lack MLPs, norms and positions", "[module]") {
  nn::DecoderLMOptions options = odd_options();
  options.layers = 1;
  options.ff = 0;
  options.norm = nn::NormKind::none;
  options.positions = nn::Positions::none;
  manual_seed(1);
  const nn::DecoderLM model(options);
  CHECK(names_of(nn::named_parameters(model)) == std::vector<std::string>{"tokens.weight", "blocks.0.attn.qkv.weight",
                                                                          "blocks.0.attn.qkv.bias", "blocks.0.attn.proj.weight",
                                                                          "blocks.0.attn.proj.bias", "head.weight", "head.bias"});
  const Tensor x = model.tokens.forward(some_ids());
  const Tensor expected = model.head.forward(x + model.blocks[0].attn.forward(x, {.causal = true}));
  CHECK(distance(model.forward(some_ids()), expected) < 1e-5);
  const PlainKernels composed;
  CHECK(distance(model.forward(some_ids()), expected) < 1e-5);
}

TEST_CASE("buffers are apart from parameters, undefined tensors are passed over", "[module]") {
  WithBuffer module;
  CHECK(names_of(nn::named_parameters(module)) == std::vector<std::string>{"fc.weight", "fc.bias"});
  CHECK(names_of(nn::named_buffers(module)) == std::vector<std::string>{"mean"});
  CHECK(nn::count_parameters(module) == 8);
  nn::to(module, DType::f64);
  CHECK(module.mean.dtype() == DType::f64);
}

TEST_CASE("parameters are counted, shared ones once", "[module]") {
  CHECK(nn::count_parameters(nn::DecoderLM(nn::DecoderLMOptions{})) == 6'723'856);
  nn::DecoderLMOptions options = odd_options();
  const std::int64_t untied = nn::count_parameters(nn::DecoderLM(options));
  options.tied_head = true;
  const nn::DecoderLM tied(options);
  CHECK(nn::count_parameters(tied) == untied - 13 * 6);
  CHECK(tied.head.weight.is_same(tied.tokens.weight));
  // Both uses arrive in the one gradient.
  loss_of(tied).backward();
  nn::DecoderLM split = nn::clone(tied);
  CHECK(split.head.weight.is_same(split.tokens.weight));
  CHECK(!split.head.weight.is_same(tied.head.weight));
  split.head.weight = clone(tied.head.weight.detach()).set_requires_grad();
  loss_of(split).backward();
  const NoGrad unrecorded;
  CHECK(distance(tied.tokens.weight.grad(), split.tokens.weight.grad() + split.head.weight.grad()) < 1e-6);
}

TEST_CASE("a copy shares parameters and has its own mode, a clone has its own parameters", "[module]") {
  nn::DecoderLM model(odd_options());
  nn::DecoderLM copy = model, own = nn::clone(model);
  copy.eval();
  CHECK(model.blocks[1].drop.training);
  CHECK(!copy.blocks[1].drop.training);
  copy.train();
  CHECK(copy.blocks[1].attn.training);
  const Tensor before = clone(loss_of(model).detach());
  {
    const NoGrad unrecorded;
    mul_(model.head.weight, 2.0);
  }
  CHECK(distance(loss_of(copy), loss_of(model)) == 0);
  CHECK(distance(loss_of(own), before) == 0);
  CHECK(distance(loss_of(model), before) > 0);
  for (const Tensor& x : nn::parameters(own)) CHECK(x.requires_grad());
}

TEST_CASE("dropout acts in training alone, and repeats with the seed", "[module]") {
  nn::DecoderLMOptions options = odd_options();
  options.dropout = 0.5;
  nn::DecoderLM model(options);
  const auto logits = [&](std::uint64_t seed) {
    manual_seed(seed);
    return model.forward(some_ids());
  };
  CHECK(distance(logits(1), logits(2)) > 0);
  CHECK(distance(logits(1), logits(1)) == 0);
  model.eval();
  CHECK(distance(logits(1), logits(2)) == 0);
  options.dropout = 0;
  nn::DecoderLM without(options);
  for (std::size_t i = 0; i < nn::parameters(model).size(); ++i) {
    const NoGrad unrecorded;
    copy_(nn::parameters(without)[i], nn::parameters(model)[i]);
  }
  CHECK(distance(logits(1), without.forward(some_ids())) == 0);
}

TEST_CASE("flattening keeps values, gradients, handles and results", "[module][flat]") {
  nn::DecoderLM model(odd_options());
  loss_of(model).backward();
  const Tensors parameters = nn::parameters(model);
  std::vector<std::vector<float>> values, gradients;
  for (const Tensor& x : parameters) {
    values.push_back(floats(x));
    gradients.push_back(floats(x.grad()));
  }
  const Tensor loss = clone(loss_of(model).detach());
  const auto flat = nn::flatten_parameters(model);
  REQUIRE(flat.size() == 1);
  REQUIRE(flat[0].parameters.numel() > nn::count_parameters(model));  // there is padding
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Tensor& x = parameters[i];
    CHECK(nn::parameters(model)[i].is_same(x));
    CHECK(x.is_leaf());
    CHECK(x.requires_grad());
    CHECK(x.is_contiguous());
    CHECK(x.impl().storage == flat[0].parameters.impl().storage);
    CHECK(x.offset() % 4 == 0);
    CHECK(floats(x) == values[i]);
    CHECK(floats(x.grad()) == gradients[i]);
    CHECK(x.grad().offset() == x.offset());
  }
  CHECK(distance(loss_of(model), loss) == 0);
  // A second backward adds into the same memory; zero_grad empties it in place.
  loss_of(model).backward();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    std::vector<float> doubled = gradients[i];
    for (float& g : doubled) g *= 2;
    CHECK(distance(floats(parameters[i].grad()), doubled) < 1e-6);
    CHECK(parameters[i].grad().impl().storage == flat[0].gradients.impl().storage);
  }
  nn::zero_grad(model);
  for (const Tensor& x : parameters) CHECK(distance(floats(x.grad()), std::vector<float>(std::size_t(x.numel()))) == 0);
  CHECK(distance(floats(flat[0].gradients), std::vector<float>(std::size_t(flat[0].gradients.numel()))) == 0);
  CHECK(parameters[0].grad().impl().storage == flat[0].gradients.impl().storage);
  CHECK(contiguous_segments(parameters).size() == 1);
}

TEST_CASE("neighbours are merged over padding only where the storage says that it is padding", "[flat]") {
  const Tensor plain = zeros({16});
  const auto window = [](const Tensor& x, std::int64_t first, std::int64_t count) { return x.window({count}, {1}, first); };
  CHECK(is_adjacent(window(plain, 0, 4), window(plain, 4, 4)));
  CHECK(!is_adjacent(window(plain, 0, 3), window(plain, 4, 4)));
  CHECK(!is_adjacent(window(plain, 4, 4), window(plain, 0, 4)));
  CHECK(!is_adjacent(window(plain, 0, 4), window(zeros({16}), 4, 4)));

  struct Three final : nn::Module {
    void visit(nn::Visitor& v) override {
      v("a", a);
      v("gate", gate);
      v("b", b);
    }
    Tensor a = zeros({7}).set_requires_grad(), gate = zeros({1}).set_requires_grad(), b = zeros({5}).set_requires_grad();
  } module;
  nn::flatten_parameters(module);
  CHECK(is_adjacent(module.a, module.gate));
  CHECK(is_adjacent(module.gate, module.b));
  CHECK(!is_adjacent(module.a, module.b));  // the gate lies between
}

TEST_CASE("moving a module keeps handles, ties, gradients and flatness", "[module]") {
  nn::DecoderLMOptions options = odd_options();
  options.tied_head = true;
  nn::DecoderLM model(options);
  const Tensor handle = model.tokens.weight;
  nn::flatten_parameters(model);
  loss_of(model).backward();
  const std::vector<float> values = floats(handle), gradient = floats(handle.grad());
  const Tensor graph = loss_of(model);
  nn::to(model, DType::f64);
  CHECK(handle.dtype() == DType::f64);
  CHECK(model.head.weight.is_same(handle));
  CHECK(floats(handle) == values);
  CHECK(floats(handle.grad()) == gradient);
  CHECK(is_flat(handle));
  CHECK(is_flat(handle.grad()));
  CHECK(handle.requires_grad());
  CHECK_THROWS_AS(graph.backward(), Error);  // it saved the f32 weights
  CHECK(loss_of(model).dtype() == DType::f64);
  CHECK_THROWS_AS(nn::to(model, DType::i64), Error);
}

TEST_CASE("a tied table starts with logits of about 1", "[module]") {
  manual_seed(1);
  nn::DecoderLM model({.vocab = 500, .length = 8, .width = 64, .layers = 1, .heads = 2, .ff = 64, .head_bias = false, .tied_head = true});
  model.eval();
  const NoGrad unrecorded;
  const Tensor logits = model.forward(reshape(arange(16, DType::i64), {2, 8}));
  CHECK(std::sqrt(mean(square(logits)).item()) == Approx(1).margin(0.15));
}

TEST_CASE("zero_grad forgets gradients that are not flat", "[module]") {
  nn::DecoderLM model(odd_options());
  loss_of(model).backward();
  nn::zero_grad(model);
  CHECK(!model.tokens.weight.grad().defined());
  nn::set_requires_grad(model, false);
  CHECK(!loss_of(model).requires_grad());
}

TEST_CASE("anomaly mode names the module", "[module]") {
  nn::DecoderLM model(odd_options());
  {
    const NoGrad unrecorded;
    fill_(slice(model.blocks[1].ff.fc.weight, 0, 0, 1), std::nan(""));
  }
  const AnomalyMode anomaly(nn::module_names(model));
  const std::string message = message_of([&] { model.forward(some_ids()); });
  INFO(message);
  CHECK(message.find("blocks.1.ff.fc (Linear)") != std::string::npos);
}

TEST_CASE("layers agree with their formulas", "[layers]") {
  manual_seed(3);
  const Tensor x = randn({4, 6});
  nn::RMSNorm norm(6);
  const Tensor expected = x / sqrt(mean(square(x), {1}, true) + 1e-5);
  CHECK(distance(norm.forward(x), expected) < 1e-6);
  CHECK(distance(nn::GELU().forward(x), gelu(x)) == 0);
  CHECK(distance(nn::GELU(true).forward(x), gelu_tanh(x)) == 0);
  for (nn::Activation activation : {nn::Activation::gelu, nn::Activation::gelu_tanh, nn::Activation::relu, nn::Activation::silu})
    CHECK(nn::activate(activation, x).shape() == x.shape());
  CHECK(std::string(nn::name(nn::Activation::gelu_tanh)) == "gelu_tanh");
  CHECK(!nn::Linear(3, 2, false).bias.defined());
}

TEST_CASE("wrong options and inputs are refused in one line", "[layers]") {
  nn::DecoderLMOptions options = odd_options();
  const nn::DecoderLM model(options);
  CHECK_THROWS_AS(model.forward(some_ids(1, 8)), Error);
  CHECK_THROWS_AS(model.forward(zeros({1, 3})), Error);
  CHECK_THROWS_AS(model.forward(zeros({3}, DType::i64)), Error);
  CHECK_THROWS_AS(nn::Linear(0, 3), Error);
  CHECK_THROWS_AS(nn::Dropout(1.0), Error);
  CHECK_THROWS_AS(nn::Dropout(-0.1), Error);
  options.heads = 4;
  CHECK_THROWS_AS(nn::DecoderLM(options), Error);
}

TEST_CASE("initialisers have the stated bounds and deviations", "[init]") {
  manual_seed(5);
  const auto deviation = [](const Tensor& x) { return std::sqrt(var(cast(x, DType::f64)).item<double>()); };
  const Tensor w = zeros({200, 300});
  const auto largest = [&] { return double(max(abs(w)).item()); };
  nn::init::xavier_uniform(w);
  CHECK(largest() <= std::sqrt(6.0 / 500));
  CHECK(deviation(w) == Approx(std::sqrt(2.0 / 500)).epsilon(0.02));
  nn::init::xavier_normal(w, 2);
  CHECK(deviation(w) == Approx(2 * std::sqrt(2.0 / 500)).epsilon(0.02));
  nn::init::kaiming_uniform(w, std::sqrt(5.0));
  CHECK(largest() <= 1 / std::sqrt(300.0));
  CHECK(deviation(w) == Approx(1 / std::sqrt(900.0)).epsilon(0.02));
  nn::init::kaiming_normal(w);
  CHECK(deviation(w) == Approx(std::sqrt(2.0 / 300)).epsilon(0.02));
  nn::init::trunc_normal(w, 1, 0.5, 0, 2);
  CHECK(double(min(w).item()) >= 0);
  CHECK(double(max(w).item()) <= 2);
  CHECK(double(mean(w).item()) == Approx(1).epsilon(0.01));
  CHECK(deviation(w) == Approx(0.5 * 0.8796).epsilon(0.02));  // of a normal cut at two deviations
  nn::init::trunc_normal(w, 0, 1, 1, 3);
  CHECK(double(mean(w).item()) == Approx(1.5101).epsilon(0.01));  // (phi(1) - phi(3)) / (Phi(3) - Phi(1))
  CHECK_THROWS_AS(nn::init::trunc_normal(w, 0, 1, 1, 1), Error);
  CHECK_THROWS_AS(nn::init::kaiming_uniform(zeros({3})), Error);
  CHECK(nn::init::fans({8, 4, 3, 3}).in == 36);

  const nn::DecoderLM gpt(
      {.vocab = 500, .length = 64, .width = 64, .layers = 8, .heads = 4, .ff = 256, .initialization = nn::Initialization::gpt2});
  CHECK(deviation(gpt.tokens.weight) == Approx(0.02).epsilon(0.05));
  CHECK(deviation(gpt.blocks[3].attn.proj.weight) == Approx(0.02 / 4).epsilon(0.05));
  CHECK(deviation(gpt.blocks[3].ff.fc.weight) == Approx(0.02).epsilon(0.05));
  CHECK(double(max(abs(gpt.blocks[7].attn.qkv->bias)).item()) == 0);
  CHECK(double(min(gpt.blocks[7].norm1.weight).item()) == 1);
}

TEST_CASE("Where weights stay unset nothing is drawn, and constants are set", "[init]") {
  const std::uint64_t position = context().generator.position();
  const Tensor w = full({4}, 7);
  {
    const nn::init::Unset unset;
    nn::init::uniform(w), nn::init::normal(w), nn::init::trunc_normal(w);
    CHECK(w.to_vector<float>() == std::vector<float>(4, 7));
    CHECK(nn::Norm(nn::NormKind::layer, 4).weight.to_vector<float>() == std::vector<float>(4, 1));
  }
  CHECK(context().generator.position() == position);
  CHECK(nn::init::uniform(w).to_vector<float>() != std::vector<float>(4, 7));
}

TEST_CASE("A name that visit gives twice is an error at once") {
  struct Twice final : nn::Module {
    void visit(nn::Visitor& v) override {
      v("fc", a);
      v("fc", b);
    }
    nn::Linear a{2, 2}, b{2, 2};
  };
  Twice model;
  CHECK_THROWS_WITH(nn::parameters(model),
                    "[visit] expected different names but two tensors of the module are 'fc.weight': give each member of visit its own");
  model.b = model.a;  // tied: one layer
  CHECK(nn::parameters(model).size() == 2);
}
