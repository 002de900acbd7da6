// Low-rank adapters (LoRA): gradients, frozen weights and their memory, merging, ties, decoding, quantised weights and refusals.
#include "nn/low_rank.h"

#include <map>

#include "backend/memory.h"
#include "message.h"
#include "nn/fixture.h"
#include "ops/factory.h"
#include "ops/gradcheck.h"
#include "ops/matmul.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "train/train.h"

using namespace tern;

namespace {

/// The two layers of feed-forward blocks: GPT-2's, which fused products compute, and Llama's.
nn::DecoderLMOptions gpt2() {
  nn::DecoderLMOptions o;
  o.vocab = 31, o.length = 12, o.width = 16, o.layers = 2, o.heads = 2, o.ff = 24, o.dropout = 0;
  o.activation = nn::Activation::gelu_tanh, o.head_bias = false, o.tied_head = true;
  return o;
}
nn::DecoderLMOptions llama() {
  nn::DecoderLMOptions o = gpt2();
  o.norm = nn::NormKind::rms, o.positions = nn::Positions::rotary, o.activation = nn::Activation::silu, o.gated = true;
  o.bias = false, o.tied_head = false;
  return o;
}

/// A model with adapters of rank 3, none of which is zero.
nn::DecoderLM adapted(const nn::DecoderLMOptions& options, DType dtype = DType::f32) {
  manual_seed(3);
  nn::DecoderLM model(options);
  nn::to(model, dtype);
  nn::add_low_rank(model, {.rank = 3, .alpha = 6});
  for (const NamedTensor& entry : nn::named_parameters(model))
    if (entry.name.ends_with("lora_b")) nn::init::uniform(entry.tensor, -0.5, 0.5);
  return model;
}

Tensors trained(const nn::Module& model) {
  Tensors result = nn::parameters(model);
  std::erase_if(result, [](const Tensor& x) { return !x.requires_grad(); });
  return result;
}

Tensor ids(unsigned seed, Device device = cpu) { return draw_ids(seed, {2, 9}, 31, device); }

std::vector<float> logits(const nn::DecoderLM& model) {
  const NoGrad unrecorded;
  return floats(model.forward(ids(1)));
}

/// Compares gradients of adapters with those of composed ops in float64 on the CPU.
void check_gradients(Device device, double tolerance) {
  for (const bool is_gpt2 : {true, false})
    for (const bool is_fused : {false, true})
      for (const CheckpointPolicy policy : {CheckpointPolicy::none, CheckpointPolicy::selective, CheckpointPolicy::full}) {
        INFO("gpt2 " << is_gpt2 << ", fused " << is_fused << ", policy " << int(policy));
        nn::DecoderLMOptions options = is_gpt2 ? gpt2() : llama();
        const auto gradients = [&](DType dtype, Device where) {
          nn::DecoderLM model = adapted(options, dtype);
          nn::to(model, where);
          model.loss(ids(1, where), ids(2, where)).backward();
          std::vector<std::vector<float>> result;
          for (const Tensor& x : trained(model)) result.push_back(floats(x.grad()));
          for (const Tensor& x : nn::parameters(model)) CHECK(x.grad().defined() == x.requires_grad());
          return result;
        };
        std::vector<std::vector<float>> want;
        {
          const PlainKernels composed;
          want = gradients(DType::f64, cpu);
        }
        options.activation_checkpointing = policy;
        const FusedKernels kernels(is_fused);
        const auto got = gradients(DType::f32, device);
        REQUIRE(got.size() == want.size());
        REQUIRE(got.size() == std::size_t(2 * 2 * (is_gpt2 ? 4 : 5)));
        for (std::size_t i = 0; i < got.size(); ++i) {
          CHECK(distance(got[i], want[i]) < tolerance);
          CHECK(distance(want[i], std::vector<float>(want[i].size())) > 1e-5);  // else there is nothing to compare
        }
      }
}

}  // namespace

TEST_CASE("An adapter adds alpha / R (x A^T) B^T, with the gradients of that formula, and trains alone") {
  manual_seed(1);
  nn::Sequential net(nn::Linear(5, 4), nn::Linear(4, 3, false));
  nn::to(net, DType::f64);
  const Tensor x = cast(randn({2, 6, 5}), DType::f64).set_requires_grad();
  const Tensor before = net(x);
  nn::add_low_rank(net, {.rank = 2, .alpha = 3, .layers = {"0"}});
  const nn::Linear& layer = net.at<nn::Linear>(0);
  REQUIRE(layer.low_rank.a.shape() == Shape{2, 5});
  REQUIRE(layer.low_rank.b.shape() == Shape{4, 2});
  CHECK(layer.low_rank.a.dtype() == DType::f64);
  CHECK(distance(net(x), before) == 0);
  CHECK(max(abs(layer.low_rank.a)).item() <= 1 / std::sqrt(5.0));
  CHECK(max(abs(layer.low_rank.a)).item() > 0.1);
  CHECK(nn::to_string(net).find("bias=true, rank=2)") != std::string::npos);
  std::vector<std::string> names;
  for (const NamedTensor& entry : nn::named_parameters(net))
    if (entry.tensor.requires_grad()) names.push_back(entry.name);
  CHECK(names == std::vector<std::string>{"0.lora_a", "0.lora_b"});

  nn::init::uniform(layer.low_rank.b, -1, 1);
  const Tensor a = layer.low_rank.a.detach(), b = layer.low_rank.b.detach();
  const Tensor whole = layer.weight + matmul(b, a, 1.5);
  const Tensor want = linear(linear(x, whole, layer.bias), net.at<nn::Linear>(1).weight);
  CHECK(max(abs(net(x) - want)).item() < 1e-14);
  CHECK(gradcheck([&](const Tensors&) -> Tensors { return {net(x)}; }, {x, layer.low_rank.a, layer.low_rank.b}));
  sum(net(x)).backward();
  CHECK(layer.low_rank.a.grad().defined());
  CHECK(!layer.weight.grad().defined());
  CHECK(!layer.bias.grad().defined());
}

TEST_CASE("Gradients of adapters in a model are those of float64, with plain and fused kernels, and checkpoints") {
  check_gradients(cpu, 1e-6);
}

TEST_CASE("Gradients of adapters in a model are those of float64 on a GPU", "[cuda]") { check_gradients(cuda(), 1e-5); }

TEST_CASE("Merged adapters give the same logits and the same text, and copies do not add them again") {
  for (const bool is_gpt2 : {true, false}) {
    INFO("gpt2 " << is_gpt2);
    nn::DecoderLM model = adapted(is_gpt2 ? gpt2() : llama());
    const nn::DecoderLM copy = model;
    const std::vector<float> before = logits(model);
    const std::vector<nn::TokenIds> prompts = {{3, 9, 4}, {7}};
    const auto texts = [&](const nn::DecoderLM& of) {
      std::vector<nn::TokenIds> result;
      for (const auto& row : nn::generate(of, prompts, {}, {.eos = -1})) result.push_back(row.at(0).tokens);
      return result;
    };
    const auto text = texts(model);
    nn::merge_low_rank(model);
    CHECK(nn::named_parameters(model).size() < nn::named_parameters(copy).size());
    CHECK(trained(model).empty());
    CHECK(distance(logits(model), before) < 1e-5);
    CHECK(distance(logits(copy), before) < 1e-5);
    CHECK(texts(model) == text);
    nn::DecoderLM without = adapted(is_gpt2 ? gpt2() : llama());
    for (const Tensor& x : trained(without)) fill_(x.detach(), 0);
    CHECK(distance(logits(without), before) > 1e-2);
  }
}

TEST_CASE("Adapters of 16 bits train and merge from their masters, and layers with one weight share one") {
  nn::DecoderLM model = adapted(gpt2());
  train::set_precision(model, train::Precision::bf16);
  train::AdamW optimizer(trained(model), {.lr = 1e-3});
  const float first = model.loss(ids(1), ids(2)).item();
  for (int i = 0; i < 20; ++i) train::update(model.loss(ids(1), ids(2)), optimizer);
  CHECK(model.loss(ids(1), ids(2)).item() < first - 0.1F);
  const Tensor weight = model.blocks[0].ff.fc.weight;
  std::map<std::string, Tensor> masters;
  for (const NamedTensor& entry : nn::named_masters(model)) masters[entry.name] = entry.tensor;
  const Tensor a = masters.at("blocks.0.ff.fc.lora_a"), b = masters.at("blocks.0.ff.fc.lora_b");
  REQUIRE(a.dtype() == DType::f32);
  const Tensor want = cast(cast(weight, DType::f32) + matmul(b, a, 2), DType::bf16);
  nn::merge_low_rank(model);
  CHECK(floats(weight) == floats(want));

  nn::DecoderLM before(gpt2());  // whose weights have masters
  train::set_precision(before, train::Precision::bf16);
  nn::add_low_rank(before);
  for (const NamedTensor& entry : nn::named_parameters(before))
    if (entry.name.ends_with("lora_b")) nn::init::uniform(entry.tensor, -0.5, 0.5);
  nn::merge_low_rank(before);
  const auto parameters = nn::named_parameters(before), files = nn::named_masters(before);
  for (std::size_t i = 0; i < parameters.size(); ++i) CHECK(floats(cast(files[i].tensor, DType::bf16)) == floats(parameters[i].tensor));

  nn::Sequential twice(nn::Linear(4, 4), nn::ReLU(), nn::Linear(4, 4));
  twice.at<nn::Linear>(2).weight = twice.at<nn::Linear>(0).weight;
  nn::add_low_rank(twice, {.layers = {""}});
  CHECK(trained(twice).size() == 2);
  nn::init::uniform(twice.at<nn::Linear>(0).low_rank.b, -1, 1);
  const Tensor x = randn({3, 4}), y = twice(x);
  nn::merge_low_rank(twice);
  CHECK(distance(twice(x), y) < 1e-5);
}

TEST_CASE("A step of adapters takes less than half the memory of a step of all weights") {
  const auto peak = [](bool has_adapters) {
    nn::DecoderLMOptions options = gpt2();
    options.width = 128, options.ff = 512, options.layers = 4;
    nn::DecoderLM model(options);
    if (has_adapters) nn::add_low_rank(model, {.rank = 4});
    train::AdamW optimizer(trained(model), {.lr = 1e-3});
    const std::size_t weights = std::size_t(4 * nn::count_parameters(model));
    const std::size_t others = backend::memory_statistics(Cpu{}, cpu).allocated - weights;
    backend::reset_peak_memory(Cpu{}, cpu);
    for (int i = 0; i < 2; ++i) train::update(model.loss(ids(1), ids(2)), optimizer);
    return double(backend::memory_statistics(Cpu{}, cpu).peak_allocated - others) / double(weights);
  };
  CHECK(peak(true) < 0.5 * peak(false));
}

TEST_CASE("Adapters are found by their names, and stay beside quantised weights") {
  const nn::DecoderLM model = adapted(gpt2());
  std::map<std::string, Tensor> saved;
  for (const NamedTensor& entry : nn::named_parameters(model))
    if (entry.tensor.requires_grad()) saved[entry.name] = entry.tensor.detach();
  manual_seed(3);
  nn::DecoderLM other(gpt2());
  nn::add_low_rank(other, {.rank = 3, .alpha = 6});
  for (const NamedTensor& entry : nn::named_parameters(other))
    if (entry.tensor.requires_grad()) copy_(entry.tensor.detach(), saved.at(entry.name));
  CHECK(logits(other) == logits(model));
  for (const NamedTensor& entry : nn::named_parameters(model))
    if (entry.tensor.dims() == 2 && !entry.tensor.requires_grad())
      copy_(entry.tensor, dequantize(quantize(entry.tensor, QuantFormat::int8)));
  nn::quantize(other, QuantFormat::int8);
  CHECK(distance(logits(other), logits(model)) < 2e-3);  // activations have 16 bits
  CHECK(trained(other).empty());
  CHECK(message_of([&] { nn::merge_low_rank(other); }).find("'blocks.0.attn.qkv' is quantised") != std::string::npos);
}

TEST_CASE("Adapters that cannot be added leave the module as it was") {
  nn::DecoderLM model(gpt2());
  const auto refusal = [&](const nn::LowRankOptions& options) {
    const std::string text = message_of([&] { nn::add_low_rank(model, options); });
    for (const Tensor& x : nn::parameters(model)) CHECK(x.requires_grad());
    return text;
  };
  CHECK(refusal({.rank = 0}).find("rank >= 1 and a finite alpha but got 0") != std::string::npos);
  CHECK(refusal({.alpha = std::nan("")}).find("finite alpha") != std::string::npos);
  CHECK(refusal({.layers = {"qvk", "up"}}).find("one of [qvk, up] but the module has none") != std::string::npos);
  CHECK(refusal({.layers = {"blocks.", "head"}}).find("'head' shares its weight") != std::string::npos);
  nn::Sequential twice(nn::Linear(4, 4), nn::Linear(4, 4));
  twice.at<nn::Linear>(1).weight = twice.at<nn::Linear>(0).weight;
  CHECK(message_of([&] { nn::add_low_rank(twice, {.layers = {"0"}}); }).find("'0' shares its weight") != std::string::npos);
  nn::add_low_rank(model, {.layers = {"proj"}});
  CHECK(trained(model).size() == 8);
  CHECK(message_of([&] { nn::add_low_rank(model); }).find("'blocks.0.attn.proj' has an adapter") != std::string::npos);
  nn::DecoderLM quantised(gpt2());
  nn::quantize(quantised, QuantFormat::int8);
  CHECK(message_of([&] { nn::add_low_rank(quantised); }).find("'blocks.0.attn.qkv' is quantised") != std::string::npos);
}
