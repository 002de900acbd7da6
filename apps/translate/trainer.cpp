#include "translate/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "ops/factory.h"
#include "ops/pointwise.h"

namespace tern::translate {

using apps::seconds_now;

Trainer::Trainer(Translator& translator, std::vector<text::Example> train, std::vector<text::Example> valid)
    : options_(translator.options),
      translator_(translator),
      model_(translator.model),
      train_(std::move(train)),
      valid_(std::move(valid)),
      tokens_{translator.eos_src(), translator.eos_tgt(), translator.pad()},
      captured_step_([this](const Tensors& inputs) { return step(inputs); }, translator.device) {
  require_targets(train_, "training");
  require_targets(valid_, "validation");
  train::set_precision(model_, precision(options_));
  if (precision(options_) == train::Precision::fp16) scaler_.emplace(train::GradScalerOptions{}, translator.device);
  optimizer_.emplace(nn::parameters(model_), train::AdamOptions{.lr = options_.lr, .beta2 = options_.beta2, .eps = options_.adam_eps});
  const auto pairs = static_cast<std::int64_t>(train_.size());
  const std::int64_t samples = options_.samples > 0 ? std::min(options_.samples, pairs) : pairs;
  per_epoch_ = (samples + options_.batch_size - 1) / options_.batch_size;
  total_ = options_.epochs * per_epoch_;
  if (options_.updates > 0) total_ = std::min(total_, options_.updates);
  log_every_ = std::max<std::int64_t>(total_ / 200, 1);
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

bool Trainer::run_epoch(std::int64_t epoch, io::JsonLog& log, apps::ProgressLine& progress) {
  epoch_ = epoch;
  model_.train();
  const double started = seconds_now();
  loss_sum_ = zeros({}, DType::f32, translator_.device);
  std::int64_t summed = 0;
  Mean shown, logged;
  for (const auto& picks : epoch_batches(epoch)) {
    if (update_ == total_) break;
    const DeviceBatch batch = load(train_, picks);
    ++update_;
    if (batch.weight == 0) continue;  // every target was cut off: there is nothing to learn
    optimizer_->set_lr_factor(lr_factor());
    add_(loss_sum_, captured_step_(batch.inputs));
    tokens_seen_ += batch.tokens;
    ++summed;
    // Reading the loss waits for the device.
    if (update_ % log_every_ == 0) {
      io::JsonObject line;
      log.write(
          line.set("update", update_).set("loss", require_finite(logged.since(loss_sum_, summed))).set("lr", options_.lr * lr_factor()));
    }
    if (progress.is_due()) {
      const double elapsed = seconds_ + seconds_now() - started;
      const double left = elapsed / static_cast<double>(update_) * static_cast<double>(total_ - update_);
      progress.update(fmt::format("epoch {}/{}  step {}/{}  loss {:.3f}  {:.0f} tokens/s  {} left", epoch + 1, epochs(), update_, total_,
                                  require_finite(shown.since(loss_sum_, summed)), static_cast<double>(tokens_seen_) / elapsed,
                                  apps::duration(left)));
    }
  }
  if (summed > 0) train_loss_ = require_finite(loss_sum_.item<double>() / static_cast<double>(summed));
  seconds_ += seconds_now() - started;
  return update_ < total_;
}

double Trainer::valid_loss() {
  const NoGrad unrecorded;
  model_.eval();
  Tensor total = zeros({}, DType::f32, translator_.device);
  double weight = 0;
  std::vector<std::size_t> order(valid_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (const auto& picks : text::fixed_batches(order, static_cast<std::size_t>(options_.batch_size))) {
    const DeviceBatch batch = load(valid_, picks);
    add_(total, loss(batch.inputs, Reduction::sum));
    weight += batch.weight;
  }
  return require_finite(total.item<double>() / weight);
}

double Trainer::Mean::since(const Tensor& running_sum, std::int64_t now) {
  const double total = running_sum.item<double>();
  return (total - std::exchange(sum, total)) / static_cast<double>(now - std::exchange(count, now));
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
  const std::int64_t length = ids.size(1);
  nn::MaskOptions visible{.causal = true, .use_fused_kernel = options_.use_fused_kernel};
  if (options_.prefix_lm) visible.prefix = prefix;
  Tensor places;
  if (options_.restart_positions) places = nn::restarted_places(prefix, length, restart_place(options_), options_.length - 1);
  CrossEntropyOptions options{.token_weights = weights, .reduction = reduction};
  if (reduction == Reduction::mean) options.label_smoothing = options_.label_smoothing;
  const nn::AttentionMask mask(visible, length, length, train::dtype_of(precision(options_)), ids.device());
  return model_.loss(ids, labels, options, mask, places);
}

double Trainer::lr_factor() const {
  if (options_.schedule == "cosine") return train::schedule::cosine(update_, options_.warmup, total_);
  if (options_.schedule == "inverse-sqrt") return train::schedule::inverse_sqrt(update_, std::max<std::int64_t>(options_.warmup, 1));
  return train::schedule::linear_warmup(update_, options_.warmup);
}

Tensor Trainer::step(const Tensors& inputs) {
  optimizer_->zero_grad();
  const Tensor value = loss(inputs, Reduction::mean);
  const double max_norm = options_.clip > 0 ? options_.clip : std::numeric_limits<double>::infinity();
  if (scaler_) {
    scaler_->scaled(value).backward();
    scaler_->step(*optimizer_, max_norm);
  } else {
    value.backward();
    optimizer_->step(options_.clip > 0 ? train::GradientScale{.factor = train::clip_factor(optimizer_->parameters(), max_norm).factor}
                                       : train::GradientScale{});
  }
  return value.detach();
}

double Trainer::require_finite(double loss) const {
  if (std::isfinite(loss)) return loss;
  throw std::runtime_error(fmt::format("the loss is not finite any more (seen at update {} of {}): use a --lr below {:g}{}; {} keeps {}",
                                       update_, total_, options_.lr, options_.clip > 0 ? "" : ", or --clip 1", options_.out,
                                       epoch_ > 0 ? fmt::format("the model of epoch {}", epoch_) : "no model, since no epoch was done"));
}

}  // namespace tern::translate
