// A DeviceScope over the whole library: what makes tensors of its own makes them there, and what has operands follows these.
#include <tern/tern.h>

#include "catch.h"
#include "files.h"

using namespace tern;

namespace {

nn::DecoderLM some_model() {
  return nn::DecoderLM({.vocab = 11, .length = 8, .width = 8, .layers = 1, .heads = 2, .ff = 16, .dropout = 0.1});
}

/// Trains, saves, loads and generates with a model and inputs that are on their device already; `device` is the thread's default one.
void use_on(Device operands, Device device) {
  const test::TempDirectory directory;
  const std::string path = (directory / "model.safetensors").string();
  nn::DecoderLM model = some_model();
  nn::to(model, operands);
  const Tensor ids = reshape(arange(8, DType::i64, operands), {2, 4});
  train::GradScaler scaler({.scale = 4}, operands);
  for (const bool fused : {false, true}) {
    train::AdamW optimizer(nn::parameters(model), {.lr = 1e-3});
    train::Lion other(nn::parameters(model), {.lr = 1e-3});
    const DeviceScope scope(device);
    const FusedKernels kernels(fused);
    model.train();
    for (train::Optimizer* each : std::initializer_list<train::Optimizer*>{&optimizer, &other})
      train::update(cross_entropy(model.forward(ids), ids), *each, {.max_norm = 1, .scaler = &scaler});
    nn::init::trunc_normal(model.head.weight.detach());
    io::save_safetensors(path, nn::named_parameters(model));
    CHECK(io::load_safetensors(path).tensors.at("head.weight").device() == cpu);
    io::load_safetensors_into(path, nn::named_parameters(model));
    model.train(false);
    for (const nn::Search search : {nn::Search::greedy, nn::Search::beam, nn::Search::sample})
      CHECK(nn::generate(model, {{1, 2}, {3}}, {}, {.search = search, .max_new_tokens = 2, .beam = 2}).size() == 2);
    for (const Tensor& x : nn::parameters(model)) CHECK(x.device() == operands);
  }
}

/// The rows of a tensor.
struct Rows {
  Tensor x;
  std::int64_t size() const { return x.size(0); }
  Tensors operator[](std::int64_t i) const { return {x[i]}; }
};

}  // namespace

TEST_CASE("What makes tensors of its own makes them on the default device") {
  const DeviceScope scope(cuda(100));  // which no machine has: each says so, or that the build has no CUDA
  CHECK(data::LoaderOptions{}.device == cuda(100));
  CHECK(profile::ProfilerOptions{}.device == cuda(100));
  CHECK(nn::DecoderLMOptions{}.device == cuda(100));
  CHECK_THROWS_AS(train::GradScaler(), Error);
  CHECK_THROWS_AS(nn::KvCache(1, 8, 1), Error);
  CHECK_THROWS_AS(CapturedStep([](const Tensors& inputs) { return inputs[0]; }), Error);
  CHECK_THROWS_AS(some_model(), Error);
}

TEST_CASE("A training and its generation stay on the model's device, whatever the default device is") { use_on(cpu, cuda(100)); }

TEST_CASE("All of a training is on the GPU of a DeviceScope", "[cuda]") {
  use_on(cuda(), cpu);
  const DeviceScope scope(cuda());
  use_on(cuda(), cuda());
  train::GradScaler scaler;
  CHECK(scaler.scale().device() == cuda());
  CHECK(nn::KvCache(1, 8, 1).lengths.device() == cuda());
  CHECK(has_linalg() == has_linalg(cuda()));
  nn::DecoderLM model = some_model();
  train::SGD optimizer(nn::parameters(model), {.lr = 0.1});
  CapturedStep step([&](const Tensors& batch) {
    const Tensor loss = cross_entropy(model.forward(batch[0]), batch[0]);
    train::update(loss, optimizer, {.scaler = &scaler});
    return loss.detach();
  });
  data::Loader loader(Rows{remainder(reshape(arange(64, DType::i64, cpu), {16, 4}), 11)}, {.batch_size = 4});
  while (const auto batch = loader.next()) {
    CHECK((*batch)[0].device() == cuda());
    CHECK(step(*batch).device() == cuda());
  }
  CHECK(step.nodes() > 0);
}
