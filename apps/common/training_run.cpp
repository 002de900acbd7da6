#include "common/training_run.h"

#include <fmt/format.h>

#include <utility>

#include "backend/parse_number.h"
#include "common/output.h"
#include "text/printable.h"

namespace tern::apps {

static std::optional<io::RunDirectory> open(const std::filesystem::path& out, const io::JsonObject& config, bool resume, Ranks* ranks) {
  std::optional<io::RunDirectory> run;
  if (!ranks || ranks->is_first()) run.emplace(resume ? io::RunDirectory::resume(out) : io::RunDirectory::create(out, config));
  if (ranks) ranks->barrier();
  return run;
}

TrainingRun::TrainingRun(std::string program, const std::filesystem::path& out, const io::JsonObject& config,
                         const CheckpointOptions& options, Ranks* ranks)
    : program_(std::move(program)),
      path_(out),
      config_(config),
      options_(options),
      run_(open(out, config, options.resume, ranks)),
      log_attempt_(program_) {
  if (!options.resume) {
    if (run_) log_.emplace(run_->log());
    return;
  }
  head_ = last_checkpoint(program_, out);
  if (run_) run_->require_fits(head_->file);
  if (run_ && !run_->has_config())
    write_message(fmt::format("{}: {}: is missing; training goes on with the options in {}\n", program_, text::printable(run_->config()),
                              text::printable(std::filesystem::path(head_->file.path).filename().string())));
  checkpoint_ = head_->file.path;
  if (!options_.every) options_.every = head_->options.every;
  if (!options_.keep) options_.keep = head_->options.keep;
}

/// The tokenizer is beside the directory of the checkpoints, which may have moved.
std::filesystem::path TrainingRun::tokenizer() const {
  return run_ ? std::filesystem::path(run_->tokenizer())
              : std::filesystem::path(head_->file.path).parent_path().parent_path() / "tokenizer.json";
}

void TrainingRun::set_data(const std::filesystem::path& path, const std::string& digest) {
  if (head_ && digest != head_->data_digest)
    throw UsageError(fmt::format("{}: is not the data that {} was trained on (its checksum is {} and not {}): restore it, or train anew",
                                 path.empty() ? path_.string() : path.string(), path_.string(), digest,
                                 text::printable(head_->data_digest, 60)));
  data_ = path.string();
  data_digest_ = digest;
}

void TrainingRun::log(const io::JsonObject& line) {
  if (!run_) return;
  try_log([&] { log_->write(line); });
}

static io::Metadata model_metadata(std::int64_t epoch, std::int64_t update) {
  return {{"format", "pt"}, {"epoch", fmt::to_string(epoch)}, {"update", fmt::to_string(update)}};
}

void TrainingRun::save(std::span<const NamedTensor> model, std::int64_t epoch, std::int64_t update) {
  if (!run_) return;
  try_log([&] { log_->sync(); });  // so that the log on the disk covers the model
  const auto has_moved = [&, was_staged = run_->is_staged()] { return was_staged && !run_->is_staged(); };
  try {
    run_->save_model(model, model_metadata(epoch, update));
    saved_epoch_ = epoch;
    model_fault_.clear();
  } catch (const io::FileError& error) {
    model_fault_ = error.what();
    if (saved_epoch_ == 0 && run_->has_model()) saved_epoch_ = epoch;  // written completely, but not moved into place
    write_message(fmt::format("{}: {}{}; training goes on\n", program_, error.what(), remains()));
  }
  if (has_moved() && !checkpoint_.empty()) checkpoint_ = run_->checkpoints() / checkpoint_.filename();
}

bool TrainingRun::save_checkpoint(std::int64_t update, std::span<const NamedTensor> tensors, io::JsonObject numbers,
                                  std::int64_t best_update) {
  if (!run_) return true;
  try_log([&] { log_->sync(); });
  numbers.set("log_bytes", log_->size());
  const CheckpointHead head{
      .file = {}, .config = config_, .numbers = std::move(numbers), .data = data_, .data_digest = data_digest_, .options = options_};
  try {
    checkpoint_ = run_->save_checkpoint(update, tensors, to_metadata(program_, head)).path;
    checkpoint_fault_.clear();
    run_->prune_checkpoints(static_cast<std::size_t>(options_.keep.value_or(1)), best_update);
    return true;
  } catch (const io::FileError& error) {
    if (std::exchange(checkpoint_fault_, error.what()) != error.what())
      write_message(fmt::format("{}: {}{}; training goes on\n", program_, error.what(), remains()));
    return false;
  }
}

void TrainingRun::load_checkpoint(std::span<const NamedTensor> tensors) const {
  read_checkpoint(path_, [&] { io::load_safetensors_into(head_->file.path, tensors); });
}

/// The run's model and the epoch and update of its metadata; none if the run has no model.
std::vector<NamedTensor> TrainingRun::model_in_place(std::int64_t& epoch, std::int64_t& update) const {
  std::vector<NamedTensor> result;
  if (!run_->has_model()) return result;
  io::TensorFile file = io::load_safetensors(run_->model());
  const auto number = [&](const char* key) { return backend::parse_number<std::int64_t>(file.metadata[key]).value_or(0); };
  epoch = number("epoch");
  update = number("update");
  for (auto& [name, tensor] : file.tensors) result.push_back({name, std::move(tensor)});
  return result;
}

void TrainingRun::restart(std::span<const NamedTensor> best, std::int64_t epoch, std::int64_t update) {
  if (!run_) return;
  std::vector<NamedTensor> before;
  if (best.empty()) best = before = model_in_place(epoch, update);
  run_->restart(config_, head_->numbers.get_int("log_bytes"));
  log_.emplace(run_->log());
  if (best.empty()) return;
  run_->save_model(best, model_metadata(epoch, update));
  saved_epoch_ = epoch;
  checkpoint_ = run_->checkpoints() / checkpoint_.filename();
}

void TrainingRun::finish(const io::JsonObject& summary) {
  if (!run_) return;
  try_log([&] { log_->sync(); });
  if (!model_fault_.empty()) throw std::runtime_error(fmt::format("the last model was not written: {}{}", model_fault_, remains()));
  run_->write_summary(summary);
}

std::string TrainingRun::remains(bool can_resume) const {
  if (!run_) return "";
  const std::string& path = run_->path();
  const std::string goes_on = checkpoint_.empty() || !can_resume ? "" : fmt::format("; --resume goes on from {}", checkpoint_.string());
  if (saved_epoch_ > 0) return fmt::format("{}; {} keeps the model of epoch {}", goes_on, path, saved_epoch_);
  if (is_resumed() && !run_->is_staged()) return fmt::format("{}; {} is as it was", goes_on, path);
  if (run_->keeps_earlier()) return fmt::format("{}; {} keeps the earlier run, as no epoch was done", goes_on, path);
  return fmt::format("{}; {} keeps no model, since no epoch was done", goes_on, path);
}

}  // namespace tern::apps
