// A training: its updates, its log, and how it ends.
#include "trainer/trainer.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "catch.h"
#include "files.h"
#include "json_lines.h"
#include "message.h"
#include "nn/layers.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"

using namespace tern;
using tern::test::json_lines, tern::test::TempDirectory;
using train::Trainer, train::TrainerOptions, train::Validation;
using Json = nlohmann::json;

namespace {

struct Batch {
  Tensor x, unused;
};

/// A weight (1, 2), whose gradient is the batch.
struct Line final : nn::Module {
  explicit Line(Device device = cpu) : weight(nn::Linear(2, 1, false, device).weight) {}
  void visit(nn::Visitor& v) override { v("weight", weight); }
  Tensor weight;

  /// `x` gives the batch of an update, from 0; none: an update without a batch.
  train::Task task(std::function<std::optional<std::vector<float>>(std::int64_t)> x, std::function<Validation(Trainer&)> validate = {}) {
    return {.loss = [this](const Batch& batch) { return sum(weight * batch.x); },
            .batch = [this, x](std::int64_t update) -> train::UpdateBatch {
              const auto values = x(update);
              if (!values) return {};
              return {.parts = {Batch{Tensor::from(*values, {1, 2}, weight.device()), {}}}, .items = 1};
            },
            .optimizer = [](const Tensors& parameters) { return std::make_unique<train::Adam>(parameters, train::AdamOptions{.lr = 0.1}); },
            .validate = std::move(validate)};
  }
};

/// The lines of the log of five updates, whose gradients have the norms 5, 10, 15, ...
std::vector<Json> log_of(double clip, Device device) {
  const TempDirectory directory;
  train::Run run("test", directory / "run", io::JsonObject());
  Line line(device);
  const auto batch = [](std::int64_t update) {
    return std::vector<float>{3 * (static_cast<float>(update) + 1), 4 * (static_cast<float>(update) + 1)};
  };
  Trainer(line, line.task(batch), {.updates = 5, .updates_per_epoch = 5, .lr = 0.1, .clip = clip}, run).run();
  std::vector<Json> log = json_lines(run.directory().log());
  REQUIRE(log.size() == 6);
  CHECK(log.back()["epoch"] == 1);
  log.pop_back();
  return log;
}

void check_norms(const std::vector<Json>& log) {
  for (std::size_t i = 0; i < log.size(); ++i) {
    const double norm = 5.0 * static_cast<double>(i + 1);
    CHECK(log[i]["update"] == i + 1);
    CHECK(std::abs(log[i]["grad_norm"].get<double>() - norm) < 1e-5 * norm);
    CHECK(log[i]["examples_per_second"] > 0);
    CHECK(log[i]["memory_bytes"] > 0);
  }
}

/// The message of a training of eight updates, a round each three, without a run.
std::string failure(double clip, const std::function<std::optional<std::vector<float>>(std::int64_t)>& batch,
                    std::function<Validation(Trainer&)> validate = {}) {
  train::Run run("test");
  Line line;
  return message_of<std::runtime_error>([&] {
    Trainer(line, line.task(batch, std::move(validate)), {.updates = 8, .updates_per_epoch = 3, .lr = 0.1, .clip = clip}, run).run();
  });
}

}  // namespace

TEST_CASE("Weights that are not finite replace no model and no checkpoint") {
  const TempDirectory directory;
  train::Run run("test", directory / "run", io::JsonObject());
  Line line;
  // After the second update a weight is NaN that neither the loss nor the validation reads.
  train::Task task = line.task([](std::int64_t) { return std::vector<float>{1, 0}; });
  task.loss = [&](const Batch&) { return sum(line.weight[{0, 0}]); };
  task.batch = [&, batch = task.batch](std::int64_t update) {
    const NoGrad scope;
    if (update == 1) fill_(line.weight[{0, 1}], NAN);
    return batch(update);
  };
  task.validate = [](const Trainer& trainer) { return Validation{.rank = std::pair(static_cast<double>(trainer.round()), 0.0)}; };
  CHECK(message_of<std::runtime_error>([&] { Trainer(line, task, {.updates = 4, .lr = 0.1}, run).run(); }) ==
        "the weights are not finite after update 2 of 4: train anew with a --lr below 0.1, or with --clip 1; " + run.directory().path() +
            " keeps the model of epoch 1");
  CHECK(io::load_safetensors_metadata(run.directory().model()).at("epoch") == "1");
  CHECK(io::RunDirectory::require_checkpoints(directory / "run").back().update == 1);
}

TEST_CASE("A loss that is not finite is seen at its update") {
  const auto finite = [](std::int64_t) { return std::vector<float>{3, 4}; };
  CHECK(failure(0, [](std::int64_t update) { return std::vector<float>{update == 1 ? INFINITY : 3, 4}; }) ==
        "the loss stopped being finite at update 2 of 8: train anew with a --lr below 0.1, or with --clip 1");
  // Of a validation, whose weights the last update has made.
  CHECK(failure(1, finite, [](const Trainer& trainer) { return trainer.require_finite(NAN), Validation{}; }) ==
        "the loss is not finite after update 3 of 8: train anew with a --lr below 0.1");
  // Two updates on, where nobody has looked.
  const auto first = [](std::int64_t update) { return update == 0 ? std::optional(std::vector<float>{3, 4}) : std::nullopt; };
  CHECK(failure(1, first, [](const Trainer& trainer) { return trainer.require_finite(INFINITY), Validation{}; }) ==
        "the loss stopped being finite between the updates 2 and 3 of 8: train anew with a --lr below 0.1");
}

TEST_CASE("The log has the norm of gradients before they are clipped") {
  for (const double clip : {1.0, 100.0}) check_norms(log_of(clip, cpu));
  for (const Json& line : log_of(0, cpu)) CHECK_FALSE(line.contains("grad_norm"));
}

TEST_CASE("The log has the norm of gradients of a captured update", "[cuda]") { check_norms(log_of(1, cuda())); }

TEST_CASE("A training that goes on is bitwise one that was not ended, and counts its session's updates from there") {
  const TempDirectory directory;
  const auto batch = [](std::int64_t update) { return std::vector<float>{static_cast<float>(update % 3) - 1, 1}; };
  const auto train = [&](const std::string& out, std::int64_t updates, bool resume, const std::function<Validation(Trainer&)>& validate) {
    manual_seed(1);
    train::Run run("test", directory / out, io::JsonObject(), {.resume = resume});
    Line line;
    const TrainerOptions options{
        .updates = updates, .updates_per_epoch = 4, .lr = 0.1, .schedule = "inverse-sqrt", .warmup = 2, .ema = 0.5};
    Trainer trainer(line, line.task(batch, validate), options, run);
    trainer.run();
    CHECK(trainer.numbers.get_int("own") == 7 * trainer.total_epochs());
    return line.weight.to_vector<float>();
  };
  std::vector<std::int64_t> firsts;
  const auto validate = [&](Trainer& trainer) {
    firsts.push_back(trainer.progress().first_update);
    CHECK(trainer.progress().updates == trainer.total_updates());
    CHECK(trainer.progress().seconds < 100);
    trainer.numbers.set("own", 7 * trainer.epochs());
    return Validation{};
  };
  const auto whole = train("whole", 8, false, validate);
  train("parts", 4, false, validate);
  CHECK(train("parts", 8, true, validate) == whole);
  CHECK(firsts == std::vector<std::int64_t>{0, 0, 0, 4, 4});  // the validation at update 4 is made again
  const std::vector<Json> log = json_lines(directory / "parts" / "log.jsonl"), expected = json_lines(directory / "whole" / "log.jsonl");
  REQUIRE(log.size() == expected.size());
  for (std::size_t i = 0; i < log.size(); ++i) CHECK(log[i].value("loss", 0.0) == expected[i].value("loss", 0.0));
}
