#include "translate/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/schedule.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "tensor/ceil_div.h"

namespace tern::translate {

Trainer::Trainer(Translator& translator, TrainingPairs& train, std::vector<text::Example> valid, std::function<std::string(bool)> remains,
                 apps::Ranks* ranks)
    : options_(translator.options),
      translator_(translator),
      model_(translator.model),
      train_(train),
      valid_(std::move(valid)),
      batches_(options_, {translator.eos_src(), translator.eos_tgt(), translator.pad()}, translator.device),
      ranks_(ranks && !ranks->is_alone() ? ranks : nullptr) {
  require_targets(train_.plain(), "training");
  require_targets(valid_, "validation");
  train::set_precision(model_, precision(options_));
  if (ranks_) data_parallel_ = ranks_->parallel(model_);
  if (ranks_ && ranks_->shard() != parallel::Shard::none && options_.ema > 0 && size_of(train::dtype_of(precision(options_))) == 2)
    throw apps::UsageError(
        fmt::format("--shard {}: a process has the masters of its own 16-bit weights alone, of which --ema {:g} is to "
                    "be the average of all; take --precision fp32, or --ema 0",
                    parallel::name(ranks_->shard()), options_.ema));
  if (options_.ema > 0) ema_.emplace(model_, train::EmaOptions{.decay = options_.ema});
  const auto parts = static_cast<std::int64_t>(batches_.epoch(train_.plain(), 0).size());
  per_epoch_ = ceil_div(parts, options_.accumulate);
  std::int64_t total = options_.epochs * per_epoch_;
  if (options_.updates > 0) total = std::min(total, options_.updates);
  const train::AdamWOptions adam{
      .lr = options_.lr, .beta2 = options_.beta2, .eps = options_.adam_eps, .weight_decay = options_.weight_decay};
  apps::TrainingOptions training{.precision = precision(options_),
                                 .lr = options_.lr,
                                 .lr_factor = [this, total](std::int64_t update) { return lr_factor(update, total); },
                                 .clip = options_.clip,
                                 .updates = total,
                                 .remains = std::move(remains),
                                 .ranks = ranks_,
                                 .parallel = data_parallel_.get()};
  if (ema_) training.after_step = [this] { ema_->update(); };
  const LossOptions loss{
      .reduction = ranks_ ? Reduction::sum : Reduction::mean, .label_smoothing = options_.label_smoothing, .r_drop = options_.r_drop};
  loop_.emplace([this, loss](const Tensors& inputs) { return model_.loss(inputs, loss); },
                std::make_unique<train::AdamW>(nn::parameters(model_), adam), std::move(training), translator.device);
}

void Trainer::require_targets(const std::vector<text::Example>& examples, const char* split) const {
  if (std::none_of(examples.begin(), examples.end(), [&](const text::Example& example) { return batches_.has_target(example); }))
    throw apps::UsageError(fmt::format("--length {}: every {} source is so long that nothing of its target is left; use a larger --length",
                                       options_.length, split));
}

std::size_t Trainer::cut() const {
  const std::vector<text::Example>& pairs = train_.plain();
  return static_cast<std::size_t>(std::count_if(pairs.begin(), pairs.end(), [&](const auto& pair) { return batches_.is_cut(pair); }));
}

void Trainer::begin_epoch(std::int64_t epoch) {
  if (epoch == epoch_) return;
  examples_ = &train_.of_epoch(static_cast<std::uint64_t>(epoch));
  epoch_batches_ = batches_.epoch(*examples_, static_cast<std::uint64_t>(epoch));
  epoch_ = epoch;
}

/// Runs the update at an index of the epoch, by one batch or several. False if they have no targets.
bool Trainer::step(std::int64_t place) {
  const auto group = static_cast<std::size_t>(options_.accumulate), first = static_cast<std::size_t>(place) * group;
  std::vector<apps::BatchPart> parts;
  std::int64_t tokens = 0;
  for (std::size_t i = first; i < std::min(first + group, epoch_batches_.size()); ++i) {
    const text::BatchShape& shape = epoch_batches_[i].shape;
    apps::RankPart own;
    if (ranks_) own = ranks_->part(shape.rows, apps::rows_multiple(shape.columns, options_.width, options_.ff));
    DeviceBatch batch = batches_.load(*examples_, epoch_batches_[i], ranks_ ? std::optional(own.rows) : std::nullopt);
    if (batch.weight == 0) continue;  // truncation has left no targets
    tokens += batch.tokens;
    // R-Drop counts each token in two passes.
    const double passes = ranks_ && options_.r_drop > 0 ? 2 : 1;
    parts.push_back({std::move(batch.inputs), passes * batch.weight, own});
  }
  if (parts.empty()) loop_->skip();
  else loop_->step(parts, tokens);
  return !parts.empty();
}

void Trainer::run_round(std::int64_t done, const std::function<void()>& after_update, apps::RunView& view) {
  model_.train();
  loop_->begin_epoch(done > 0);
  apps::TrainingLoop::Reading shown;
  const std::int64_t size = options_.valid_every > 0 ? options_.valid_every : per_epoch_;
  const std::int64_t end = std::min(loop_->updates() - done + size, total_updates());
  while (updates() < end) {
    begin_epoch(updates() / per_epoch_);
    if (step(updates() % per_epoch_)) {
      loop_->log(view);
      if (view.is_due()) view.show(loop_->progress(epoch_ + 1, epochs(), loop_->mean_loss_since(shown)));
    }
    after_update();
  }
  loop_->share_loss();
  if (loop_->steps_in_epoch() > 0) train_loss_ = loop_->require_finite(loop_->mean_loss());
  loop_->end_epoch();
}

std::unique_ptr<train::EmaScope> Trainer::measured() { return ema_ ? std::make_unique<train::EmaScope>(*ema_) : nullptr; }

double Trainer::valid_loss(double label_smoothing) {
  const NoGrad unrecorded;
  const train::PrecisionScope scope(precision(options_));
  model_.eval();
  Tensor total = zeros({}, DType::f32, translator_.device);
  double weight = 0;
  for (const text::ShapedBatch& shaped : batches_.in_order(valid_)) {
    loop_->require_no_stop();
    const DeviceBatch batch = batches_.load(valid_, shaped);
    add_(total, model_.loss(batch.inputs, {.reduction = Reduction::sum, .label_smoothing = label_smoothing}));
    weight += batch.weight;
  }
  return loop_->require_finite(total.item<double>() / weight);
}

double Trainer::lr_factor(std::int64_t update, std::int64_t total) const {
  return apps::lr_factor(options_.schedule, update, options_.warmup, total);
}

}  // namespace tern::translate
