#include "recall/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "common/program.h"
#include "common/training.h"
#include "io/files.h"
#include "io/run_directory.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/loss.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "recall/commands.h"
#include "tensor/sizes.h"
#include "text/batching.h"
#include "trainer/terminal.h"

namespace tern::recall {

static Tensor to_device(const std::vector<std::size_t>& picks, Device device) {
  const std::vector<std::int64_t> ids(picks.begin(), picks.end());
  return Tensor::from(ids, {static_cast<std::int64_t>(ids.size())}, device);
}

/// Number of targets of each example in the loss.
static std::vector<std::int64_t> count_targets(const Examples& examples, bool answers_alone) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(examples.count));
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const auto first = examples.targets.begin() + static_cast<std::ptrdiff_t>(i) * examples.columns;
    const auto is_target = [](std::int64_t target) { return target >= 0; };
    if (answers_alone) {
      const auto columns = examples.answer_columns.begin() + static_cast<std::ptrdiff_t>(i) * examples.answers;
      counts[i] = std::count_if(columns, columns + examples.answers, [&](std::int64_t column) { return is_target(first[column]); });
    } else {
      counts[i] = std::count_if(first, first + examples.columns, is_target);
    }
  }
  return counts;
}

Training::Training(const Options& options, const DataSet& data, Device device, train::Run& run, bool shows_progress)
    : options_(options),
      kernels_(options.use_fused_kernel),
      device_(device),
      model_(model_options(options, device)),
      train_(upload(data.train)),
      valid_(upload(data.valid)),
      test_(upload(data.test)),
      ranks_(run.ranks()),
      per_epoch_(ceil_div(train_.count, options.batch_size)) {
  for (const Examples& examples : data.longer) longer_.push_back(upload(examples));
  for (nn::TransformerLayer& block : model_.blocks) block.drop = nn::Dropout(options.branch_dropout);
  if (ranks_) target_counts_ = count_targets(data.train, options_.loss == "answer");
  const train::AdamWOptions adam{.lr = options_.lr, .beta2 = options_.beta2, .weight_decay = options_.weight_decay};
  train::TrainerOptions training = apps::trainer_options(options_, per_epoch_);
  training.shows_progress = shows_progress;
  training.may_end_early = options_.target > 0 || options_.patience > 0;
  if (options_.schedule == "cosine-epoch")
    training.lr_factor = [this](std::int64_t update) { return train::schedule::cosine((update - 1) / per_epoch_, 0, options_.epochs); };
  const Reduction reduction = ranks_ ? Reduction::sum : Reduction::mean;
  trainer_.emplace(model_,
                   train::Task{.loss = [this, reduction](const Batch& batch) { return loss(forward(train_, batch.picks), reduction); },
                               .batch = [this](std::int64_t update) { return batch(update); },
                               .optimizer = [adam](const Tensors& parameters) { return std::make_unique<train::AdamW>(parameters, adam); },
                               .validate = [this](const train::Trainer& trainer) { return validate(trainer); }},
                   std::move(training), run);
}

Training::DeviceExamples Training::upload(const Examples& examples) const {
  const Shape rows{examples.count, examples.columns};
  return {examples.count, count_targets(examples, true), Tensor::from(examples.inputs, rows, device_),
          Tensor::from(examples.targets, rows, device_),
          Tensor::from(examples.answer_columns, {examples.count, examples.answers}, device_)};
}

Training::Forward Training::forward(const DeviceExamples& examples, const Tensor& picks) const {
  const Tensor ids = index_select(examples.inputs, 0, picks), targets = index_select(examples.targets, 0, picks);
  const std::int64_t rows = ids.size(0), columns = ids.size(1);
  const Tensor hidden = model_.hidden(ids, {.causal = options_.causal});
  const Tensor first_rows = reshape(arange(rows, DType::i64, device_), {rows, 1}) * static_cast<double>(columns);
  return {.all = {flatten(hidden, 0, 1), flatten(targets)},
          .answer_rows = flatten(first_rows + index_select(examples.answer_columns, 0, picks))};
}

/// Selects the rows of answers, so that the head, whose vocabulary may be large, computes these only.
Training::HeadInput Training::select_rows(const HeadInput& all, const Tensor& rows) {
  return {index_select(all.hidden, 0, rows), index_select(all.targets, 0, rows)};
}

Tensor Training::loss(const Forward& batch, Reduction reduction) const {
  const auto [hidden, targets] = options_.loss == "answer" ? select_rows(batch.all, batch.answer_rows) : batch.all;
  return model_.head.cross_entropy(hidden, targets, {.reduction = reduction});
}

/// Of several ranks: this rank's rows.
train::UpdateBatch Training::batch(std::int64_t update) {
  if (const std::int64_t epoch = update / per_epoch_; epoch != epoch_) {
    const auto order = text::epoch_order(static_cast<std::size_t>(train_.count), static_cast<std::uint64_t>(options_.seed),
                                         static_cast<std::uint64_t>(epoch), 0);
    batches_ = text::fixed_batches(order, static_cast<std::size_t>(options_.batch_size));
    epoch_ = epoch;
  }
  const std::vector<std::size_t>& picked = batches_[static_cast<std::size_t>(update % per_epoch_)];
  const auto rows = static_cast<std::int64_t>(picked.size());
  if (!ranks_) return {.parts = {Batch{to_device(picked, device_)}}, .items = rows};
  const std::int64_t multiple = train::rows_multiple(train_.inputs.size(1), options_.width, options_.mlp * options_.width);
  const train::RankPart part = ranks_->part(rows, multiple);
  std::int64_t targets = 0;
  for (const std::size_t pick : picked) targets += target_counts_[pick];
  const auto first = picked.begin() + part.rows.first;
  const Batch own{to_device({first, first + part.rows.count}, device_)};
  return {.parts = {{own, static_cast<double>(targets), part}}, .items = rows};
}

void Training::for_each_batch(const DeviceExamples& examples, const std::function<void(const Forward&, std::int64_t)>& visit) {
  // Of longer examples as many tokens.
  const auto rows = static_cast<std::size_t>(std::max<std::int64_t>(128 * train_.inputs.size(1) / examples.inputs.size(1), 1));
  const NoGrad unrecorded;
  const train::PrecisionScope scope(precision(options_));
  model_.eval();
  std::vector<std::size_t> order(static_cast<std::size_t>(examples.count));
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (const auto& picked : text::fixed_batches(order, rows)) {
    trainer_->require_no_stop();
    std::int64_t answers = 0;
    for (const std::size_t pick : picked) answers += examples.answers[pick];
    visit(forward(examples, to_device(picked, device_)), answers);
  }
  model_.train();
}

Score Training::score(const DeviceExamples& examples) {
  Tensor correct = zeros({}, DType::i64, device_), total = zeros({}, DType::f32, device_);
  std::int64_t answers = 0;
  for_each_batch(examples, [&](const Forward& batch, std::int64_t own) {
    const HeadInput asked = select_rows(batch.all, batch.answer_rows);
    correct = correct + sum(eq(argmax(model_.head.forward(asked.hidden)), asked.targets));
    add_(total, loss(batch) * static_cast<double>(own));
    answers += own;
  });
  // The only wait for the device.
  return {.correct = correct.item<std::int64_t>(),
          .answers = answers,
          .loss = trainer_->require_finite(total.item<double>() / static_cast<double>(answers))};
}

std::vector<Score> Training::test_longer() {
  std::vector<Score> scores;
  for (const DeviceExamples& examples : longer_) scores.push_back(score(examples));
  return scores;
}

std::vector<float> Training::test_losses() {
  std::vector<float> result;
  for_each_batch(test_, [&](const Forward& batch, std::int64_t) {
    const Tensor losses = cross_entropy(model_.head.forward(batch.all.hidden), batch.all.targets, {.reduction = Reduction::none});
    const std::vector<float> values = losses.to_vector<float>();
    result.insert(result.end(), values.begin(), values.end());
  });
  return result;
}

train::Validation Training::validate(const train::Trainer& trainer) {
  const Score score = this->score(valid_);
  seconds_ = trainer.elapsed();
  if (!passed() && score.accuracy() >= 0.9)
    trainer_->numbers.set("epoch_of_90_percent", trainer.round()).set("seconds_to_90_percent", seconds_);
  // Of models that are a gain better each: the best one's accuracy and epoch.
  io::JsonObject& kept = trainer_->numbers;
  const double best = kept.contains("gained_accuracy") ? kept.get_double("gained_accuracy") : 0;
  if (options_.gain > 0 && score.accuracy() >= best + options_.gain)
    kept.set("gained_accuracy", score.accuracy()).set("gained_epoch", trainer.round());
  const std::int64_t since = trainer.round() - (kept.contains("gained_epoch") ? kept.get_int("gained_epoch") : 0);
  const bool is_stalled = options_.gain > 0 && options_.patience > 0 && since >= options_.patience;
  io::JsonObject numbers;
  numbers.set("valid_loss", score.loss).set("valid_accuracy", score.accuracy());
  return {.rank = std::pair(score.accuracy(), -score.loss),
          .numbers = numbers,
          .is_enough = is_stalled || (options_.target > 0 && score.accuracy() >= options_.target),
          .shown = fmt::format("epoch {:>3}  train loss {:.3f}  valid loss {:.3f}  accuracy {:.1f}%  {:.0f} examples/s", trainer.round(),
                               trainer.train_loss(), score.loss, 100 * score.accuracy(), trainer.items_per_second()),
          .seconds = seconds_};
}

std::optional<Training::Passed> Training::passed() const {
  const io::JsonObject& numbers = trainer_->numbers;
  if (!numbers.contains("epoch_of_90_percent")) return std::nullopt;
  return Passed{numbers.get_int("epoch_of_90_percent"), numbers.get_double("seconds_to_90_percent")};
}

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
  const Device device = apps::device_of(options);
  apps::require_memory(apps::count_parameters(model_options(options, device)), device, "use a smaller --width, --layers, --mlp or --pairs");
  return device;
}

void train(const Options& options) {
  const double started = seconds_now();
  const Device device = require_trainable(options);
  apps::require_named("--out", options.out);
  if (!options.checkpoints.resume) io::RunDirectory::check(options.out);
  manual_seed(static_cast<std::uint64_t>(options.seed));

  // Before long work, to detect at once a directory that cannot be written or that another training writes.
  apps::Session session("tern-recall", options, device, apps::to_json(entries(), options), started);
  const DataSet data = make_data_set(task(options), static_cast<std::uint64_t>(options.seed), options.train_examples,
                                     options.valid_examples, options.test_examples);
  session.set_data("", digest(data));
  session.run.require_size(apps::count_parameters(model_options(options, device)));
  Training training(options, data, device, session.run);
  train::Trainer& trainer = training.trainer();
  const std::int64_t params = nn::count_parameters(training.model());
  say("task     {}: {} pairs, vocabulary {}; {} training, {} validation, {} test examples\n", options.task, options.pairs,
      task(options).ids(), options.train_examples, options.valid_examples, options.test_examples);
  print_example(task(options), data.train);
  say("model    {} of {}, width {}, {}, {}: {:.2f} M parameters\n", counted(options.layers, "layer"), options.mixer, options.width,
      counted(options.heads, "head"), options.mlp > 0 ? fmt::format("MLP of {}", options.mlp * options.width) : "no MLP",
      static_cast<double>(params) / 1e6);
  session.say_training(trainer, fmt::format("{} examples at most", options.batch_size));

  trainer.run();
  session.ranks.leave();
  if (!session.ranks.is_first()) return;

  const Score score = training.test();
  const apps::Interval interval = apps::wilson(score.correct, score.answers);
  io::JsonObject summary = session.summary(trainer, params, "examples");
  summary.set("task", options.task).set("epochs", trainer.epochs()).set("train_seconds", training.seconds());
  summary.set("test_loss", score.loss).set("test_accuracy", score.accuracy()).set("test_answers", score.answers);
  summary.set("test_accuracy_low", interval.low).set("test_accuracy_high", interval.high);
  const std::vector<Score> longer = training.test_longer();
  if (!longer.empty())
    summary.set("test_accuracy_twice_as_long", longer[0].accuracy()).set("test_accuracy_four_times_as_long", longer[1].accuracy());
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
  for (std::size_t i = 0; i < longer.size(); ++i)
    say("{:.2f}% of {} answers in examples {} times as long, with as many times the pairs\n", 100 * longer[i].accuracy(), longer[i].answers,
        i == 0 ? "two" : "four");
  if (const auto passed = training.passed()) say("90% were passed in epoch {}, after {}\n", passed->epoch, duration(passed->seconds));
  else say("90% were not passed in {}\n", counted(trainer.epochs(), "epoch"));
  session.finish(summary);
}

}  // namespace tern::recall
