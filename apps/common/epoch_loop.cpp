#include "common/epoch_loop.h"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <stdexcept>
#include <utility>

#include "backend/parse_number.h"
#include "common/program.h"
#include "common/stop.h"
#include "ops/copy.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"

namespace tern::apps {

namespace {

constexpr double min_interval_ratio = 20;  ///< interval between checkpoints over the duration of one: Note [Checkpoints take little time]

const std::string model_prefix = "model.", best_prefix = "best.";

std::vector<NamedTensor> prefixed(const std::string& prefix, const std::vector<NamedTensor>& tensors) {
  std::vector<NamedTensor> result;
  for (const NamedTensor& entry : tensors) result.push_back({prefix + entry.name, entry.tensor});
  return result;
}

/// Copies of tensors on the CPU.
std::vector<NamedTensor> copies(const std::vector<NamedTensor>& tensors) {
  const NoGrad unrecorded;
  std::vector<NamedTensor> result;
  for (const NamedTensor& entry : tensors)
    result.push_back({entry.name, entry.tensor.device() == cpu ? clone(entry.tensor) : to(entry.tensor.detach(), cpu)});
  return result;
}

/// Sets the parameters to their masters, rounded.
void round_masters(const nn::Module& model) {
  const NoGrad unrecorded;
  for (const NamedTensor& entry : nn::named_parameters(model))
    if (const Tensor master = master_of(entry.tensor); master.defined()) copy_(entry.tensor, cast(master, entry.tensor.dtype()));
}

/// Sets the model's parameters of the same names, and their masters.
void write_parameters(const nn::Module& model, const std::vector<NamedTensor>& values) {
  const NoGrad unrecorded;
  std::map<std::string, Tensor> by_name;
  for (const NamedTensor& entry : values) by_name[entry.name] = entry.tensor;
  for (const NamedTensor& entry : nn::named_masters(model)) copy_(entry.tensor, by_name.at(entry.name));
  round_masters(model);
}

/// True if all values are finite. Waits for the device once.
bool is_finite(const std::vector<NamedTensor>& tensors) {
  const NoGrad unrecorded;
  Tensor sums;
  for (const NamedTensor& entry : tensors) {
    const Tensor zero = sum(entry.tensor.detach() * 0.0);  // 0 * inf and 0 * NaN are NaN
    sums = sums.defined() ? sums + zero : zero;
  }
  return !sums.defined() || std::isfinite(sums.item<double>());
}

}  // namespace

EpochLoop::EpochLoop(Trainable& trainable, TrainingRun* run, const EpochLoopOptions& options)
    : trainable_(trainable), run_(run), options_(options) {}

void EpochLoop::run() {
  try {
    run_epochs();
  } catch (const Stopped&) {
    TrainingLoop& loop = trainable_.loop();
    loop.share_loss();
    if (run_ && loop.updates() > 0 && saved_ != loop.updates()) save_checkpoint();
    loop.require_no_stop();  // throws again, with a message that names the new checkpoint
    throw;
  } catch (const Error& error) {
    if (!is_failure_of_other_rank(error)) throw;
    throw std::runtime_error(error.what() + trainable_.loop().remains());
  }
  if (!best_.model.empty()) write_parameters(trainable_.model(), best_.model);
  trainable_.loop().keep_parameters();  // for rank 0, which continues alone
}

void EpochLoop::run_epochs() {
  TrainingLoop& loop = trainable_.loop();
  const std::int64_t every = run_ ? run_->checkpoint_options().every.value_or(0) : 0;
  for (bool goes_on = true; goes_on;) {
    if (!std::exchange(resumes_epoch_, false)) {
      ++epoch_;
      first_update_ = loop.updates();
    }
    trainable_.run_epoch(epoch_ - 1, loop.updates() - first_update_, [&] {
      if (!run_ || every == 0 || loop.updates() % every != 0) return;
      loop.share_loss();
      save_checkpoint();
    });
    const bool is_last = loop.updates() >= loop.total_updates();
    const bool is_due = every == 0 && (!saved_ || seconds_now() - saved_at_ >= min_interval_ratio * save_seconds_);
    if (run_ && saved_ != loop.updates() && (is_last || is_due)) save_checkpoint();

    loop.gather_masters();
    Validation validation = trainable_.validate(epoch_, is_last);
    agree_on(validation);
    keep_best(validation);
    trainable_.report(epoch_, validation);
    goes_on = !is_last && !validation.is_enough && (options_.patience == 0 || since_best_ < options_.patience);
  }
}

/// Replaces a validation by rank 0's, as machines may differ in the last bit.
void EpochLoop::agree_on(Validation& validation) const {
  Ranks* const ranks = trainable_.loop().ranks();
  if (!ranks) return;
  const auto rank = validation.rank.value_or(std::pair(0.0, 0.0));
  std::vector<double> decided{validation.rank ? 1.0 : 0.0, rank.first, rank.second, validation.is_enough ? 1.0 : 0.0};
  ranks->broadcast(decided);
  validation.rank = decided[0] != 0 ? std::optional(std::pair(decided[1], decided[2])) : std::nullopt;
  validation.is_enough = decided[3] != 0;
}

void EpochLoop::keep_best(const Validation& validation) {
  const auto& best = best_.validation.rank;
  if (validation.rank) ++since_best_;
  if (!validation.rank ? best.has_value() : best && *validation.rank <= *best) return;
  if (validation.rank) since_best_ = 0;
  // The validation may have needed none of them.
  if (!is_finite(trainable_.served())) trainable_.loop().fail_weights();
  best_ = {.validation = validation, .epoch = epoch_, .update = trainable_.loop().updates(), .model = copies(trainable_.served())};
  if (run_) run_->save(best_.model, best_.epoch, best_.update);
}

std::vector<NamedTensor> EpochLoop::tensors() {
  std::vector<NamedTensor> result = prefixed(model_prefix, nn::named_masters(trainable_.model()));
  for (const auto& more : {prefixed("buffer.", nn::named_buffers(trainable_.model())), trainable_.loop().state(trainable_.model()),
                           trainable_.state(), prefixed(best_prefix, best_.model)})
    result.insert(result.end(), more.begin(), more.end());
  return result;
}

io::JsonObject EpochLoop::numbers() const {
  const Generator& generator = context().generator;
  io::JsonObject numbers;
  numbers.set("epoch", epoch_).set("first_update", first_update_).set("since_best", since_best_);
  numbers.set("seed", fmt::to_string(generator.seed())).set("draws", fmt::to_string(generator.position()));
  numbers.set("loop", trainable_.loop().numbers()).set("trainer", trainable_.numbers());
  if (best_.model.empty()) return numbers;
  io::JsonObject best;
  best.set("epoch", best_.epoch).set("update", best_.update).set("numbers", best_.validation.numbers);
  if (const auto& rank = best_.validation.rank) best.set("rank", rank->first).set("second_rank", rank->second);
  return numbers.set("best", best);
}

void EpochLoop::save_checkpoint() {
  const double started = seconds_now();
  std::vector<NamedTensor> all = tensors();
  // Reading sharded parameters is a collective: all ranks gather them before rank 0 writes.
  if (trainable_.loop().shards_parameters())
    for (NamedTensor& entry : all)
      if (entry.name.starts_with(model_prefix)) entry = copies({entry}).front();
  // A checkpoint of weights that overflowed would replace a good one.
  if (!is_finite(nn::named_masters(trainable_.model()))) trainable_.loop().fail_weights();
  const bool is_saved = run_->save_checkpoint(trainable_.loop().updates(), all, numbers(), best_.update);
  if (is_saved) saved_ = trainable_.loop().updates();
  saved_at_ = seconds_now();
  save_seconds_ = saved_at_ - started;
}

void EpochLoop::resume() {
  const CheckpointHead& head = run_->head();
  const std::string path = head.file.path.string();
  const io::JsonObject& numbers = head.numbers;
  const std::int64_t done = numbers.get_object("loop").get_int("update"), total = trainable_.loop().total_updates();
  if (done > total)
    throw UsageError(fmt::format(
        "{}: {} updates are done, which is more than the {} that --epochs and --updates now ask for: use larger ones", path, done, total));
  if (numbers.contains("best"))
    for (const NamedTensor& entry : trainable_.served())
      best_.model.push_back({entry.name, empty(entry.tensor.shape(), entry.tensor.dtype(), cpu)});
  const std::vector<NamedTensor> all = tensors();
  run_->load_checkpoint(all);
  trainable_.loop().take_state(trainable_.model(), all);
  round_masters(trainable_.model());
  restore(numbers);
  if (Ranks* const ranks = trainable_.loop().ranks()) ranks->barrier();  // before rank 0 moves the files that the others read
  run_->restart(best_.model, best_.epoch, best_.update);
  saved_ = done;
  saved_at_ = seconds_now();
}

/// Restores the numbers of a checkpoint whose tensors have been loaded, and whose checksum so has been verified.
void EpochLoop::restore(const io::JsonObject& numbers) {
  trainable_.loop().restore(numbers.get_object("loop"));
  const std::int64_t updates = trainable_.loop().updates();
  epoch_ = numbers.get_int("epoch");
  first_update_ = numbers.get_int("first_update");
  since_best_ = numbers.get_int("since_best");
  // An epoch has at least one update, and so does a validation.
  if (epoch_ < 1 || epoch_ > updates + 1 || first_update_ < 0 || first_update_ > updates || since_best_ < 0 || since_best_ > updates)
    throw io::FileError(fmt::format("{}: expected an epoch with its updates but got epoch {} from update {} of {}",
                                    run_->head().file.path.string(), epoch_, first_update_, updates));
  resumes_epoch_ = true;
  const auto unsigned_number = [&](const char* key) {
    const std::string text = numbers.get_string(key);
    const std::optional<std::uint64_t> value = backend::parse_number<std::uint64_t>(text);
    if (!value) throw io::FileError(fmt::format("{}: expected \"{}\" to be a number", run_->head().file.path.string(), key));
    return *value;
  };
  Generator& generator = context().generator;
  generator.set_seed(unsigned_number("seed"));
  generator.set_position(unsigned_number("draws"));
  trainable_.restore(numbers.get_object("trainer"));
  if (!numbers.contains("best")) return;
  const io::JsonObject best = numbers.get_object("best");
  best_.epoch = best.get_int("epoch");
  best_.update = best.get_int("update");
  best_.validation.numbers = best.get_object("numbers");
  if (best.contains("rank")) best_.validation.rank = {best.get_double("rank"), best.get_double("second_rank")};
}

}  // namespace tern::apps
