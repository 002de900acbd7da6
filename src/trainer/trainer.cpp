#include "trainer/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <stdexcept>

#include "backend/parse.h"
#include "nn/module.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "parallel/data_parallel.h"
#include "text/unicode.h"
#include "trainer/ranks.h"
#include "trainer/step_profile.h"
#include "trainer/terminal.h"

namespace tern::train {

namespace {

constexpr double min_interval_ratio = 20;  ///< interval between checkpoints over the duration of one: Note [Checkpoints take little time]

const std::string model_prefix = "model.", best_prefix = "best.";

std::vector<NamedTensor> prefixed(const std::string& prefix, const std::vector<NamedTensor>& tensors) {
  std::vector<NamedTensor> result;
  for (const NamedTensor& entry : tensors) result.push_back({prefix + entry.name, entry.tensor});
  return result;
}

Device device_of(const nn::Module& model) {
  const Tensors parameters = nn::parameters(model);
  if (parameters.empty()) fail("Trainer", "expected a model with parameters but got none");
  return parameters.front().device();
}

}  // namespace

Trainer::Trainer(nn::Module& model, Task task, TrainerOptions options, Run& run)
    : model_(model),
      task_(std::move(task)),
      options_(std::move(options)),
      run_(run),
      ranks_(run.ranks()),
      device_(device_of(model)),
      whole_step_(kept([this](const Tensors& batch) { return update(batch); })),
      first_step_(kept([this](const Tensors& part) { return accumulate(part, true); })),
      next_step_(kept([this](const Tensors& part) { return accumulate(part, false); })),
      apply_step_(kept([this](const Tensors&) { return apply(), Tensor(); })),
      last_step_(kept([this](const Tensors& part) {
        Tensor result = accumulate(part, false);
        apply();
        return result;
      })) {
  set_precision(model_, options_.precision);
  if (ranks_) parallel_ = ranks_->parallel(model_);
  if (options_.ema > 0)
    ema_.emplace(model_, EmaOptions{.decay = options_.ema, .gather = [this](const Tensors& x) { detail::gather(parallel_.get(), x); }});
  Tensors trained = nn::parameters(model_);
  std::erase_if(trained, [](const Tensor& parameter) { return !parameter.requires_grad(); });
  optimizer_ = task_.optimizer(trained);
  if (options_.precision == Precision::fp16) scaler_.emplace(GradScalerOptions{}, device_);
  if (parallel_ && ranks_->shard() != parallel::Shard::none) parallel::shard_optimizer(*optimizer_, *parallel_);
  else if (parallel_) parallel::overlap_optimizer(*optimizer_, *parallel_);
  // Allocated here, as captured and compiled updates write to them.
  if (scaler_ || options_.clip > 0) grad_norm_ = zeros({}, DType::f32, device_);
  loss_sum_ = zeros({}, DType::f32, device_);
}

Trainer::~Trainer() = default;

double Trainer::lr_factor(std::int64_t update) const {
  const double factor = schedule::by_name(options_.schedule, update, options_.warmup, options_.updates);
  return options_.lr_factor ? factor * options_.lr_factor(update) : factor;
}

UpdateOptions Trainer::update_options() {
  UpdateOptions result{.max_norm = options_.clip > 0 ? options_.clip : std::numeric_limits<double>::infinity(),
                       .scaler = scaler_ ? &*scaler_ : nullptr};
  if (parallel_) result.synchronize = [this] { parallel_->finish_gradient_synchronization(); };
  return result;
}

/// A part of an update in the way of the options. One with sharded gradients, which change their addresses, runs as written.
Step Trainer::kept(StepFunction part) const {
  const bool is_sharded = ranks_ && ranks_->shard() >= parallel::Shard::gradients;
  return Step(std::move(part), options_.compile ? Step::Way::compiled : is_sharded ? Step::Way::as_written : Step::Way::captured, device_);
}

Tensor Trainer::forward(const Tensors& batch) const {
  const profile::Pass pass("forward");
  return task_.loss(batch);
}

/// The scaled loss of a part. Its share of the loss is the last tensor.
Tensor Trainer::share_of_loss(const Tensors& batch_and_share) const {
  return forward({batch_and_share.begin(), batch_and_share.end() - 1}) * batch_and_share.back();
}

Tensor Trainer::update(const Tensors& batch) {
  const Tensor loss = parallel_ ? share_of_loss(batch) : forward(batch);
  finish_update(train::update(loss, *optimizer_, update_options()));
  return loss.detach();
}

Tensor Trainer::accumulate(const Tensors& batch_and_share, bool is_first) {
  if (is_first) optimizer_->zero_grad();
  const Tensor loss = share_of_loss(batch_and_share);
  train::accumulate(loss, update_options());
  return loss.detach();
}

void Trainer::apply() { finish_update(train::apply(*optimizer_, update_options())); }

void Trainer::finish_update(const Tensor& norm) {
  if (norm.defined()) copy_(grad_norm_, norm);
  const profile::Pass pass("optimizer");
  if (ema_) ema_->update();
}

/// Several ranks: Note [The loss of several ranks].
Tensor Trainer::step_parts(const std::vector<BatchPart>& parts) {
  if (parts.size() == 1 && !ranks_) return whole_step_(parts[0].tensors);
  double weight = 0;
  for (const BatchPart& part : parts) weight += part.weight;
  Tensor loss = zeros({}, DType::f32, device_);
  for (const BatchPart& part : parts) {
    const bool is_first = &part == &parts.front(), is_last = ranks_ && &part == &parts.back();
    const double share = !ranks_ ? part.weight / weight : part.rank.is_empty ? 0 : ranks_->size() / weight;
    Tensors inputs = part.tensors;
    inputs.push_back(full({}, share, DType::f32, device_));
    std::optional<BatchRowsScope> rows;
    std::optional<parallel::DataParallel::NoSync> own;
    if (ranks_) rows.emplace(part.rank.rows);
    if (ranks_ && !is_last) own.emplace(*parallel_);
    add_(loss, (!is_last ? is_first ? first_step_ : next_step_ : is_first ? whole_step_ : last_step_)(inputs));
  }
  if (!ranks_) apply_step_(Tensors{});
  return loss;
}

/// Makes the next update, before which a signal may stop the training.
void Trainer::step() {
  const UpdateBatch batch = task_.batch(update_);
  if (batch.parts.empty()) return static_cast<void>(++update_);
  require_no_stop();
  if (profile_) profile_->begin_step();
  ++update_;
  optimizer_->set_lr_factor(lr_factor(update_));
  Tensor loss;
  {
    const PrecisionScope precision(options_.precision);
    loss = step_parts(batch.parts);
  }
  add_(loss_sum_, loss);
  ++steps_;
  items_ += batch.items;
  if (profile_) profile_->end_step();
  // Looking costs nothing here; a GPU would be waited for, and ranks, whose losses differ, would not end together: log() looks there.
  if (device_ == cpu && !parallel_) {
    require_finite(loss.item<double>());
    finite_update_ = update_;
  }
  log();
  if (options_.shows_progress && line_.is_due()) line_.update(progress());
}

/// Averages the sums of the loss over the ranks. A collective.
void Trainer::share_loss() {
  if (parallel_) ranks_->average(loss_sum_);
}

/// The mean loss since `last`, which it updates. Waits for the device.
double Trainer::mean_loss_since(Reading& last) const {
  const double sum = loss_sum_.item<double>();
  return (sum - std::exchange(last.sum, sum)) / static_cast<double>(steps_ - std::exchange(last.steps, steps_));
}

/// Logs some 200 updates of the whole training, a line each: update, loss (mean since the previous line), lr, the gradient norm if
/// gradients are clipped or scaled, items per second, and the peak of the device's memory. A collective.
void Trainer::log() {
  if (!run_.is_written() || update_ % std::max<std::int64_t>(options_.updates / 200, 1) != 0) return;
  share_loss();
  io::JsonObject line;
  line.set("update", update_).set("loss", require_finite(mean_loss_since(logged_))).set("lr", options_.lr * lr_factor(update_));
  finite_update_ = update_;
  if (grad_norm_.defined()) line.set("grad_norm", grad_norm_.item<double>());
  line.set(fmt::format("{}_per_second", options_.unit), items_per_second());
  run_.log(line.set("memory_bytes", memory_statistics(device_).peak_allocated));
}

Progress Trainer::progress() const {
  return {.epoch = std::max<std::int64_t>(epochs(), 1),
          .epochs = total_epochs(),
          .update = update_,
          .updates = options_.updates,
          .first_update = session_update_,
          .seconds = session_started_ ? seconds_now() - *session_started_ : 0,
          .loss = require_finite(steps_ > shown_.steps ? mean_loss_since(shown_) : 0),
          .items_per_second = items_per_second(),
          .unit = options_.unit,
          .may_end_early = options_.may_end_early};
}

double Trainer::seconds() const { return seconds_ + (round_started_ ? seconds_now() - *round_started_ : 0); }

double Trainer::items_per_second() const {
  const double seconds = this->seconds();
  return seconds > 0 ? static_cast<double>(items_) / seconds : 0;
}

void Trainer::require_no_stop() const {
  const int signal = ranks_ ? ranks_->stop_signal() : stop_signal();
  if (signal != 0) stop(signal, fmt::format("at update {} of {}{}", update_, options_.updates, run_.remains()));
}

double Trainer::require_finite(double loss) const {
  if (std::isfinite(loss)) return loss;
  if (finite_update_ == update_) fail_not_finite(fmt::format("the loss is not finite after update {}", update_));  // that of a validation
  if (finite_update_ + 1 == update_) fail_not_finite(fmt::format("the loss stopped being finite at update {}", update_));
  fail_not_finite(fmt::format("the loss stopped being finite between the updates {} and {}", finite_update_ + 1, update_));
}

/// Waits for the device once.
void Trainer::require_finite_weights(const std::vector<NamedTensor>& weights) const {
  if (!detail::is_finite(parallel_.get(), weights)) fail_not_finite(fmt::format("the weights are not finite after update {}", update_));
}

/// A run that goes on comes to the same update, so that --resume is no remedy.
void Trainer::fail_not_finite(const std::string& what) const {
  throw NotFinite(fmt::format("{} of {}: train anew with a --lr below {:g}{}{}", what, options_.updates, options_.lr,
                              options_.clip > 0 ? "" : ", or with --clip 1", run_.remains(false)),
                  std::min(finite_update_ + 1, update_), update_);
}

void Trainer::run() {
  started_ = seconds_now();
  if (run_.is_resumed()) resume();
  if (options_.profile > 0 && run_.has_directory())
    profile_ = std::make_unique<StepProfile>(
        StepProfileOptions{.steps = options_.profile,
                           .device = device_,
                           .model = &model_,
                           .optimizer = optimizer_.get(),
                           .program = run_.program(),
                           .directory = [this] { return std::filesystem::path(run_.directory().trace()).parent_path(); }});
  try {
    run_rounds();
  } catch (const Stopped&) {
    share_loss();
    if (run_.is_written() && update_ > 0 && saved_ != update_) save_checkpoint();
    require_no_stop();  // throws again, with a message that names the new checkpoint
    throw;
  } catch (const Error& error) {
    if (!is_failure_of_other_rank(error)) throw;
    throw std::runtime_error(error.what() + run_.remains());
  }
  if (!best_.model.empty()) detail::write_parameters(parallel_.get(), model_, best_.model);
  if (parallel_) parallel_->keep_parameters();  // for rank 0, which continues alone
  if (profile_) profile_->finish();
  report_programs();
}

void Trainer::replay(std::int64_t update, const std::function<void(std::int64_t updates)>& before) {
  started_ = seconds_now();
  if (run_.is_resumed()) resume();
  model_.train();
  while (update_ < std::min(update, options_.updates)) {
    before(update_);
    step();
  }
}

void Trainer::report_programs() const {
  if (!options_.compile) return;
  std::size_t programs = 0;
  std::int64_t runs = 0;
  for (const Step* step : {&whole_step_, &first_step_, &next_step_, &last_step_, &apply_step_})
    programs += step->compiled()->programs(), runs += step->compiled()->runs();
  write_output(fmt::format("compiled {} program{}, which ran {} times in {} updates\n", programs, programs == 1 ? "" : "s", runs,
                           update_ - session_update_));
}

void Trainer::run_rounds() {
  const std::int64_t every = run_.checkpoint_options().every.value_or(0);
  for (bool goes_on = true; goes_on;) {
    if (!std::exchange(resumes_round_, false)) {
      ++round_;
      first_update_ = update_;
    }
    run_round();
    std::vector<double> is_due{every == 0 && (!saved_ || seconds_now() - saved_at_ >= min_interval_ratio * save_seconds_) ? 1.0 : 0.0};
    if (ranks_) ranks_->broadcast(is_due);  // clocks differ, and all ranks gather what is sharded
    if (run_.is_written() && saved_ != update_ && (is_last_round() || is_due[0] != 0)) save_checkpoint();

    optimizer_->gather_masters();
    Validation validation;
    if (task_.validate) {
      std::optional<EmaScope> averages;
      if (ema_) averages.emplace(*ema_);
      validation = task_.validate(*this);
    }
    agree_on(validation);
    keep_best(validation);
    report(validation);
    goes_on = !is_last_round() && !validation.is_enough && (options_.patience == 0 || since_best_ < options_.patience);
  }
}

void Trainer::run_round() {
  model_.train();
  round_started_ = seconds_now();
  if (!session_started_) session_started_ = round_started_;
  shown_ = {};
  if (update_ == first_update_) {  // otherwise a checkpoint within the round was restored
    loss_sum_ = zeros({}, DType::f32, device_);
    logged_ = {};
    steps_ = 0;
  }
  const std::int64_t size = options_.valid_every > 0 ? options_.valid_every : options_.updates_per_epoch;
  const std::int64_t end = std::min(first_update_ + size, options_.updates), every = run_.checkpoint_options().every.value_or(0);
  while (update_ < end) {
    step();
    if (!run_.is_written() || every == 0 || update_ % every != 0) continue;
    share_loss();
    save_checkpoint();
  }
  share_loss();
  Reading begin;
  if (steps_ > 0) train_loss_ = require_finite(mean_loss_since(begin));
  seconds_ = seconds();
  round_started_.reset();
}

/// Replaces a validation by rank 0's, as machines may differ in the last bit.
void Trainer::agree_on(Validation& validation) const {
  if (!ranks_) return;
  const auto rank = validation.rank.value_or(std::pair(0.0, 0.0));
  std::vector<double> decided{validation.rank ? 1.0 : 0.0, rank.first, rank.second, validation.is_enough ? 1.0 : 0.0};
  ranks_->broadcast(decided);
  validation.rank = decided[0] != 0 ? std::optional(std::pair(decided[1], decided[2])) : std::nullopt;
  validation.is_enough = decided[3] != 0;
}

void Trainer::keep_best(const Validation& validation) {
  const auto& best = best_.validation.rank;
  if (validation.rank) ++since_best_;
  if (!validation.rank ? best.has_value() : best && *validation.rank <= *best) return;
  if (validation.rank) since_best_ = 0;
  require_finite_weights(served());  // the validation may have needed none of them
  best_ = {.validation = {.rank = validation.rank, .numbers = validation.numbers},
           .round = round_,
           .update = update_,
           .model = detail::copies(parallel_.get(), served())};
  run_.save(best_.model, best_.round, best_.update);
}

void Trainer::report(const Validation& validation) {
  if (!run_.is_written()) return;
  io::JsonObject line;
  line.set("epoch", epochs()).set("update", update_).set("train_loss", train_loss_).update(validation.numbers);
  line.set(fmt::format("{}_per_second", options_.unit), items_per_second()).set("seconds", validation.seconds.value_or(seconds()));
  run_.log(line);
  std::string shown = validation.shown;
  if (shown.empty()) {
    shown = fmt::format("epoch {:>3}  train_loss {:.4g}", epochs(), train_loss_);
    for (const auto& [name, value] : validation.numbers.numbers()) shown += fmt::format("  {} {:.4g}", name, value);
  }
  line_.print(shown);
  run_.draw(update_, validation.samples);
}

std::vector<NamedTensor> Trainer::optimizer_state() {
  std::vector<NamedTensor> result = optimizer_->state(nn::named_parameters(model_));
  std::erase_if(result, [](const NamedTensor& entry) { return entry.name.starts_with("master."); });  // they are the model's
  return prefixed("optimizer.", result);
}

/// All tensors of the state between two updates, to be read and written in place. checkpoint_numbers() is the rest of the state.
std::vector<NamedTensor> Trainer::tensors() {
  std::vector<NamedTensor> result = prefixed(model_prefix, weights());
  const auto add = [&](const std::vector<NamedTensor>& more) { result.insert(result.end(), more.begin(), more.end()); };
  add(prefixed("buffer.", nn::named_buffers(model_)));
  add(optimizer_state());
  if (scaler_) add({{"scaler.scale", scaler_->scale()}, {"scaler.clean_steps", scaler_->clean_steps()}});
  add({{"loop.loss_sum", loss_sum_}});
  if (ema_) add(prefixed("ema.", ema_->state()));
  add(prefixed(best_prefix, best_.model));
  return result;
}

io::JsonObject Trainer::checkpoint_numbers() const {
  const Generator& generator = context().generator;
  io::JsonObject loop, own, all;
  loop.set("update", update_).set("updates", options_.updates).set("steps", steps_).set("items", items_).set("seconds", seconds());
  loop.set("logged_loss", logged_.sum).set("logged_steps", logged_.steps);
  own.update(numbers).set("seconds", elapsed());
  all.set("epoch", round_).set("first_update", first_update_).set("since_best", since_best_);
  all.set("seed", fmt::to_string(generator.seed())).set("draws", fmt::to_string(generator.position()));
  all.set("loop", loop).set("trainer", own);
  if (best_.model.empty()) return all;
  io::JsonObject best;
  best.set("epoch", best_.round).set("update", best_.update).set("numbers", best_.validation.numbers);
  if (const auto& rank = best_.validation.rank) best.set("rank", rank->first).set("second_rank", rank->second);
  return all.set("best", best);
}

void Trainer::save_checkpoint() {
  const double started = seconds_now();
  std::vector<NamedTensor> all = tensors();
  // All ranks gather sharded parameters before rank 0 writes.
  if (parallel_ && parallel_->shard() == parallel::Shard::parameters)
    for (NamedTensor& entry : all)
      if (entry.name.starts_with(model_prefix)) entry = detail::copies(parallel_.get(), {entry}).front();
  require_finite_weights(weights());  // a checkpoint of weights that overflowed would replace a good one
  if (run_.save_checkpoint(update_, all, checkpoint_numbers(), best_.update)) saved_ = update_;
  saved_at_ = seconds_now();
  save_seconds_ = saved_at_ - started;
}

void Trainer::resume() {
  const CheckpointHead& head = run_.head();
  const std::int64_t done = head.numbers.get_object("loop").get_int("update");
  if (done > options_.updates)
    throw Error(fmt::format("{}: {} updates are done, which is more than the {} that --epochs and --updates now ask for: use larger ones",
                            head.file.path, done, options_.updates));
  if (head.numbers.contains("best"))
    for (const NamedTensor& entry : served()) best_.model.push_back({entry.name, empty(entry.tensor.shape(), entry.tensor.dtype(), cpu)});
  const std::vector<NamedTensor> all = tensors();
  Tensors written;
  for (const NamedTensor& entry : all) written.push_back(entry.tensor);
  detail::gather(parallel_.get(), written);
  run_.load_checkpoint(all);
  if (optimizer_->is_sharded()) {  // its tensors are copies
    std::vector<NamedTensor> own;
    constexpr std::string_view prefix = "optimizer.";
    for (const NamedTensor& entry : all)
      if (entry.name.starts_with(prefix)) own.push_back({entry.name.substr(prefix.size()), entry.tensor});
    optimizer_->load_moments(own, nn::named_parameters(model_));
  }
  detail::round_masters(parallel_.get(), model_);
  restore(head.numbers);
  if (ranks_) ranks_->barrier();  // before rank 0 moves the files that the others read
  run_.restart(best_.model, best_.round, best_.update);
  saved_ = done;
  saved_at_ = seconds_now();
  const std::int64_t planned = head.numbers.get_object("loop").get_int("updates");
  write_output(fmt::format("resumed  from update {} of {}: {}\n", head.file.update, options_.updates, text::printable(head.file.path)));
  if (planned != options_.updates && options_.schedule != "constant" && options_.schedule != "inverse-sqrt")
    write_output(fmt::format("schedule the rate fell to 0 by update {} and now falls to 0 by update {}, so that it jumps here\n", planned,
                             options_.updates));
}

/// Restores the numbers of a checkpoint whose tensors have been loaded, and whose checksum so has been verified.
void Trainer::restore(const io::JsonObject& saved) {
  const std::string& path = run_.head().file.path;
  const io::JsonObject loop = saved.get_object("loop"), own = saved.get_object("trainer");
  const auto count = [&](const char* key, std::int64_t most) {
    const std::int64_t value = loop.get_int(key);
    if (value < 0 || value > most)
      throw io::FileError(fmt::format("the checkpoint's \"{}\": expected 0 to {} but got {}", key, most, value));
    return value;
  };
  update_ = session_update_ = finite_update_ = count("update", options_.updates);
  steps_ = count("steps", update_);
  items_ = count("items", std::int64_t{1} << 53);
  logged_ = {.sum = loop.get_double("logged_loss"), .steps = count("logged_steps", steps_)};
  seconds_ = loop.get_double("seconds");
  round_ = saved.get_int("epoch");
  first_update_ = saved.get_int("first_update");
  since_best_ = saved.get_int("since_best");
  // A round has at least one update, and so does a validation.
  if (round_ < 1 || round_ > update_ + 1 || first_update_ < 0 || first_update_ > update_ || since_best_ < 0 || since_best_ > update_)
    throw io::FileError(
        fmt::format("{}: expected an epoch with its updates but got epoch {} from update {} of {}", path, round_, first_update_, update_));
  resumes_round_ = true;
  const auto unsigned_number = [&](const char* key) {
    const auto value = backend::parse_number<std::uint64_t>(saved.get_string(key));
    if (!value) throw io::FileError(fmt::format("{}: expected \"{}\" to be a number", path, key));
    return *value;
  };
  Generator& generator = context().generator;
  generator.set_seed(unsigned_number("seed"));
  generator.set_position(unsigned_number("draws"));
  if (own.contains("seconds")) started_ = seconds_now() - own.get_double("seconds");
  numbers = own;
  if (!saved.contains("best")) return;
  const io::JsonObject best = saved.get_object("best");
  best_.round = best.get_int("epoch");
  best_.update = best.get_int("update");
  best_.validation.numbers = best.get_object("numbers");
  if (best.contains("rank")) best_.validation.rank = {best.get_double("rank"), best.get_double("second_rank")};
}

}  // namespace tern::train
