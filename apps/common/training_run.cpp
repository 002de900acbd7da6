#include "common/training_run.h"

#include <fmt/format.h>

#include <utility>

#include "common/output.h"
#include "nn/parameter_buffer.h"

namespace tern::apps {

TrainingRun::TrainingRun(std::string program, const std::filesystem::path& out, const io::JsonObject& config)
    : program_(std::move(program)), run_(io::RunDirectory::create(out, config)), log_(run_.log()) {}

void TrainingRun::log(const io::JsonObject& line) {
  try_log([&] { log_->write(line); });
}

void TrainingRun::try_log(const std::function<void()>& write) {
  try {
    write();
  } catch (const io::FileError& error) {
    // One message, however many lines follow: a full disk says it with each.
    if (!std::exchange(has_log_fault_, true)) write_message(fmt::format("{}: {}: training goes on\n", program_, error.what()));
  }
}

void TrainingRun::save(const nn::Module& model, std::int64_t epoch, std::int64_t update) {
  try_log([&] { log_->sync(); });  // a model on the disk has its log beside it
  try {
    run_.save_model(nn::named_masters(model), {{"format", "pt"}, {"epoch", fmt::to_string(epoch)}, {"update", fmt::to_string(update)}});
    saved_epoch_ = epoch;
    model_fault_.clear();
  } catch (const io::FileError& error) {
    model_fault_ = error.what();
    if (saved_epoch_ == 0 && run_.has_model()) saved_epoch_ = epoch;  // it is whole, but not in its place
    write_message(fmt::format("{}: {}{}; training goes on\n", program_, error.what(), remains()));
  }
}

void TrainingRun::finish(const io::JsonObject& summary) {
  try_log([&] { log_->sync(); });
  if (!model_fault_.empty()) throw std::runtime_error(fmt::format("the last model was not written: {}{}", model_fault_, remains()));
  run_.write_summary(summary);
}

std::string TrainingRun::remains() const {
  const std::string path = run_.path().string();
  if (saved_epoch_ > 0) return fmt::format("; {} keeps the model of epoch {}", path, saved_epoch_);
  if (run_.keeps_earlier()) return fmt::format("; {} keeps the earlier run, as no epoch was done", path);
  return fmt::format("; {} keeps no model, since no epoch was done", path);
}

}  // namespace tern::apps
