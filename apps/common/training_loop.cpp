#include "common/training_loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

#include "common/program.h"
#include "common/stop.h"
#include "ops/copy.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "parallel/data_parallel_optimizer.h"

namespace tern::apps {

/// The device for capturing updates; the CPU, where they run eagerly, if gradients are sharded and so change their addresses.
static Device capture_device(const TrainingOptions& options, Device device) {
  return options.parallel && options.ranks->shard() >= parallel::Shard::gradients ? cpu : device;
}

TrainingLoop::TrainingLoop(Loss loss, std::unique_ptr<train::Optimizer> optimizer, TrainingOptions options, Device device)
    : loss_(std::move(loss)),
      optimizer_(std::move(optimizer)),
      options_(std::move(options)),
      device_(device),
      captured_update_([this](const Tensors& batch) { return update(batch); }, capture_device(options_, device)),
      captured_first_([this](const Tensors& part) { return accumulate(part, true); }, capture_device(options_, device)),
      captured_next_([this](const Tensors& part) { return accumulate(part, false); }, capture_device(options_, device)),
      captured_apply_(
          [this](const Tensors&) {
            apply();
            return Tensor();
          },
          capture_device(options_, device)),
      captured_last_(
          [this](const Tensors& part) {
            Tensor result = accumulate(part, false);
            apply();
            return result;
          },
          capture_device(options_, device)) {
  if (options_.precision == train::Precision::fp16) scaler_.emplace(train::GradScalerOptions{}, device);
  if (options_.parallel && options_.ranks->shard() != parallel::Shard::none) parallel::shard_optimizer(*optimizer_, *options_.parallel);
  else if (options_.parallel) parallel::overlap_optimizer(*optimizer_, *options_.parallel);
  // Allocated here, as a captured update writes to it.
  if (scaler_ || options_.clip > 0) grad_norm_ = zeros({}, DType::f32, device);
}

train::UpdateOptions TrainingLoop::update_options() {
  train::UpdateOptions result{.max_norm = options_.clip > 0 ? options_.clip : std::numeric_limits<double>::infinity(),
                              .scaler = scaler_ ? &*scaler_ : nullptr};
  if (options_.parallel) result.synchronize = [this] { options_.parallel->finish_gradient_synchronization(); };
  return result;
}

void TrainingLoop::note_norm(const Tensor& norm) {
  if (norm.defined()) copy_(grad_norm_, norm);
}

Tensor TrainingLoop::forward(const Tensors& batch) const {
  const profile::Pass pass("forward");
  return loss_(batch);
}

Tensor TrainingLoop::update(const Tensors& batch) {
  const Tensor loss = options_.parallel ? share_of_loss(batch) : forward(batch);
  note_norm(train::update(loss, *optimizer_, update_options()));
  after_step();
  return loss.detach();
}

/// The scaled loss of a part. Its share of the loss is the last tensor.
Tensor TrainingLoop::share_of_loss(const Tensors& batch_and_share) const {
  return forward({batch_and_share.begin(), batch_and_share.end() - 1}) * batch_and_share.back();
}

Tensor TrainingLoop::accumulate(const Tensors& batch_and_share, bool is_first) {
  if (is_first) optimizer_->zero_grad();
  const Tensor loss = share_of_loss(batch_and_share);
  train::accumulate(loss, update_options());
  return loss.detach();
}

void TrainingLoop::apply() {
  note_norm(train::apply(*optimizer_, update_options()));
  after_step();
}

void TrainingLoop::after_step() {
  const profile::Pass pass("optimizer");
  if (options_.after_step) options_.after_step();
}

void TrainingLoop::begin_epoch(bool is_resumed) {
  epoch_started_ = seconds_now();
  if (!session_started_) session_started_ = epoch_started_;
  if (is_resumed) return;
  loss_sum_ = zeros({}, DType::f32, device_);
  logged_ = {};
  steps_ = 0;
}

void TrainingLoop::end_epoch() {
  seconds_ = seconds();
  epoch_started_.reset();
}

void TrainingLoop::begin_update() {
  require_no_stop();
  if (profile_) profile_->begin_step();
  ++update_;
  optimizer_->set_lr_factor(options_.lr_factor(update_));
}

void TrainingLoop::count(const Tensor& loss, std::int64_t items) {
  add_(loss_sum_, loss);
  ++steps_;
  items_ += items;
  if (profile_) profile_->end_step();
  // Looking costs nothing here; a GPU would be waited for, and ranks, whose losses differ, would not end together: log() looks there.
  if (device_ != cpu || options_.parallel) return;
  require_finite(loss.item<double>());
  finite_update_ = update_;
}

void TrainingLoop::step(const Tensors& batch, std::int64_t items) {
  begin_update();
  const train::PrecisionScope precision(options_.precision);
  count(captured_update_(batch), items);
}

static double weight_of(const std::vector<BatchPart>& parts) {
  double weight = 0;
  for (const BatchPart& part : parts) weight += part.weight;
  return weight;
}

/// Appends a part's share of the loss, as accumulate() expects.
Tensors TrainingLoop::with_share(Tensors batch, double share) const {
  batch.push_back(full({}, share, DType::f32, device_));
  return batch;
}

void TrainingLoop::step(const std::vector<BatchPart>& parts, std::int64_t items) {
  if (options_.parallel) {
    step_of_ranks(parts, items);
    return;
  }
  if (parts.size() == 1) {
    step(parts[0].batch, items);
    return;
  }
  begin_update();
  const train::PrecisionScope precision(options_.precision);
  const double weight = weight_of(parts);
  Tensor loss = zeros({}, DType::f32, device_);
  for (const BatchPart& part : parts) {
    const Tensors inputs = with_share(part.batch, part.weight / weight);
    add_(loss, (&part == &parts.front() ? captured_first_ : captured_next_)(inputs));
  }
  captured_apply_({});
  count(loss, items);
}

/// Implements Note [The loss of several ranks].
void TrainingLoop::step_of_ranks(const std::vector<BatchPart>& parts, std::int64_t items) {
  begin_update();
  const train::PrecisionScope precision(options_.precision);
  const double weight = weight_of(parts);
  Tensor loss = zeros({}, DType::f32, device_);
  for (const BatchPart& part : parts) {
    const bool is_first = &part == &parts.front(), is_last = &part == &parts.back();
    const double share = part.rank.is_empty ? 0 : options_.ranks->size() / weight;
    const Tensors inputs = with_share(part.batch, share);
    const BatchRowsScope rows(part.rank.rows);
    std::optional<parallel::DataParallel::NoSync> own;
    if (!is_last) own.emplace(*options_.parallel);
    add_(loss, (!is_last ? is_first ? captured_first_ : captured_next_ : is_first ? captured_update_ : captured_last_)(inputs));
  }
  count(loss, items);
}

void TrainingLoop::share_loss() {
  if (options_.parallel && loss_sum_.defined()) options_.ranks->average(loss_sum_);
}

void TrainingLoop::log(RunView& view) {
  if (update_ % std::max<std::int64_t>(options_.updates / 200, 1) != 0) return;
  share_loss();
  io::JsonObject line;
  line.set("update", update_).set("loss", require_finite(mean_loss_since(logged_))).set("lr", options_.lr * options_.lr_factor(update_));
  finite_update_ = update_;
  if (grad_norm_.defined()) line.set("grad_norm", grad_norm_.item<double>());
  line.set(fmt::format("{}_per_second", options_.unit), items_per_second()).set("memory_bytes", peak_memory(device_));
  view.update(line);
}

Progress TrainingLoop::progress(std::int64_t epoch, std::int64_t epochs, double loss) const {
  return {.epoch = epoch,
          .epochs = epochs,
          .update = update_,
          .updates = options_.updates,
          .first_update = session_update_,
          .seconds = session_started_ ? seconds_now() - *session_started_ : 0,
          .loss = require_finite(loss),
          .items_per_second = items_per_second(),
          .unit = options_.unit};
}

double TrainingLoop::seconds() const { return seconds_ + (epoch_started_ ? seconds_now() - *epoch_started_ : 0); }

double TrainingLoop::items_per_second() const {
  const double elapsed = seconds();
  return elapsed > 0 ? static_cast<double>(items_) / elapsed : 0;
}

double TrainingLoop::mean_loss() const {
  Reading begin;
  return mean_loss_since(begin);
}

double TrainingLoop::mean_loss_since(Reading& last) const {
  const double sum = loss_sum_.item<double>();
  return (sum - std::exchange(last.sum, sum)) / static_cast<double>(steps_ - std::exchange(last.steps, steps_));
}

void TrainingLoop::require_no_stop() const {
  const int signal = options_.ranks ? options_.ranks->stop_signal() : stop_signal();
  if (signal != 0) stop(signal, fmt::format("at update {} of {}{}", update_, options_.updates, remains()));
}

double TrainingLoop::require_finite(double loss) const {
  if (std::isfinite(loss)) return loss;
  if (finite_update_ == update_) fail_not_finite(fmt::format("the loss is not finite after update {}", update_));  // that of a validation
  if (finite_update_ + 1 == update_) fail_not_finite(fmt::format("the loss stopped being finite at update {}", update_));
  fail_not_finite(fmt::format("the loss stopped being finite between the updates {} and {}", finite_update_ + 1, update_));
}

void TrainingLoop::fail_weights() const { fail_not_finite(fmt::format("the weights are not finite after update {}", update_)); }

/// A run that goes on comes to the same update, so that --resume is no remedy.
void TrainingLoop::fail_not_finite(const std::string& what) const {
  throw std::runtime_error(fmt::format("{} of {}: train anew with a --lr below {:g}{}{}", what, options_.updates, options_.lr,
                                       options_.clip > 0 ? "" : ", or with --clip 1", remains(false)));
}

std::vector<NamedTensor> TrainingLoop::state(const nn::Module& model) {
  std::vector<NamedTensor> result;
  for (const NamedTensor& entry : optimizer_->state(nn::named_parameters(model)))
    if (!entry.name.starts_with("master.")) result.push_back({"optimizer." + entry.name, entry.tensor});
  if (scaler_) {
    result.push_back({"scaler.scale", scaler_->scale()});
    result.push_back({"scaler.clean_steps", scaler_->clean_steps()});
  }
  if (!loss_sum_.defined()) loss_sum_ = zeros({}, DType::f32, device_);
  result.push_back({"loop.loss_sum", loss_sum_});
  return result;
}

void TrainingLoop::take_state(const nn::Module& model, const std::vector<NamedTensor>& loaded) {
  if (!optimizer_->is_sharded()) return;  // the tensors were loaded in place
  std::vector<NamedTensor> own;
  constexpr std::string_view prefix = "optimizer.";
  for (const NamedTensor& entry : loaded)
    if (entry.name.starts_with(prefix)) own.push_back({entry.name.substr(prefix.size()), entry.tensor});
  optimizer_->load_moments(own, nn::named_parameters(model));
}

io::JsonObject TrainingLoop::numbers() const {
  io::JsonObject numbers;
  numbers.set("update", update_).set("updates", options_.updates).set("steps", steps_).set("items", items_).set("seconds", seconds());
  return numbers.set("logged_loss", logged_.sum).set("logged_steps", logged_.steps);
}

void TrainingLoop::restore(const io::JsonObject& numbers) {
  const auto count = [&](const char* key, std::int64_t most) {
    const std::int64_t value = numbers.get_int(key);
    if (value < 0 || value > most)
      throw io::FileError(fmt::format("the checkpoint's \"{}\": expected 0 to {} but got {}", key, most, value));
    return value;
  };
  update_ = session_update_ = finite_update_ = count("update", options_.updates);
  steps_ = count("steps", update_);
  items_ = count("items", std::int64_t{1} << 53);
  logged_ = {.sum = numbers.get_double("logged_loss"), .steps = count("logged_steps", steps_)};
  seconds_ = numbers.get_double("seconds");
}

}  // namespace tern::apps
