// The loop of a training's updates, as its log and its status line show it.
#include "common/training_loop.h"

#include <cmath>

#include "common/epoch_loop.h"
#include "nn/layers.h"
#include "ops/copy.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "support.h"

using namespace tern;
using namespace tern::apps;
using namespace tern::programs::test;

namespace {

/// A loop of eight updates of w, two numbers whose gradient is the batch.
struct Loop {
  Tensor w;
  TrainingLoop loop;

  explicit Loop(double clip, Device device = cpu)
      : w(Tensor::from(std::vector<float>{1, 2}, {2}, device).set_requires_grad(true)),
        loop([this](const Tensors& batch) { return sum(w * batch[0]); },
             std::make_unique<train::Adam>(std::vector<Tensor>{w}, train::AdamOptions{.lr = 0.1}),
             {.lr = 0.1, .lr_factor = [](std::int64_t) { return 1.0; }, .clip = clip, .updates = 8, .unit = "examples"}, device) {}
};

/// The lines of the log of a few updates, whose gradients have the norms 5, 10, 15, ...
std::vector<Json> log_of(double clip, Device device) {
  const TempDirectory directory;
  TrainingRun run("test", directory / "run", io::JsonObject());
  RunView view("test", &run);
  Loop at(clip, device);
  at.loop.begin_epoch();
  for (const float factor : {1.0F, 2.0F, 3.0F, 4.0F, 5.0F}) {
    at.loop.step({Tensor::from(std::vector<float>{3 * factor, 4 * factor}, {2}, device)}, 1);
    at.loop.log(view);
  }
  return json_lines(run.directory().log());
}

void check_norms(const std::vector<Json>& log) {
  REQUIRE(log.size() == 5);
  for (std::size_t i = 0; i < log.size(); ++i) {
    const double norm = 5.0 * static_cast<double>(i + 1);
    CHECK(log[i]["update"] == i + 1);
    CHECK(std::abs(log[i]["grad_norm"].get<double>() - norm) < 1e-5 * norm);
    CHECK(log[i]["examples_per_second"] > 0);
    CHECK(log[i]["memory_bytes"] > 0);
  }
}

/// Four epochs of an update each. After the second one a weight is NaN that neither the loss nor the validation reads.
class Spoilt : public Trainable {
 public:
  Spoilt()
      : net_(2, 1, false),
        loop_([this](const Tensors&) { return sum(net_.weight[{0, 0}]); },
              std::make_unique<train::SGD>(nn::parameters(net_), train::SGDOptions{}),
              {.lr = 0.1, .lr_factor = [](std::int64_t) { return 1.0; }, .updates = 4, .unit = "examples"}, cpu) {}
  TrainingLoop& loop() override { return loop_; }
  void run_epoch(std::int64_t epoch, std::int64_t, const std::function<void()>& after_update) override {
    loop_.begin_epoch();
    loop_.step(Tensors{}, 1);
    const NoGrad scope;
    if (epoch == 1) fill_(net_.weight[{0, 1}], NAN);
    after_update();
    loop_.end_epoch();
  }
  Validation validate(std::int64_t epochs, bool) override { return {.rank = std::pair(static_cast<double>(epochs), 0.0)}; }
  void report(std::int64_t, const Validation&) override {}
  const nn::Module& model() const override { return net_; }

 private:
  nn::Linear net_;
  TrainingLoop loop_;
};

}  // namespace

TEST_CASE("Weights that are not finite replace no model and no checkpoint") {
  const TempDirectory directory;
  TrainingRun run("test", directory / "run", io::JsonObject());
  Spoilt training;
  CHECK(message_of<std::runtime_error>([&] { EpochLoop(training, &run, {}).run(); }) ==
        "the weights are not finite after update 2 of 4: train anew with a --lr below 0.1, or with --clip 1");
  CHECK(io::load_safetensors_metadata(run.directory().model()).at("epoch") == "1");
  const auto files = io::RunDirectory::require_checkpoints(directory / "run");
  CHECK(files.back().update == 1);
}

TEST_CASE("A loss that is not finite is seen at its update") {
  Loop at(0);
  at.loop.begin_epoch();
  at.loop.step({Tensor::from(std::vector<float>{3, 4}, {2})}, 1);
  CHECK(message_of<std::runtime_error>([&] { at.loop.step({Tensor::from(std::vector<float>{INFINITY, 4}, {2})}, 1); }) ==
        "the loss stopped being finite at update 2 of 8: train anew with a --lr below 0.1, or with --clip 1");
  // Of a validation, whose weights the last update has made.
  Loop after(1);
  after.loop.begin_epoch();
  after.loop.step({Tensor::from(std::vector<float>{3, 4}, {2})}, 1);
  CHECK(message_of<std::runtime_error>([&] { after.loop.require_finite(NAN); }) ==
        "the loss is not finite after update 1 of 8: train anew with a --lr below 0.1");
  // Two updates on, where nobody has looked.
  after.loop.skip();
  after.loop.skip();
  CHECK(message_of<std::runtime_error>([&] { after.loop.require_finite(INFINITY); }) ==
        "the loss stopped being finite between the updates 2 and 3 of 8: train anew with a --lr below 0.1");
}

TEST_CASE("The log has the norm of gradients before they are clipped") {
  for (const double clip : {1.0, 100.0}) check_norms(log_of(clip, cpu));
  for (const Json& line : log_of(0, cpu)) CHECK_FALSE(line.contains("grad_norm"));
}

TEST_CASE("The log has the norm of gradients of a captured update", "[cuda]") { check_norms(log_of(1, cuda())); }

TEST_CASE("A loop that goes on counts its session's updates from there") {
  Loop at(0);
  CHECK(at.loop.progress(1, 2, 0.5).first_update == 0);
  io::JsonObject numbers;
  numbers.set("update", 4).set("updates", 8).set("steps", 2).set("items", 64).set("seconds", 1000.0).set("logged_loss", 0.0);
  at.loop.restore(numbers.set("logged_steps", 1));
  const Progress progress = at.loop.progress(1, 2, 0.5);
  CHECK(progress.update == 4);
  CHECK(progress.first_update == 4);
  CHECK(progress.updates == 8);
  CHECK(progress.seconds < 100);
  CHECK(std::string(progress.unit) == "examples");
}
