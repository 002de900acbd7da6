#include "translate/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "ops/factory.h"
#include "ops/pointwise.h"

namespace tern::translate {

Trainer::Trainer(Translator& translator, std::vector<text::Example> train, std::vector<text::Example> valid,
                 std::function<std::string()> remains)
    : options_(translator.options),
      translator_(translator),
      model_(translator.model),
      train_(std::move(train)),
      valid_(std::move(valid)),
      tokens_{translator.eos_src(), translator.eos_tgt(), translator.pad()} {
  require_targets(train_, "training");
  require_targets(valid_, "validation");
  train::set_precision(model_, precision(options_));
  const auto pairs = static_cast<std::int64_t>(train_.size());
  const std::int64_t samples = options_.samples > 0 ? std::min(options_.samples, pairs) : pairs;
  per_epoch_ = (samples + options_.batch_size - 1) / options_.batch_size;
  std::int64_t total = options_.epochs * per_epoch_;
  if (options_.updates > 0) total = std::min(total, options_.updates);
  const train::AdamOptions adam{.lr = options_.lr, .beta2 = options_.beta2, .eps = options_.adam_eps};
  apps::TrainingOptions training{.precision = precision(options_),
                                 .lr = options_.lr,
                                 .lr_factor = [this, total](std::int64_t update) { return lr_factor(update, total); },
                                 .clip = options_.clip,
                                 .updates = total,
                                 .remains = std::move(remains)};
  loop_.emplace([this](const Tensors& inputs) { return loss(inputs, Reduction::mean); },
                std::make_unique<train::Adam>(nn::parameters(model_), adam), std::move(training), translator.device);
}

void Trainer::require_targets(const std::vector<text::Example>& examples, const char* split) const {
  const auto has_room = [&](const text::Example& example) { return static_cast<std::int64_t>(example.src.size()) + 1 < options_.length; };
  if (std::none_of(examples.begin(), examples.end(), has_room))
    throw apps::UsageError(fmt::format("--length {}: every {} source is so long that nothing of its target is left; use a larger --length",
                                       options_.length, split));
}

std::size_t Trainer::cut() const {
  return static_cast<std::size_t>(
      std::count_if(train_.begin(), train_.end(), [&](const auto& example) { return text::sequence_columns(example) >= options_.length; }));
}

void Trainer::run_epoch(std::int64_t epoch, std::int64_t done, const std::function<void()>& after_update, apps::RunView& view) {
  model_.train();
  loop_->begin_epoch(done > 0);
  apps::TrainingLoop::Reading shown;
  for (const auto& picks : epoch_batches(epoch)) {
    if (done-- > 0) continue;
    if (updates() == total_updates()) break;
    const DeviceBatch batch = load(train_, picks);
    if (batch.weight == 0) {  // every target was cut off: there is nothing to learn
      loop_->skip();
    } else {
      loop_->step(batch.inputs, batch.tokens);
      loop_->log(view);
      if (view.is_due()) view.show(loop_->progress(epoch + 1, epochs(), loop_->mean_loss_since(shown)));
    }
    after_update();
  }
  if (loop_->steps_in_epoch() > 0) train_loss_ = loop_->require_finite(loop_->mean_loss());
  loop_->end_epoch();
}

double Trainer::valid_loss() {
  const NoGrad unrecorded;
  const train::PrecisionScope scope(precision(options_));
  model_.eval();
  Tensor total = zeros({}, DType::f32, translator_.device);
  double weight = 0;
  std::vector<std::size_t> order(valid_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (const auto& picks : text::fixed_batches(order, static_cast<std::size_t>(options_.batch_size))) {
    loop_->require_no_stop();
    const DeviceBatch batch = load(valid_, picks);
    add_(total, loss(batch.inputs, Reduction::sum));
    weight += batch.weight;
  }
  return loop_->require_finite(total.item<double>() / weight);
}

/// Pairs of similar length share a batch where rows are not padded to a fixed length.
std::vector<std::vector<std::size_t>> Trainer::epoch_batches(std::int64_t epoch) const {
  const auto seed = static_cast<std::uint64_t>(options_.seed), number = static_cast<std::uint64_t>(epoch);
  std::vector<std::size_t> order = text::epoch_order(train_.size(), seed, number, static_cast<std::size_t>(options_.samples));
  const auto rows = static_cast<std::size_t>(options_.batch_size);
  if (options_.pad_to_length) return text::fixed_batches(order, rows);
  // Stable: pairs of one length stay in the epoch's random order.
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return columns(train_[a]) < columns(train_[b]); });
  auto batches = text::fixed_batches(order, rows);
  std::vector<std::vector<std::size_t>> result;
  for (std::size_t i : text::epoch_order(batches.size(), seed + 1, number)) result.push_back(std::move(batches[i]));
  return result;
}

std::int64_t Trainer::columns(const text::Example& example) const { return std::min(text::sequence_columns(example), options_.length - 1); }

Trainer::DeviceBatch Trainer::load(const std::vector<text::Example>& examples, const std::vector<std::size_t>& picks) const {
  text::Batch host = text::make_batch(examples, picks, tokens_, options_.pad_to_length ? options_.length : 0);
  if (host.length >= options_.length) host = text::make_batch(examples, picks, tokens_, options_.length);
  const Device device = translator_.device;
  DeviceBatch batch;
  const Shape shape{host.rows, host.length};
  batch.inputs = {Tensor::from(host.ids, shape, device), Tensor::from(host.labels, shape, device),
                  Tensor::from(host.weights, shape, device), Tensor::from(host.prefix, {host.rows}, device)};
  for (std::size_t pick : picks) batch.tokens += columns(examples[pick]);
  for (float weight : host.weights) batch.weight += weight;
  return batch;
}

Tensor Trainer::loss(const Tensors& inputs, Reduction reduction) const {
  const Tensor &ids = inputs[0], &labels = inputs[1], &weights = inputs[2], &prefix = inputs[3];
  AttentionMask mask{.causal = true};
  if (options_.prefix_lm) mask.prefix = prefix;
  Tensor position_ids;
  if (options_.restart_positions) position_ids = nn::reset_position_ids(prefix, ids.size(1), reset_position(options_), options_.length - 1);
  CrossEntropyOptions options{.token_weights = weights, .reduction = reduction};
  if (reduction == Reduction::mean) options.label_smoothing = options_.label_smoothing;
  return model_.loss(ids, labels, options, mask, position_ids);
}

double Trainer::lr_factor(std::int64_t update, std::int64_t total) const {
  if (options_.schedule == "cosine") return train::schedule::cosine(update, options_.warmup, total);
  if (options_.schedule == "inverse-sqrt") return train::schedule::inverse_sqrt(update, std::max<std::int64_t>(options_.warmup, 1));
  return train::schedule::linear_warmup(update, options_.warmup);
}

}  // namespace tern::translate
