// Transformers with activation checkpointing: every gradient is that of the model without it, bit for bit.
#include <optional>

#include "backend/memory.h"
#include "nn/fixture.h"
#include "ops/autocast.h"
#include "ops/captured_step.h"
#include "ops/factory.h"
#include "train/train.h"

using namespace tern;

namespace {

constexpr std::int64_t rows = 3, length = 7, vocab = 19;
constexpr CheckpointPolicy policies[] = {CheckpointPolicy::none, CheckpointPolicy::selective, CheckpointPolicy::full};

struct Form {
  bool is_fused = false;
  nn::Activation activation = nn::Activation::gelu;
  nn::Positions positions = nn::Positions::learned;
  train::Precision precision = train::Precision::fp32;
};

constexpr Form forms[] = {{},
                          {.is_fused = true},
                          {.is_fused = true, .activation = nn::Activation::gelu_tanh},
                          {.is_fused = true, .positions = nn::Positions::rotary},
                          {.is_fused = true, .activation = nn::Activation::gelu_tanh, .precision = train::Precision::bf16},
                          {.precision = train::Precision::bf16}};

nn::EncoderDecoderOptions options(const Form& form, CheckpointPolicy policy, Device device) {
  nn::EncoderDecoderOptions result;
  result.vocab = vocab, result.length = length, result.width = 24, result.layers = 3, result.heads = 3, result.ff = 40;
  result.dropout = 0.3, result.activation_dropout = form.activation == nn::Activation::gelu_tanh ? 0 : 0.2;
  result.activation = form.activation;
  result.positions = form.positions;
  result.activation_checkpointing = policy;
  result.device = device;
  return result;
}

Tensor ids(unsigned seed, Device device) { return draw_ids(seed, {rows, length}, vocab, device); }

Tensor lengths(Device device) { return Tensor::from(std::vector<std::int64_t>{7, 2, 5}, {rows}, device); }

template <class Model>
Tensor loss_of(const Model& model, Device device) {
  if constexpr (std::is_same_v<Model, nn::EncoderDecoder>)
    return model.loss(ids(1, device), lengths(device), ids(2, device), ids(3, device), {.label_smoothing = 0.1});
  else return model.loss(ids(1, device), ids(2, device), {.label_smoothing = 0.1}, {.causal = true, .prefix = lengths(device)});
}

/// The loss, the position of the random numbers behind it, and each gradient.
template <class Model>
std::vector<std::vector<float>> pass(const Form& form, CheckpointPolicy policy, Device device) {
  manual_seed(5);
  std::optional<Model> model(options(form, policy, device));
  train::set_precision(*model, form.precision);
  model->train();
  const Tensors parameters = nn::parameters(*model);
  std::optional<FusedKernels> kernels(form.is_fused);
  const Tensor loss = loss_of(*model, device);
  kernels.reset();  // backward runs the layers again as they ran
  const auto position = static_cast<float>(context().generator.position());
  model.reset();  // backward does not need it
  loss.backward();
  std::vector<std::vector<float>> result = {floats(loss), {position}};
  for (const Tensor& p : parameters) result.push_back(floats(p.grad()));
  return result;
}

template <class Model>
void check(Device device) {
  for (std::size_t i = 0; i < std::size(forms); ++i) {
    const auto want = pass<Model>(forms[i], CheckpointPolicy::none, device);
    for (const CheckpointPolicy policy : {CheckpointPolicy::selective, CheckpointPolicy::full}) {
      INFO("form " << i << ", policy " << int(policy));
      const auto got = pass<Model>(forms[i], policy, device);
      REQUIRE(got.size() == want.size());
      // The loss, the position and the gradients by their numbers: a mismatch is a line each and not all of their values.
      for (std::size_t j = 0; j < got.size(); ++j) {
        INFO("value " << j << " of " << got[j].size() << " elements, off by at most " << distance(got[j], want[j]));
        CHECK((got[j] == want[j]));
      }
    }
  }
}

}  // namespace

TEST_CASE("A language model with checkpointed layers has the same gradients") { check<nn::DecoderLM>(cpu); }
TEST_CASE("An encoder and a decoder with checkpointed layers have the same gradients, bit for bit") { check<nn::EncoderDecoder>(cpu); }
TEST_CASE("Models with checkpointed layers have the same gradients on a GPU, bit for bit", "[cuda]") {
  check<nn::DecoderLM>(cuda());
  check<nn::EncoderDecoder>(cuda());
}

TEST_CASE("Checkpointed layers replay in a captured step", "[cuda]") {
  std::vector<float> weights[3];
  for (const CheckpointPolicy policy : policies) {
    manual_seed(5);
    const Form form{.precision = train::Precision::bf16};
    nn::DecoderLM model(options(form, policy, cuda()));
    train::set_precision(model, form.precision);
    model.train();
    train::Adam optimizer(nn::parameters(model), {.lr = 1e-2});
    CapturedStep step(
        [&](const Tensors& batch) {
          const Tensor loss = model.loss(batch[0], batch[1]);
          train::update(loss, optimizer);
          return loss.detach();
        },
        cuda());
    for (unsigned i = 0; i < 10; ++i) step({ids(10 + i, cuda()), ids(30 + i, cuda())});
    CHECK(step.recordings() == 1);
    for (const Tensor& p : nn::parameters(model))
      for (const float x : floats(to(p, cpu))) weights[int(policy)].push_back(x);
  }
  CHECK(weights[1] == weights[0]);
  CHECK(weights[2] == weights[0]);
}
