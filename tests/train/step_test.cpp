// The one training step against the same sequence written by hand, bit for bit.
#include "train/step.h"

#include <bit>

#include "nn/fixture.h"
#include "ops/factory.h"
#include "ops/loss.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "train/train.h"

using namespace tern;

namespace {

struct Net final : nn::Module {
  void visit(nn::Visitor& v) override {
    v("in", in);
    v("out", out);
  }
  Tensor loss(const Tensor& x, const Tensor& y) const { return mse_loss(out.forward(gelu(in.forward(x))), y); }
  nn::Linear in{5, 7}, out{7, 3, false};
};

enum class Gradients { own, flat, flat_f16 };

struct Training {
  explicit Training(Gradients gradients, bool scaled, Device device) : model(fresh()) {
    nn::to(model, device);
    if (gradients == Gradients::flat) nn::flatten_parameters(model);
    if (gradients == Gradients::flat_f16) train::set_precision(model, train::Precision::fp16);
    optimizer.emplace(nn::parameters(model), train::AdamOptions{.lr = 1e-2});
    if (scaled) scaler.emplace(train::GradScalerOptions{.scale = 1 << 18, .interval = 3}, device);
  }
  static Net fresh() {
    manual_seed(4);
    return {};
  }
  Tensor loss(unsigned step) {
    const Device device = model.in.weight.device();
    const auto batch = [&](unsigned seed, std::int64_t width) {
      return cast(Tensor::from(draw(seed, 4 * width, 2), {4, width}, device), model.in.weight.dtype());
    };
    return model.loss(batch(2 * step, 5), batch(2 * step + 1, 3));
  }
  /// The bits of everything that a step changes: an overflow's NaN equals itself.
  std::vector<std::uint32_t> state() {
    std::vector<std::uint32_t> result;
    const auto add = [&](const Tensor& x) {
      for (float value : floats(x)) result.push_back(std::bit_cast<std::uint32_t>(value));
    };
    for (const NamedTensor& entry : optimizer->state()) add(entry.tensor);
    for (const Tensor& x : nn::parameters(model)) add(x), add(x.grad());
    if (scaler) add(scaler->scale()), add(scaler->clean_steps());
    return result;
  }
  Net model;
  std::optional<train::Adam> optimizer;
  std::optional<train::GradScaler> scaler;
};

/// The step in the words of what it is made of.
Tensor update_by_hand(const Tensor& loss, Training& training, double max_norm) {
  training.optimizer->zero_grad();
  if (training.scaler) {
    (cast(loss, DType::f32) * training.scaler->scale()).backward();
    return training.scaler->step(*training.optimizer, max_norm);
  }
  loss.backward();
  const train::ClippedNorm clip = train::clip_factor(training.optimizer->parameters(), max_norm);
  if (std::isfinite(max_norm)) training.optimizer->step({.factor = clip.factor});
  else training.optimizer->step();
  return clip.norm;
}

void check_update(Device device) {
  for (const Gradients gradients : {Gradients::own, Gradients::flat, Gradients::flat_f16})
    for (const bool scaled : {false, true})
      for (const double max_norm : {0.05, double(INFINITY)}) {
        INFO("gradients " << int(gradients) << (scaled ? ", scaled" : "") << ", max_norm " << max_norm);
        Training a(gradients, scaled, device), b(gradients, scaled, device);
        int longer = 0, skipped = 0;
        for (unsigned step = 0; step < 12; ++step) {
          const Tensor norm = train::update(a.loss(step), *a.optimizer, {.max_norm = max_norm, .scaler = a.scaler ? &*a.scaler : nullptr});
          const Tensor expected = update_by_hand(b.loss(step), b, max_norm);
          CHECK(norm.defined() == (scaled || std::isfinite(max_norm)));
          if (norm.defined())
            CHECK(std::bit_cast<std::uint32_t>(norm.item<float>()) == std::bit_cast<std::uint32_t>(expected.item<float>()));
          longer += expected.item<float>() > 0.05f;
          skipped += !std::isfinite(expected.item<float>());
          REQUIRE((a.state() == b.state()));
        }
        CHECK(longer > 6);                                                              // clipping had something to do
        CHECK((skipped > 0) == (scaled && gradients == Gradients::flat_f16));           // and so had the scaler
        CHECK(a.optimizer->steps().item<float>() == static_cast<float>(12 - skipped));  // a skipped step does not count
      }
}

}  // namespace

TEST_CASE("an update is zero_grad, backward, clip and step, bit for bit", "[step]") { check_update(cpu); }
TEST_CASE("an update is zero_grad, backward, clip and step on a GPU", "[step][cuda]") { check_update(cuda()); }

TEST_CASE("a batch in parts is the update of the whole, but for the order of sums", "[step]") {
  for (const bool is_scaled : {false, true})
    for (const double max_norm : {0.05, std::numeric_limits<double>::infinity()}) {
      Training whole(Gradients::flat, is_scaled, cpu), parts(Gradients::flat, is_scaled, cpu);
      for (unsigned step = 0; step < 5; ++step) {
        const Tensor x = Tensor::from(draw(2 * step, 35, 2), {7, 5}), y = Tensor::from(draw(2 * step + 1, 21, 2), {7, 3});
        const auto options = [&](Training& training) {
          return train::UpdateOptions{.max_norm = max_norm, .scaler = training.scaler ? &*training.scaler : nullptr};
        };
        const Tensor norm = train::update(whole.model.loss(x, y), *whole.optimizer, options(whole));
        parts.optimizer->zero_grad();
        const auto part = [&](std::int64_t first, std::int64_t last) {
          const double share = static_cast<double>(last - first) / 7;
          train::accumulate(parts.model.loss(slice(x, 0, first, last), slice(y, 0, first, last)) * share, options(parts));
        };
        part(0, 3), part(3, 4), part(4, 7);
        const Tensor same = train::apply(*parts.optimizer, options(parts));
        CHECK(norm.defined() == same.defined());
        if (norm.defined()) CHECK(norm.item<double>() == Approx(same.item<double>()).epsilon(1e-5));
      }
      for (const auto& entry : nn::named_parameters(whole.model))
        for (const auto& other : nn::named_parameters(parts.model))
          if (entry.name == other.name) CHECK(distance(entry.tensor, other.tensor) < 1e-5);
    }
}

TEST_CASE("an update that is refused leaves gradients and parameters as they were", "[step]") {
  Training training(Gradients::flat, false, cpu);
  train::update(training.loss(0), *training.optimizer);
  const std::vector<std::uint32_t> before = training.state();
  const Tensor loss = training.loss(1);
  for (const double max_norm : {0.0, -1.0, double(NAN)})
    CHECK_THROWS_AS(train::update(loss, *training.optimizer, {.max_norm = max_norm}), Error);
  CHECK((training.state() == before));
  train::update(loss, *training.optimizer);
  CHECK((training.state() != before));
}
