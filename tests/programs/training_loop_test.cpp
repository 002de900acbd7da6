// The loop of a training's updates, as its log and its status line show it.
#include "common/training_loop.h"

#include <cmath>

#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "support.h"

using namespace tern;
using namespace tern::apps;
using namespace tern::programs::test;

namespace {

/// A loop of eight updates of w, two numbers whose loss has the gradient (3, 4).
struct Loop {
  Tensor w = Tensor::from(std::vector<float>{1, 2}, {2}, cpu).set_requires_grad(true);
  TrainingLoop loop;

  explicit Loop(double clip)
      : loop([this](const Tensors&) { return sum(w * Tensor::from(std::vector<float>{3, 4}, {2}, cpu)); },
             std::make_unique<train::Adam>(std::vector<Tensor>{w}, train::AdamOptions{.lr = 0.1}),
             {.lr = 0.1, .lr_factor = [](std::int64_t) { return 1.0; }, .clip = clip, .updates = 8, .unit = "examples"}, cpu) {}
};

}  // namespace

TEST_CASE("The log has the norm of gradients before they are clipped") {
  const TempDirectory directory;
  for (const double clip : {0.0, 1.0, 100.0}) {
    TrainingRun run("test", directory / fmt::format("run-{}", clip), io::JsonObject());
    RunView view("test", &run);
    Loop at(clip);
    at.loop.begin_epoch();
    at.loop.step({}, 1);
    at.loop.log(view);
    const Json line = json_lines(run.directory().log()).at(0);
    CHECK(line["update"] == 1);
    CHECK(line["examples_per_second"] > 0);
    CHECK(line["memory_bytes"] > 0);
    if (clip == 0) CHECK_FALSE(line.contains("grad_norm"));
    else CHECK(std::abs(line["grad_norm"].get<double>() - 5) < 1e-5);
  }
}

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
