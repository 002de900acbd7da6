#include "recall/train.h"

#include <fmt/format.h>

#include "common/model.h"
#include "common/program.h"
#include "io/files.h"
#include "io/run_directory.h"
#include "recall/targets.h"
#include "recall/training.h"
#include "text/unicode.h"
#include "trainer/stop.h"

namespace tern::recall {

using apps::counted, apps::duration, apps::say, train::seconds_now;

namespace {

std::string digest(const DataSet& data) {
  io::Checksum sum;
  for (const Examples* examples : {&data.train, &data.valid, &data.test})
    for (const auto* values : {&examples->inputs, &examples->targets}) sum.add(values->data(), values->size() * sizeof values->front());
  return sum.hex();
}

/// The text of the first example: its first columns, and the columns up to its first question.
void print_example(const Task& task, const Examples& examples) {
  const std::int64_t end = examples.answer_columns[0] + 1, shown = std::min<std::int64_t>(8, end / 2);
  std::string inputs = "  input ", targets = "  target";
  for (std::int64_t column = 0; column < end; ++column) {
    if (column == shown && column < end - shown) {
      inputs += "  ...";
      targets += "  ...";
      column = end - shown;
    }
    const auto at = static_cast<std::size_t>(column);
    const std::int64_t target = examples.targets[at];
    inputs += fmt::format("{:>5}", token_name(task, examples.inputs[at]));
    targets += fmt::format("{:>5}", target < 0 ? "-" : token_name(task, target));
  }
  say("{}\n{}\n", inputs, targets);
}

void print_losses(const std::vector<TargetLoss>& losses) {
  say("\n  {:<28}{:>9}  {:>13}  {:>14}\n", "test target", "targets", "loss in nats", "least possible");
  for (const TargetLoss& target : losses)
    say("  {:<28}{:>9}  {:>13.4f}  {:>14.4f}\n", target.label, target.count, target.loss, target.least);
  say("\n");
}

}  // namespace

Device require_trainable(const Options& options) {
  require_valid(options);
  const Device device = apps::use(options);
  apps::require_precision(precision(options), device);
  apps::require_memory(apps::count_parameters(model_options(options, device)), device, "use a smaller --width, --layers, --mlp or --pairs");
  return device;
}

void train(const Options& options) {
  const double started = seconds_now();
  const Device device = require_trainable(options);
  apps::require_named("--out", options.out);
  if (!options.checkpoints.resume) io::RunDirectory::check(options.out);
  manual_seed(static_cast<std::uint64_t>(options.seed));

  train::Ranks ranks(options.ranks, device);
  const train::StopSignals signals;
  // Before long work, to detect at once a directory that cannot be written or that another training writes. An earlier run in it stays
  // until this one has a model.
  train::Run run("tern-recall", options.out, apps::to_json(entries(), options), options.checkpoints, &ranks);
  const DataSet data = make_data_set(task(options), static_cast<std::uint64_t>(options.seed), options.train_examples,
                                     options.valid_examples, options.test_examples);
  const std::string checksum = digest(data);
  run.set_data("", checksum);
  ranks.require_same("options or data", apps::to_json(entries(), options).dump() + checksum);
  run.require_size(apps::count_parameters(model_options(options, device)));
  Training training(options, data, device, run);
  train::Trainer& trainer = training.trainer();
  const std::int64_t params = nn::count_parameters(training.model());
  say("task     {}: {} pairs, vocabulary {}; {} training, {} validation, {} test examples\n", options.task, options.pairs,
      task(options).ids(), options.train_examples, options.valid_examples, options.test_examples);
  print_example(task(options), data.train);
  say("model    {}, width {}, {}, {}: {:.2f} M parameters\n", counted(options.layers, "layer"), options.width,
      counted(options.heads, "head"), options.mlp > 0 ? fmt::format("MLP of {}", options.mlp * options.width) : "no MLP",
      static_cast<double>(params) / 1e6);
  say("training {} updates of {} examples at most on {}{}, {}, {}\n", trainer.total_updates(), options.batch_size, ranks.describe(),
      apps::describe(device), options.precision,
      apps::describe_step(options.use_fused_kernel, ranks.shard() >= parallel::Shard::gradients ? cpu : device));

  trainer.run();
  ranks.leave();
  if (!ranks.is_first()) return;

  const Score score = training.test();
  const Interval interval = wilson(score);
  io::JsonObject summary;
  summary.set("preset", options.preset).set("task", options.task).set("device", to_string(device));
  summary.set("precision", options.precision).set("use_fused_kernel", options.use_fused_kernel).set("params", params);
  if (!ranks.is_alone()) summary.set("ranks", std::int64_t{ranks.size()});
  summary.set("epochs", trainer.epochs()).set("updates", trainer.updates()).set("best_epoch", trainer.best().round);
  summary.set("train_seconds", training.seconds()).set("total_seconds", seconds_now() - started);
  summary.set("examples_per_second", trainer.items_per_second());
  summary.set("train_loss", trainer.train_loss()).set("test_loss", score.loss);
  summary.set("test_accuracy", score.accuracy()).set("test_answers", score.answers);
  summary.set("test_accuracy_low", interval.low).set("test_accuracy_high", interval.high);
  if (const auto passed = training.passed())
    summary.set("epoch_of_90_percent", passed->epoch).set("seconds_to_90_percent", passed->seconds);
  std::vector<TargetLoss> losses;
  if (options.loss == "all") {
    losses = loss_by_target(task(options), data.test, training.test_losses());
    io::JsonObject by_target;
    for (const TargetLoss& target : losses) by_target.set(target.name, target.loss);
    summary.set("test_loss_by_target", by_target).set("least_loss", losses.back().least);
  }

  if (!losses.empty()) print_losses(losses);
  say("test accuracy {:.2f}% (95% confidence: {:.2f}% to {:.2f}%) on {} answers, loss {:.4f} nats\n", 100 * score.accuracy(),
      100 * interval.low, 100 * interval.high, score.answers, score.loss);
  if (const auto passed = training.passed()) say("90% were passed in epoch {}, after {}\n", passed->epoch, duration(passed->seconds));
  else say("90% were not passed in {}\n", counted(trainer.epochs(), "epoch"));
  run.finish(summary);
  say("trained in {}, {} {}; the run is in {}\n", duration(training.seconds()), duration(seconds_now() - started),
      run.is_resumed() ? "since --resume" : "in all", text::printable(options.out));
}

}  // namespace tern::recall
