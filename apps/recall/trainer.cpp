#include "recall/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
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

Trainer::Trainer(const Options& options, const DataSet& data, Device device)
    : options_(options),
      device_(device),
      model_(model_options(options, device)),
      train_(upload(data.train)),
      valid_examples_(upload(data.valid)),
      test_(upload(data.test)),
      captured_step_([this](const Tensors& inputs) { return step(inputs); }, device) {
  for (nn::TransformerLayer& block : model_.blocks) block.drop = nn::Dropout(options.branch_dropout);
  train::set_precision(model_, precision(options_));
  if (precision(options_) == train::Precision::fp16) scaler_.emplace(train::GradScalerOptions{}, device);
  optimizer_.emplace(nn::parameters(model_),
                     train::AdamOptions{.lr = options_.lr, .beta2 = options_.beta2, .weight_decay = options_.weight_decay});
  per_epoch_ = (train_.count + options_.batch_size - 1) / options_.batch_size;
  log_every_ = std::max<std::int64_t>(total_updates() / 200, 1);
}

Trainer::DeviceExamples Trainer::upload(const Examples& examples) const {
  const Shape rows{examples.count, examples.columns};
  return {examples.count, Tensor::from(examples.inputs, rows, device_), Tensor::from(examples.targets, rows, device_),
          Tensor::from(examples.places, {examples.count, examples.answers}, device_)};
}

Trainer::Read Trainer::read(const DeviceExamples& examples, const Tensor& picks) const {
  const Tensor ids = index_select(examples.inputs, 0, picks), targets = index_select(examples.targets, 0, picks);
  const std::int64_t rows = ids.size(0), columns = ids.size(1);
  const nn::AttentionMask mask({.causal = options_.causal, .use_fused_kernel = options_.use_fused_kernel}, columns, columns,
                               train::dtype_of(precision(options_)), device_);
  const Tensor hidden = model_.hidden(ids, mask);
  const Tensor starts = reshape(arange(rows, DType::i64, device_), {rows, 1}) * static_cast<double>(columns);
  return {.all = {flatten(hidden, 0, 1), flatten(targets)}, .answers = flatten(starts + index_select(examples.places, 0, picks))};
}

/// The head, whose vocabulary may be large, works at the asked places alone.
Trainer::Asked Trainer::at(const Asked& all, const Tensor& places) {
  return {index_select(all.hidden, 0, places), index_select(all.targets, 0, places)};
}

Tensor Trainer::loss(const Read& read) const {
  const auto [hidden, targets] = options_.loss == "answer" ? at(read.all, read.answers) : read.all;
  if (options_.use_fused_kernel) return linear_cross_entropy(hidden, model_.head.weight, model_.head.bias, targets);
  return cross_entropy(model_.head.forward(hidden), targets);
}

Tensor Trainer::step(const Tensors& inputs) {
  optimizer_->zero_grad();
  const Tensor value = loss(read(train_, inputs[0]));
  const double max_norm = options_.clip > 0 ? options_.clip : std::numeric_limits<double>::infinity();
  if (scaler_) {
    scaler_->scaled(value).backward();
    scaler_->step(*optimizer_, max_norm);
  } else {
    value.backward();
    train::GradientScale scale;
    if (options_.clip > 0) scale.factor = train::clip_factor(optimizer_->parameters(), max_norm).factor;
    optimizer_->step(scale);
  }
  return value.detach();
}

void Trainer::for_each_batch(const DeviceExamples& examples, const std::function<void(const Read&)>& visit) {
  constexpr std::size_t rows = 128;
  const NoGrad unrecorded;
  model_.eval();
  std::vector<std::size_t> order(static_cast<std::size_t>(examples.count));
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (const auto& picked : text::fixed_batches(order, rows)) visit(read(examples, to_device(picked, device_)));
  model_.train();
}

Score Trainer::score(const DeviceExamples& examples) {
  Tensor correct = zeros({}, DType::i64, device_), total = zeros({}, DType::f32, device_);
  for_each_batch(examples, [&](const Read& batch) {
    const Asked answers = at(batch.all, batch.answers);
    correct = correct + sum(eq(argmax(model_.head.forward(answers.hidden)), answers.targets));
    add_(total, loss(batch) * static_cast<double>(batch.answers.size(0)));
  });
  // The device is waited for here alone.
  const std::int64_t answers = examples.count * examples.places.size(1);
  return {.correct = correct.item<std::int64_t>(),
          .answers = answers,
          .loss = require_finite(total.item<double>() / static_cast<double>(answers))};
}

Score Trainer::test() { return score(test_); }

std::vector<float> Trainer::test_losses() {
  std::vector<float> result;
  for_each_batch(test_, [&](const Read& batch) {
    const Tensor losses = cross_entropy(model_.head.forward(batch.all.hidden), batch.all.targets, {.reduction = Reduction::none});
    const std::vector<float> values = losses.to_vector<float>();
    result.insert(result.end(), values.begin(), values.end());
  });
  return result;
}

void Trainer::run(apps::ProgressLine& progress, io::JsonLog* log, const std::function<void()>& after_epoch) {
  started_ = seconds_now();
  for (bool goes_on = true; goes_on;) {
    run_epoch(progress, log);
    valid_ = score(valid_examples_);
    seconds_ = seconds_now() - started_;
    if (!passed_ && valid_.accuracy() >= 0.9) passed_ = {epoch_, seconds_};
    goes_on = epoch_ < options_.epochs && !(options_.target > 0 && valid_.accuracy() >= options_.target);
    if (after_epoch) after_epoch();
  }
}

void Trainer::run_epoch(apps::ProgressLine& progress, io::JsonLog* log) {
  ++epoch_;
  model_.train();
  const double started = seconds_now();
  loss_sum_ = zeros({}, DType::f32, device_);
  std::int64_t summed = 0, logged = 0;
  double logged_sum = 0;
  const auto seed = static_cast<std::uint64_t>(options_.seed), number = static_cast<std::uint64_t>(epoch_ - 1);
  const auto order = text::epoch_order(static_cast<std::size_t>(train_.count), seed, number, 0);
  for (const auto& picked : text::fixed_batches(order, static_cast<std::size_t>(options_.batch_size))) {
    ++update_;
    optimizer_->set_lr_factor(lr_factor());
    add_(loss_sum_, captured_step_({to_device(picked, device_)}));
    ++summed;
    examples_seen_ += static_cast<std::int64_t>(picked.size());
    // Reading the loss waits for the device.
    if (log && update_ % log_every_ == 0) {
      const double total = loss_sum_.item<double>();
      io::JsonObject line;
      log->write(line.set("update", update_)
                     .set("loss", require_finite((total - logged_sum) / static_cast<double>(summed - logged)))
                     .set("lr", options_.lr * lr_factor()));
      logged_sum = total;
      logged = summed;
    }
    if (progress.is_due()) {
      const double elapsed = seconds_now() - started_;
      const double left = elapsed / static_cast<double>(update_) * static_cast<double>(total_updates() - update_);
      progress.update(fmt::format("epoch {}/{}  step {}/{}  loss {:.3f}  {:.0f} examples/s  {} left at most", epoch_, options_.epochs,
                                  update_, total_updates(), require_finite(loss_sum_.item<double>() / static_cast<double>(summed)),
                                  static_cast<double>(examples_seen_) / (training_seconds_ + seconds_now() - started),
                                  apps::duration(left)));
    }
  }
  train_loss_ = require_finite(loss_sum_.item<double>() / static_cast<double>(summed));
  training_seconds_ += seconds_now() - started;
}

double Trainer::lr_factor() const {
  if (options_.schedule == "cosine") return train::schedule::cosine(update_, options_.warmup, total_updates());
  const double risen = train::schedule::linear_warmup(update_, options_.warmup);
  if (options_.schedule == "cosine-epoch") return risen * train::schedule::cosine(epoch_ - 1, 0, options_.epochs);
  return risen;
}

double Trainer::require_finite(double loss) const {
  if (std::isfinite(loss)) return loss;
  throw std::runtime_error(fmt::format("the loss is not finite any more (seen at update {} of {}): use a --lr below {:g}{}", update_,
                                       total_updates(), options_.lr, options_.clip > 0 ? "" : ", or --clip 1"));
}

}  // namespace tern::recall
