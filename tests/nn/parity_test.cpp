// The decoder LM against PyTorch: the same weights, logits, loss, gradients and 20 steps of Adam.
#include "nn/fixture.h"
#include "ops/loss.h"
#include "ops/reduce.h"
#include "train/train.h"

using namespace tern;
using nlohmann::json;

namespace {

nn::DecoderLM model_of(const json& entry, Device device) {
  const json& o = entry["options"];
  nn::DecoderLM model({.vocab = o["vocab"],
                       .length = o["length"],
                       .width = o["width"],
                       .layers = o["layers"],
                       .heads = o["heads"],
                       .ff = o["ff"],
                       .dropout = 0,
                       .activation = o["activation"] == "gelu" ? nn::Activation::gelu : nn::Activation::gelu_tanh,
                       .head_bias = o["head_bias"]});
  const std::vector<NamedTensor> parameters = nn::named_parameters(model);
  REQUIRE(parameters.size() == entry["parameters"].size());
  const NoGrad unrecorded;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const json& row = entry["parameters"][i];
    const Tensor& x = parameters[i].tensor;
    REQUIRE(parameters[i].name == row["name"].get<std::string>());
    REQUIRE(std::vector<std::int64_t>(x.shape().begin(), x.shape().end()) == row["shape"].get<std::vector<std::int64_t>>());
    copy_(x, Tensor::from(draw(row["seed"], x.numel(), row["scale"], row["offset"]), x.shape()));
  }
  nn::to(model, device);
  return model;
}

struct Batch {
  Tensor ids, labels, weights;
};

Batch batch_of(const json& entry, std::size_t i, Device device) {
  const Shape shape{entry["rows"].get<std::int64_t>(), entry["columns"].get<std::int64_t>()};
  const json& b = entry["batches"][i];
  return {Tensor::from(b["ids"].get<std::vector<std::int64_t>>(), shape, device),
          Tensor::from(b["labels"].get<std::vector<std::int64_t>>(), shape, device),
          Tensor::from(b["weights"].get<std::vector<float>>(), shape, device)};
}

Tensor loss_of(const nn::DecoderLM& model, const Batch& batch, Tensor* logits = nullptr) {
  const Tensor y = model.forward(batch.ids);
  if (logits) *logits = y.detach();
  return cross_entropy(y, batch.labels, {.token_weights = batch.weights});
}

double norm(const std::vector<float>& x) {
  double total = 0;
  for (float value : x) total += double(value) * value;
  return std::sqrt(total);
}

void check_gradient(const Tensor& gradient, const json& row) {
  INFO("gradient of " << row["name"]);
  const std::vector<float> g = floats(gradient);
  const double expected_norm = row["norm"];
  CHECK(std::abs(norm(g) - expected_norm) <= 1e-4 * expected_norm);
  if (row.contains("gradient")) {
    std::vector<float> difference = Fixture::get().values(row["gradient"]);
    CHECK(distance(g, difference) <= 1e-4);
    for (std::size_t i = 0; i < g.size(); ++i) difference[i] -= g[i];
    CHECK(norm(difference) <= 1e-4 * expected_norm);
  } else {
    for (std::size_t j = 0; j < row["projection"].size(); ++j) {
      const std::vector<float> direction = draw(row["projection_seed"].get<std::uint64_t>() + j, gradient.numel(), 1);
      double projection = 0;
      for (std::size_t i = 0; i < g.size(); ++i) projection += double(g[i]) * direction[i];
      CHECK(std::abs(projection - row["projection"][j].get<double>()) <= 1e-4 * expected_norm);
    }
  }
}

void check_model(const char* name, bool flatten, Device device) {
  const json& entry = Fixture::get().index[name];
  nn::DecoderLM model = model_of(entry, device);
  if (flatten) nn::flatten_parameters(model);

  Tensor logits;
  const Tensor loss = loss_of(model, batch_of(entry, 0, device), &logits);
  std::vector<float> seen = floats(logits);
  if (entry.contains("logit_picks")) {
    std::vector<float> picked;
    for (std::size_t pick : entry["logit_picks"]) picked.push_back(seen[pick]);
    seen = std::move(picked);
  }
  CHECK(distance(seen, Fixture::get().values(entry["logits"])) <= 1e-5);
  CHECK(std::abs(loss.item() - entry["loss"].get<double>()) <= 1e-5);

  loss.backward();
  const Tensors parameters = nn::parameters(model);
  for (std::size_t i = 0; i < parameters.size(); ++i) check_gradient(parameters[i].grad(), entry["parameters"][i]);

  train::Adam optimizer(parameters, {.lr = entry["lr"]});
  for (std::size_t step = 0; step < entry["adam"].size(); ++step) {
    optimizer.zero_grad();
    const Tensor step_loss = loss_of(model, batch_of(entry, step % entry["batches"].size(), device));
    INFO("step " << step);
    CHECK(std::abs(step_loss.item() - entry["adam"][step].get<double>()) <= 1e-3);
    step_loss.backward();
    optimizer.step();
  }
  if (flatten) CHECK(optimizer.launches() == 1);
}

}  // namespace

TEST_CASE("a small classic model agrees with PyTorch", "[parity]") {
  check_model("small", false, cpu);
  check_model("small", true, cpu);
}

TEST_CASE("a small GPT-2 agrees with PyTorch", "[parity]") { check_model("gpt", true, cpu); }

TEST_CASE("the classic translation model agrees with PyTorch", "[parity]") { check_model("classic", true, cpu); }

TEST_CASE("models on a GPU agree with PyTorch", "[parity][cuda]") {
  check_model("small", false, cuda());
  check_model("gpt", true, cuda());
  check_model("classic", true, cuda());
}
