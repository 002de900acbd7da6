#include "recall/trainer.h"

#include <fmt/format.h>

#include <numeric>

#include "ops/copy.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/loss.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "text/batching.h"

namespace tern::recall {

using apps::seconds_now;

static Tensor to_device(const std::vector<std::size_t>& picks, Device device) {
  const std::vector<std::int64_t> ids(picks.begin(), picks.end());
  return Tensor::from(ids, {static_cast<std::int64_t>(ids.size())}, device);
}

Trainer::Trainer(const Options& options, const DataSet& data, Device device, std::function<std::string()> remains)
    : options_(options),
      device_(device),
      model_(model_options(options, device)),
      train_(upload(data.train)),
      valid_examples_(upload(data.valid)),
      test_(upload(data.test)) {
  for (nn::TransformerLayer& block : model_.blocks) block.drop = nn::Dropout(options.branch_dropout);
  train::set_precision(model_, precision(options_));
  const std::int64_t total = options_.epochs * ((train_.count + options_.batch_size - 1) / options_.batch_size);
  const train::AdamWOptions adam{.lr = options_.lr, .beta2 = options_.beta2, .weight_decay = options_.weight_decay};
  apps::TrainingOptions training{.precision = precision(options_),
                                 .lr = options_.lr,
                                 .lr_factor = [this, total](std::int64_t update) { return lr_factor(update, total); },
                                 .clip = options_.clip,
                                 .updates = total,
                                 .remains = std::move(remains)};
  loop_.emplace([this](const Tensors& picks) { return loss(forward(train_, picks[0])); },
                std::make_unique<train::AdamW>(nn::parameters(model_), adam), std::move(training), device);
}

Trainer::DeviceExamples Trainer::upload(const Examples& examples) const {
  const Shape rows{examples.count, examples.columns};
  return {examples.count, Tensor::from(examples.inputs, rows, device_), Tensor::from(examples.targets, rows, device_),
          Tensor::from(examples.answer_columns, {examples.count, examples.answers}, device_)};
}

Trainer::Forward Trainer::forward(const DeviceExamples& examples, const Tensor& picks) const {
  const Tensor ids = index_select(examples.inputs, 0, picks), targets = index_select(examples.targets, 0, picks);
  const std::int64_t rows = ids.size(0), columns = ids.size(1);
  const Tensor hidden = model_.hidden(ids, {.causal = options_.causal});
  const Tensor first_rows = reshape(arange(rows, DType::i64, device_), {rows, 1}) * static_cast<double>(columns);
  return {.all = {flatten(hidden, 0, 1), flatten(targets)},
          .answer_rows = flatten(first_rows + index_select(examples.answer_columns, 0, picks))};
}

/// The head, whose vocabulary may be large, works on the rows that ask for an answer alone.
Trainer::HeadInput Trainer::select_rows(const HeadInput& all, const Tensor& rows) {
  return {index_select(all.hidden, 0, rows), index_select(all.targets, 0, rows)};
}

Tensor Trainer::loss(const Forward& batch) const {
  const auto [hidden, targets] = options_.loss == "answer" ? select_rows(batch.all, batch.answer_rows) : batch.all;
  return model_.head.cross_entropy(hidden, targets);
}

void Trainer::for_each_batch(const DeviceExamples& examples, const std::function<void(const Forward&)>& visit) {
  constexpr std::size_t rows = 128;
  const NoGrad unrecorded;
  const train::PrecisionScope scope(precision(options_));
  model_.eval();
  std::vector<std::size_t> order(static_cast<std::size_t>(examples.count));
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (const auto& picked : text::fixed_batches(order, rows)) {
    loop_->require_no_stop();
    visit(forward(examples, to_device(picked, device_)));
  }
  model_.train();
}

Score Trainer::score(const DeviceExamples& examples) {
  Tensor correct = zeros({}, DType::i64, device_), total = zeros({}, DType::f32, device_);
  for_each_batch(examples, [&](const Forward& batch) {
    const HeadInput answers = select_rows(batch.all, batch.answer_rows);
    correct = correct + sum(eq(argmax(model_.head.forward(answers.hidden)), answers.targets));
    add_(total, loss(batch) * static_cast<double>(batch.answer_rows.size(0)));
  });
  // The device is waited for here alone.
  const std::int64_t answers = examples.count * examples.answer_columns.size(1);
  return {.correct = correct.item<std::int64_t>(),
          .answers = answers,
          .loss = loop_->require_finite(total.item<double>() / static_cast<double>(answers))};
}

Score Trainer::test() { return score(test_); }

std::vector<float> Trainer::test_losses() {
  std::vector<float> result;
  for_each_batch(test_, [&](const Forward& batch) {
    const Tensor losses = cross_entropy(model_.head.forward(batch.all.hidden), batch.all.targets, {.reduction = Reduction::none});
    const std::vector<float> values = losses.to_vector<float>();
    result.insert(result.end(), values.begin(), values.end());
  });
  return result;
}

void Trainer::run(apps::ProgressLine& progress, apps::TrainingRun* run, const std::function<void()>& after_epoch) {
  started_ = seconds_now();
  for (bool goes_on = true; goes_on;) {
    run_epoch(progress, run);
    valid_ = score(valid_examples_);
    seconds_ = seconds_now() - started_;
    if (!passed_ && valid_.accuracy() >= 0.9) passed_ = {epoch_, seconds_};
    goes_on = epoch_ < options_.epochs && !(options_.target > 0 && valid_.accuracy() >= options_.target);
    if (after_epoch) after_epoch();
  }
}

void Trainer::run_epoch(apps::ProgressLine& progress, apps::TrainingRun* run) {
  ++epoch_;
  model_.train();
  loop_->begin_epoch();
  const auto seed = static_cast<std::uint64_t>(options_.seed), number = static_cast<std::uint64_t>(epoch_ - 1);
  const auto order = text::epoch_order(static_cast<std::size_t>(train_.count), seed, number, 0);
  for (const auto& picked : text::fixed_batches(order, static_cast<std::size_t>(options_.batch_size))) {
    loop_->step({to_device(picked, device_)}, static_cast<std::int64_t>(picked.size()));
    if (run) loop_->log(*run);
    if (!progress.is_due()) continue;
    apps::Progress now = loop_->progress(epoch_, options_.epochs, loop_->mean_loss(), "examples", seconds_now() - started_);
    now.may_end_early = options_.target > 0;
    progress.update(now);
  }
  train_loss_ = loop_->require_finite(loop_->mean_loss());
  loop_->end_epoch();
}

double Trainer::lr_factor(std::int64_t update, std::int64_t total) const {
  if (options_.schedule == "cosine") return train::schedule::cosine(update, options_.warmup, total);
  const double risen = train::schedule::linear_warmup(update, options_.warmup);
  if (options_.schedule == "cosine-epoch") return risen * train::schedule::cosine(epoch_ - 1, 0, options_.epochs);
  return risen;
}

}  // namespace tern::recall
