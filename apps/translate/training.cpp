#include "translate/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/program.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "tensor/sizes.h"
#include "text/metrics.h"

namespace tern::translate {

Training::Training(Translator& translator, TrainingPairs& train, const text::ParallelCorpus& valid, std::vector<text::Example> examples,
                   train::Run& run)
    : options_(translator.options),
      kernels_(options_.use_fused_kernel),
      translator_(translator),
      model_(translator.model),
      train_(train),
      valid_(valid),
      valid_examples_(std::move(examples)),
      batches_(options_, {translator.eos_src(), translator.eos_tgt(), translator.pad()}, translator.device),
      ranks_(run.ranks() && !run.ranks()->is_alone() ? run.ranks() : nullptr) {
  require_targets(train_.plain(), "training");
  require_targets(valid_examples_, "validation");
  if (ranks_ && ranks_->shard() != parallel::Shard::none && options_.ema > 0 && size_of(train::dtype_of(precision(options_))) == 2)
    throw apps::UsageError(
        fmt::format("--shard {}: a process has the masters of its own 16-bit weights alone, of which --ema {:g} is to "
                    "be the average of all; take --precision fp32, or --ema 0",
                    parallel::name(ranks_->shard()), options_.ema));
  per_epoch_ = ceil_div(static_cast<std::int64_t>(batches_.epoch(train_.plain(), 0).size()), options_.accumulate);
  std::int64_t total = options_.epochs * per_epoch_;
  if (options_.updates > 0) total = std::min(total, options_.updates);
  const LossOptions loss{
      .reduction = ranks_ ? Reduction::sum : Reduction::mean, .label_smoothing = options_.label_smoothing, .r_drop = options_.r_drop};
  const train::AdamWOptions adam{
      .lr = options_.lr, .beta2 = options_.beta2, .eps = options_.adam_eps, .weight_decay = options_.weight_decay};
  trainer_.emplace(model_,
                   train::Task{.loss = [this, loss](const Batch& batch) { return model_.loss(batch, loss); },
                               .batch = [this](std::int64_t update) { return batch(update); },
                               .optimizer = [adam](const Tensors& parameters) { return std::make_unique<train::AdamW>(parameters, adam); },
                               .validate = [this](const train::Trainer& trainer) { return validate(trainer); }},
                   train::TrainerOptions{.updates = total,
                                         .updates_per_epoch = per_epoch_,
                                         .valid_every = options_.valid_every,
                                         .patience = options_.patience,
                                         .lr = options_.lr,
                                         .schedule = options_.schedule,
                                         .warmup = options_.warmup,
                                         .clip = options_.clip,
                                         .ema = options_.ema,
                                         .precision = precision(options_),
                                         .unit = "tokens",
                                         .profile = options_.profile},
                   run);
}

void Training::require_targets(const std::vector<text::Example>& examples, const char* split) const {
  if (std::none_of(examples.begin(), examples.end(), [&](const text::Example& example) { return batches_.has_target(example); }))
    throw apps::UsageError(fmt::format("--length {}: every {} source is so long that nothing of its target is left; use a larger --length",
                                       options_.length, split));
}

std::size_t Training::cut() const {
  const std::vector<text::Example>& pairs = train_.plain();
  return static_cast<std::size_t>(std::count_if(pairs.begin(), pairs.end(), [&](const auto& pair) { return batches_.is_cut(pair); }));
}

/// One batch or several; none if they have no targets.
train::UpdateBatch Training::batch(std::int64_t update) {
  if (const std::int64_t epoch = update / per_epoch_; epoch != epoch_) {
    examples_ = &train_.of_epoch(static_cast<std::uint64_t>(epoch));
    epoch_batches_ = batches_.epoch(*examples_, static_cast<std::uint64_t>(epoch));
    epoch_ = epoch;
  }
  const auto group = static_cast<std::size_t>(options_.accumulate), first = static_cast<std::size_t>(update % per_epoch_) * group;
  train::UpdateBatch result;
  for (std::size_t i = first; i < std::min(first + group, epoch_batches_.size()); ++i) {
    const text::BatchShape& shape = epoch_batches_[i].shape;
    train::RankPart own;
    if (ranks_) own = ranks_->part(shape.rows, train::rows_multiple(shape.columns, options_.width, options_.ff));
    const LoadedBatch loaded = batches_.load(*examples_, epoch_batches_[i], ranks_ ? std::optional(own.rows) : std::nullopt);
    if (loaded.weight == 0) continue;  // truncation has left no targets
    result.items += loaded.tokens;
    // R-Drop counts each token in two passes.
    const double passes = ranks_ && options_.r_drop > 0 ? 2 : 1;
    result.parts.emplace_back(loaded.batch, passes * loaded.weight, own);
  }
  return result;
}

/// The mean loss of a token on the validation set, without dropout. With the training's label smoothing it compares with its loss.
double Training::valid_loss(double label_smoothing) {
  const NoGrad unrecorded;
  const train::PrecisionScope scope(precision(options_));
  model_.eval();
  Tensor total = zeros({}, DType::f32, translator_.device);
  double weight = 0;
  for (const text::ShapedBatch& shaped : batches_.in_order(valid_examples_)) {
    trainer_->require_no_stop();
    const LoadedBatch loaded = batches_.load(valid_examples_, shaped);
    add_(total, model_.loss(loaded.batch, {.reduction = Reduction::sum, .label_smoothing = label_smoothing}));
    weight += loaded.weight;
  }
  return trainer_->require_finite(total.item<double>() / weight);
}

std::vector<std::string> Training::translate(std::span<const std::string> lines, const nn::GenerateOptions& search) const {
  constexpr std::size_t rows = 128, block = 16 * rows;
  std::vector<std::string> result;
  for (std::size_t first = 0; first < lines.size(); first += block) {
    trainer_->require_no_stop();
    const auto some = lines.subspan(first, std::min(block, lines.size() - first));
    for (auto& translations : translate::translate(std::span(&translator_, 1), some, search, rows))
      result.push_back(std::move(translations.front().text));
  }
  return result;
}

/// The best model has the highest BLEU or, without --bleu-every and --valid-every, the least loss.
train::Validation Training::validate(const train::Trainer& trainer) {
  train::Validation result;
  const double loss = valid_loss();
  result.numbers.set("valid_loss", loss);
  if (options_.label_smoothing > 0) result.numbers.set("valid_smoothed_loss", valid_loss(options_.label_smoothing));
  result.shown = fmt::format("epoch {:>3}  train loss {:.3f}  valid loss {:.3f}  {:.0f} tokens/s", trainer.epochs(), trainer.train_loss(),
                             loss, trainer.items_per_second());
  const std::int64_t every = options_.valid_every > 0 ? 1 : options_.bleu_every;
  if (every == 0) result.rank = {0, -loss};
  if (!trainer.is_last_round() && (every == 0 || trainer.round() % every != 0)) return result;
  const std::vector<std::string> hypotheses = translate(valid_.src);
  const double bleu = text::bleu(hypotheses, valid_.tgt).score;
  for (std::size_t i = 0; i < hypotheses.size(); ++i) result.samples.push_back({valid_.src[i], hypotheses[i], valid_.tgt[i]});
  result.numbers.set("valid_bleu", bleu);
  result.shown += fmt::format("  valid BLEU {:.2f}", bleu);
  if (every > 0) result.rank = {bleu, -loss};
  return result;
}

}  // namespace tern::translate
