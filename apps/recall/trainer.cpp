#include "recall/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "common/schedule.h"
#include "ops/copy.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/loss.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "tensor/ceil_div.h"
#include "text/batching.h"

namespace tern::recall {

using apps::seconds_now;

static Tensor to_device(const std::vector<std::size_t>& picks, Device device) {
  const std::vector<std::int64_t> ids(picks.begin(), picks.end());
  return Tensor::from(ids, {static_cast<std::int64_t>(ids.size())}, device);
}

/// Number of targets of each example in the loss.
static std::vector<std::int64_t> count_targets(const Examples& examples, bool answers_alone) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(examples.count), examples.answers);
  if (answers_alone) return counts;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const auto first = examples.targets.begin() + static_cast<std::ptrdiff_t>(i) * examples.columns;
    counts[i] = std::count_if(first, first + examples.columns, [](std::int64_t target) { return target >= 0; });
  }
  return counts;
}

Trainer::Trainer(const Options& options, const DataSet& data, Device device, std::function<std::string(bool)> remains, apps::Ranks* ranks)
    : options_(options),
      device_(device),
      model_(model_options(options, device)),
      train_(upload(data.train)),
      valid_examples_(upload(data.valid)),
      test_(upload(data.test)),
      ranks_(ranks && !ranks->is_alone() ? ranks : nullptr) {
  for (nn::TransformerLayer& block : model_.blocks) block.drop = nn::Dropout(options.branch_dropout);
  train::set_precision(model_, precision(options_));
  if (ranks_) {
    target_counts_ = count_targets(data.train, options_.loss == "answer");
    data_parallel_ = ranks_->parallel(model_);
  }
  const std::int64_t total = options_.epochs * ceil_div(train_.count, options_.batch_size);
  const train::AdamWOptions adam{.lr = options_.lr, .beta2 = options_.beta2, .weight_decay = options_.weight_decay};
  apps::TrainingOptions training{.precision = precision(options_),
                                 .lr = options_.lr,
                                 .lr_factor = [this, total](std::int64_t update) { return lr_factor(update, total); },
                                 .clip = options_.clip,
                                 .updates = total,
                                 .unit = "examples",
                                 .remains = std::move(remains),
                                 .ranks = ranks_,
                                 .parallel = data_parallel_.get()};
  const Reduction reduction = ranks_ ? Reduction::sum : Reduction::mean;
  loop_.emplace([this, reduction](const Tensors& picks) { return loss(forward(train_, picks[0]), reduction); },
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

/// Selects the rows of answers, so that the head, whose vocabulary may be large, computes these only.
Trainer::HeadInput Trainer::select_rows(const HeadInput& all, const Tensor& rows) {
  return {index_select(all.hidden, 0, rows), index_select(all.targets, 0, rows)};
}

Tensor Trainer::loss(const Forward& batch, Reduction reduction) const {
  const auto [hidden, targets] = options_.loss == "answer" ? select_rows(batch.all, batch.answer_rows) : batch.all;
  return model_.head.cross_entropy(hidden, targets, {.reduction = reduction});
}

/// This rank's rows of a batch.
apps::BatchPart Trainer::own_part(const std::vector<std::size_t>& picked) const {
  const std::int64_t multiple = apps::rows_multiple(train_.inputs.size(1), options_.width, options_.mlp * options_.width);
  const apps::RankPart part = ranks_->part(static_cast<std::int64_t>(picked.size()), multiple);
  std::int64_t targets = 0;
  for (const std::size_t pick : picked) targets += target_counts_[pick];
  const auto first = picked.begin() + part.rows.first;
  return {.batch = {to_device({first, first + part.rows.count}, device_)}, .weight = static_cast<double>(targets), .rank = part};
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
  // The only wait for the device.
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

void Trainer::run(apps::RunView& view, apps::TrainingRun* run) {
  view_ = &view;
  run_ = run;
  started_ = seconds_now();
  apps::EpochLoop epochs(*this, run, {});
  if (run && run->is_resumed()) epochs.resume();
  epochs.run();
  best_epoch_ = epochs.best().epoch;
}

void Trainer::run_epoch(std::int64_t epoch, std::int64_t done, const std::function<void()>& after_update) {
  epoch_ = epoch + 1;
  model_.train();
  loop_->begin_epoch(done > 0);
  const auto order = text::epoch_order(static_cast<std::size_t>(train_.count), static_cast<std::uint64_t>(options_.seed),
                                       static_cast<std::uint64_t>(epoch), 0);
  for (const auto& picked : text::fixed_batches(order, static_cast<std::size_t>(options_.batch_size))) {
    if (done-- > 0) continue;
    const auto examples = static_cast<std::int64_t>(picked.size());
    if (ranks_) loop_->step(std::vector{own_part(picked)}, examples);
    else loop_->step({to_device(picked, device_)}, examples);
    if (run_) loop_->log(*view_);
    if (view_->is_due()) {
      apps::Progress progress = loop_->progress(epoch_, options_.epochs, loop_->mean_loss());
      progress.may_end_early = options_.target > 0;
      view_->show(progress);
    }
    after_update();
  }
  loop_->share_loss();
  train_loss_ = loop_->require_finite(loop_->mean_loss());
  loop_->end_epoch();
}

apps::Validation Trainer::validate(std::int64_t epochs, bool /*is_last*/) {
  valid_ = score(valid_examples_);
  seconds_ = seconds_now() - started_;
  if (!passed_ && valid_.accuracy() >= 0.9) passed_ = {epochs, seconds_};
  io::JsonObject numbers;
  numbers.set("valid_loss", valid_.loss).set("valid_accuracy", valid_.accuracy());
  return {.rank = std::pair(valid_.accuracy(), -valid_.loss),
          .numbers = numbers,
          .is_enough = options_.target > 0 && valid_.accuracy() >= options_.target};
}

void Trainer::report(std::int64_t epochs, const apps::Validation& validation) {
  if (!run_) return;
  io::JsonObject line;
  line.set("epoch", epochs).set("update", updates()).set("train_loss", train_loss_).update(validation.numbers);
  line.set("examples_per_second", examples_per_second()).set("seconds", seconds_);
  view_->validated(line, fmt::format("epoch {:>3}  train loss {:.3f}  valid loss {:.3f}  accuracy {:.1f}%  {:.0f} examples/s", epochs,
                                     train_loss_, valid_.loss, 100 * valid_.accuracy(), examples_per_second()));
}

io::JsonObject Trainer::numbers() const {
  io::JsonObject numbers;
  numbers.set("seconds", seconds_now() - started_);
  if (passed_) numbers.set("epoch_of_90_percent", passed_->epoch).set("seconds_to_90_percent", passed_->seconds);
  return numbers;
}

void Trainer::restore(const io::JsonObject& numbers) {
  started_ = seconds_now() - numbers.get_double("seconds");
  if (numbers.contains("epoch_of_90_percent"))
    passed_ = {numbers.get_int("epoch_of_90_percent"), numbers.get_double("seconds_to_90_percent")};
}

double Trainer::lr_factor(std::int64_t update, std::int64_t total) const {
  const double factor = apps::lr_factor(options_.schedule, update, options_.warmup, total);
  return options_.schedule == "cosine-epoch" ? factor * train::schedule::cosine(epoch_ - 1, 0, options_.epochs) : factor;
}

}  // namespace tern::recall
