#include "trainer/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <future>
#include <sstream>
#include <utility>

#include "backend/parse.h"
#include "io/event_file.h"
#include "io/files.h"
#include "io/markdown.h"
#include "io/svg.h"
#include "tensor/sizes.h"
#include "text/unicode.h"
#include "trainer/terminal.h"

namespace tern::train {

namespace {

/// Key of the metadata that marks a checkpoint; the value is the program's name.
constexpr const char* marker = "tern.checkpoint";
/// Key of the data's digest, named like those of files.
const std::string data_digest_key = std::string(io::checksum_key) + ":data";

std::optional<io::RunDirectory> open_directory(const std::string& out, const io::JsonObject& config, bool resume, Ranks* ranks) {
  std::optional<io::RunDirectory> run;
  if (!ranks || ranks->is_first()) run.emplace(resume ? io::RunDirectory::resume(out) : io::RunDirectory::create(out, config));
  if (ranks) ranks->barrier();
  return run;
}

/// Calls `read`, which reads the newest checkpoint of a run: a FileError that it throws says which older one is left, if there is one.
void read_checkpoint(const std::string& run, const std::function<void()>& read) {
  try {
    read();
  } catch (const io::DiskError&) {
    throw;
  } catch (const io::FileError& error) {
    const std::vector<io::CheckpointFile> files = io::RunDirectory::require_checkpoints(run);
    if (files.size() < 2) throw;
    throw io::FileError(fmt::format("{}; remove it, and --resume goes on from {}", error.what(),
                                    std::filesystem::path(files[files.size() - 2].path).filename().string()));
  }
}

/// Escapes a sentence for Markdown.
std::string plain(const std::string& sentence) {
  std::string result;
  for (const char c : text::without_controls(sentence)) {
    if (std::string_view("\\`*_{}[]<>()#+-.!|&~").find(c) != std::string_view::npos) result += '\\';
    result += c;
  }
  return result;
}

/// A Markdown table of a few samples, evenly spaced among all.
std::string markdown(const std::vector<Sample>& samples) {
  constexpr std::size_t most = 10;
  const std::size_t count = std::min(most, samples.size());
  io::MarkdownTable table({"source", "translation", "reference"});
  for (std::size_t i = 0; i < count; ++i) {
    const Sample& sample = samples[i * samples.size() / count];
    table.add({plain(sample.source), plain(sample.translation), plain(sample.reference)});
  }
  return table.text();
}

/// TensorBoard's tag for a number of the log: "train/loss" for "loss"; "" for numbers that are not plotted, such as the epoch.
std::string event_tag(const std::string& key) {
  if (key == "update" || key == "epoch" || key == "seconds") return "";
  if (key == "memory_bytes") return "memory/bytes";
  if (key.ends_with("_per_second")) return "speed/" + key;
  if (key.starts_with("valid_")) return "valid/" + key.substr(6);
  if (key == "train_loss") return "train/epoch_loss";
  return "train/" + key;
}

/// Reduces a curve to 400 points, as more are not visible and enlarge the file, by means of neighbours, which its name then says.
io::svg::Series series_of(const std::string& name, const std::map<std::int64_t, double>& curve, bool is_right, io::svg::Mark mark) {
  io::svg::Series series{.name = name, .points = {}, .is_right = is_right, .mark = mark};
  const std::size_t together = ceil_div(curve.size(), std::size_t{400});
  if (together > 1) series.name += fmt::format(", means of {} values", together);
  for (auto at = curve.begin(); at != curve.end();) {
    double x = 0, y = 0, count = 0;
    for (; at != curve.end() && count < static_cast<double>(together); ++at, ++count) {
      x += static_cast<double>(at->first);
      y += at->second;
    }
    series.points.push_back({x / count, y / count, 0, 0});
  }
  return series;
}

/// The path of a checkpoint whose directory has moved.
std::string moved(const std::string& checkpoint, const std::string& directory) {
  return (std::filesystem::path(directory) / std::filesystem::path(checkpoint).filename()).string();
}

io::Metadata model_metadata(std::int64_t epoch, std::int64_t update) {
  return {{"format", "pt"}, {"epoch", fmt::to_string(epoch)}, {"update", fmt::to_string(update)}};
}

}  // namespace

bool Attempt::operator()(const std::function<void()>& write) {
  try {
    write();
    return true;
  } catch (const io::FileError& error) {
    if (!std::exchange(has_failed_, true)) write_message(fmt::format("{}: {}: training goes on\n", program_, error.what()));
    return false;
  }
}

CheckpointHead last_checkpoint(const std::string& program, const std::string& run, std::int64_t most_updates) {
  const std::vector<io::CheckpointFile> files = io::RunDirectory::require_checkpoints(run);
  const auto newest = std::find_if(files.rbegin(), files.rend(), [&](const auto& file) { return file.update <= most_updates; });
  if (newest == files.rend())
    throw io::FileError(
        fmt::format("{}: expected a checkpoint of at most {} updates but the first has {}", run, most_updates, files.front().update));
  CheckpointHead head{.file = *newest};
  const std::string path = head.file.path;
  io::Metadata metadata;
  read_checkpoint(run, [&] { metadata = io::load_safetensors_metadata(head.file.path); });
  const auto text = [&](const std::string& key) -> const std::string& {
    const auto found = metadata.find(key);
    if (found == metadata.end()) throw io::FileError(fmt::format("{}: is no checkpoint: its metadata lacks the key \"{}\"", path, key));
    return found->second;
  };
  const auto number = [&](const std::string& key, std::int64_t low, std::int64_t high) {
    const std::optional<std::int64_t> value = backend::parse_number<std::int64_t>(text(key));
    if (!value || *value < low || *value > high)
      throw io::FileError(fmt::format("{}: {}: expected a whole number from {} to {} but got {}", path, key, low, high,
                                      text(key).empty() ? "\"\"" : text::printable(text(key), 60)));
    return *value;
  };
  if (text(marker) != program)
    throw io::FileError(fmt::format("{}: expected a checkpoint of {} but got one of {}", path, program, text::printable(text(marker), 60)));
  text(io::checksum_key);  // required: without a checksum the loader could not detect damage
  head.config = io::JsonObject::parse(text("config"), path);
  head.numbers = io::JsonObject::parse(text("numbers"), path);
  head.data = text("data");
  head.data_digest = text(data_digest_key);
  head.options.every = number("every", 0, 1'000'000'000);
  head.options.keep = number("keep", 1, 1'000'000);
  return head;
}

struct Run::Saving {
  std::int64_t epoch;
  std::future<void> end;
};

Run::Run(std::string program, std::function<std::string(bool)> remains)
    : program_(std::move(program)), remains_(std::move(remains)), try_log_(program_), try_events_(program_), try_curves_(program_) {}

Run::Run(std::string program, CheckpointHead head) : Run(std::move(program)) { head_ = std::move(head); }

Run::Run(std::string program, const std::string& out, const io::JsonObject& config, const CheckpointOptions& options, Ranks* ranks)
    : program_(std::move(program)),
      path_(out),
      config_(config),
      options_(options),
      ranks_(ranks),
      run_(open_directory(out, config, options.resume, ranks)),
      try_log_(program_),
      try_events_(program_),
      try_curves_(program_) {
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

Run::~Run() = default;

/// The tokenizer is beside the directory of the checkpoints, which may have moved.
std::string Run::tokenizer() const {
  return run_ ? run_->tokenizer() : (std::filesystem::path(head_->file.path).parent_path().parent_path() / "tokenizer.json").string();
}

void Run::set_data(const std::string& path, const std::string& digest) {
  if (head_ && digest != head_->data_digest)
    throw Error(fmt::format("{}: is not the data that {} was trained on (its checksum is {} and not {}): restore it, or train anew",
                            path.empty() ? path_ : path, path_, digest, text::printable(head_->data_digest, 60)));
  data_ = path;
  data_digest_ = digest;
}

void Run::require_size(std::int64_t parameters) const {
  if (!head_) return;
  std::error_code error;
  const auto bytes = static_cast<double>(std::filesystem::file_size(head_->file.path, error)), elements = static_cast<double>(parameters);
  if (!error && bytes < 12 * elements)
    throw io::FileError(
        fmt::format("{}: does not fit the model that it names: {:.3g} elements with their moments do not fit in {:.0f} bytes",
                    head_->file.path, elements, bytes));
}

/// Opens the files at the first line. For a resumed run, reads the curves of its log up to `update`, and drops the events that an earlier
/// session wrote after the checkpoint.
void Run::open(std::int64_t update) {
  is_open_ = true;
  try_curves_([&] { read_curves(update); });
  try_events_([&] {
    events_ = std::make_unique<io::EventFile>(run_->events());
    if (events_->goes_on()) events_->begin_session(update);
  });
}

void Run::log(const io::JsonObject& line) {
  if (!run_) return;
  const std::int64_t update = line.get_int("update");
  if (!is_open_) open(update);
  add_to_curves(line);
  try_log_([&] { log_->write(line); });
  if (!events_) return;
  std::vector<std::pair<std::string, double>> scalars;
  for (const auto& [key, value] : line.numbers())
    if (const std::string tag = event_tag(key); !tag.empty()) scalars.emplace_back(tag, value);
  try_events_([&] { events_->scalars(update, scalars); });
}

void Run::draw(std::int64_t update, const std::vector<Sample>& samples) {
  if (!run_) return;
  if (events_)
    try_events_([&] {
      if (!samples.empty()) events_->text(update, "samples", markdown(samples));
      events_->flush();
    });
  try_curves_([&] { io::write_file_atomically(run_->curves(), curves()); });
}

void Run::add_to_curves(const io::JsonObject& line) {
  if (!line.contains("update")) return;
  for (const auto& [key, value] : line.numbers())
    if (std::isfinite(value)) curves_[key][line.get_int("update")] = value;
}

/// Adds the lines of the log up to an update. A line that is not a JSON object is skipped, as a killed process may leave one.
void Run::read_curves(std::int64_t last_update) {
  if (std::error_code error; !std::filesystem::exists(run_->log(), error)) return;
  std::istringstream text(io::read_file(run_->log(), std::size_t{1} << 30));
  for (std::string line; std::getline(text, line);) {
    try {
      const io::JsonObject object = io::JsonObject::parse(line, run_->log());
      if (object.contains("update") && object.get_int("update") <= last_update) add_to_curves(object);
    } catch (const io::FileError&) {  // this line is skipped
    }
  }
}

/// The learning curves, losses on the left axis and a score on the right one. The smoothed loss of a validation, with the label smoothing
/// of the training's loss, is to be compared with that.
std::string Run::curves() const {
  using io::svg::Mark;
  struct Curve {
    std::string key, name;
    bool is_right;
    Mark mark;
  };
  // The name of the absolute path, as the user may have written ".".
  std::error_code error;
  const std::string name = std::filesystem::weakly_canonical(run_->path(), error).filename().string();
  io::svg::Chart chart{.title = name.empty() ? "Learning curves" : "Learning curves of " + text::printable(name, 60),
                       .x_label = "update",
                       .left = {.label = "loss"},
                       .series = {}};
  for (const Curve& each : std::initializer_list<Curve>{{"loss", loss_name_, false, Mark::none},
                                                        {"valid_loss", "validation loss", false, Mark::disc},
                                                        {"valid_smoothed_loss", "validation loss (label smoothing)", false, Mark::ring},
                                                        {"valid_bleu", "validation BLEU", true, Mark::disc},
                                                        {"valid_accuracy", "validation accuracy", true, Mark::disc}})
    if (const auto found = curves_.find(each.key); found != curves_.end())
      chart.series.push_back(series_of(each.name, found->second, each.is_right, each.mark));
  if (curves_.contains("valid_accuracy")) chart.right = {.label = "accuracy", .is_percent = true, .low = 0, .high = 1};
  else if (curves_.contains("valid_bleu")) chart.right = {.label = "BLEU", .low = 0};
  return to_svg(chart);
}

void Run::save(std::span<const NamedTensor> model, std::int64_t epoch, std::int64_t update) {
  if (!run_) return;
  finish_save();
  try_log_([&] { log_->sync(); });  // so that the log on the disk covers the model
  const auto write = [this, tensors = std::vector(model.begin(), model.end()), metadata = model_metadata(epoch, update)] {
    run_->save_model(tensors, metadata);
  };
  // The first model moves the run into place, where this thread then writes its other files.
  const bool was_staged = run_->is_staged();
  saving_ = std::make_unique<Saving>(Saving{epoch, std::async(was_staged ? std::launch::deferred : std::launch::async, write)});
  if (!was_staged) return;
  finish_save();
  if (!run_->is_staged() && !checkpoint_.empty()) checkpoint_ = moved(checkpoint_, run_->checkpoints());
}

void Run::finish_save() {
  const std::unique_ptr<Saving> saving = std::move(saving_);
  if (!saving) return;
  try {
    saving->end.get();
    saved_epoch_ = saving->epoch;
    model_fault_.clear();
  } catch (const io::FileError& error) {
    model_fault_ = error.what();
    if (saved_epoch_ == 0 && run_->has_model()) saved_epoch_ = saving->epoch;  // written completely, but not moved into place
    write_message(fmt::format("{}: {}{}; training goes on\n", program_, error.what(), remains()));
  }
}

bool Run::save_checkpoint(std::int64_t update, std::span<const NamedTensor> tensors, io::JsonObject numbers, std::int64_t best_update) {
  if (!run_) return true;
  finish_save();
  try_log_([&] { log_->sync(); });
  numbers.set("log_bytes", log_->size());
  io::Metadata metadata{{"format", "pt"},
                        {marker, program_},
                        {"config", config_.dump()},
                        {"numbers", numbers.dump()},
                        {"data", data_},
                        {data_digest_key, data_digest_},
                        {"every", fmt::to_string(options_.every.value_or(0))},
                        {"keep", fmt::to_string(options_.keep.value_or(1))}};
  try {
    checkpoint_ = run_->save_checkpoint(update, tensors, std::move(metadata)).path;
    checkpoint_fault_.clear();
    run_->prune_checkpoints(static_cast<std::size_t>(options_.keep.value_or(1)), best_update);
    return true;
  } catch (const io::FileError& error) {
    if (std::exchange(checkpoint_fault_, error.what()) != error.what())
      write_message(fmt::format("{}: {}{}; training goes on\n", program_, error.what(), remains()));
    return false;
  }
}

void Run::load_checkpoint(std::span<const NamedTensor> tensors) const {
  const auto read = [&] { io::load_safetensors_into(head_->file.path, tensors); };
  if (path_.empty()) read();
  else read_checkpoint(path_, read);
}

/// The run's model and the epoch and update of its metadata; none if the run has no model.
std::vector<NamedTensor> Run::model_in_place(std::int64_t& epoch, std::int64_t& update) const {
  std::vector<NamedTensor> result;
  if (!run_->has_model()) return result;
  io::TensorFile file = io::load_safetensors(run_->model());
  const auto number = [&](const char* key) { return backend::parse_number<std::int64_t>(file.metadata[key]).value_or(0); };
  epoch = number("epoch");
  update = number("update");
  for (auto& [name, tensor] : file.tensors) result.push_back({name, std::move(tensor)});
  return result;
}

void Run::restart(std::span<const NamedTensor> best, std::int64_t epoch, std::int64_t update) {
  if (!run_) return;
  std::vector<NamedTensor> before;
  if (best.empty()) best = before = model_in_place(epoch, update);
  run_->restart(config_, head_->numbers.get_int("log_bytes"));
  log_.emplace(run_->log());
  if (best.empty()) return;
  run_->save_model(best, model_metadata(epoch, update));
  saved_epoch_ = epoch;
  checkpoint_ = moved(checkpoint_, run_->checkpoints());
}

void Run::finish(const io::JsonObject& summary) {
  if (!run_) return;
  finish_save();
  try_log_([&] { log_->sync(); });
  if (!model_fault_.empty()) throw std::runtime_error(fmt::format("the last model was not written: {}{}", model_fault_, remains()));
  run_->write_summary(summary);
}

std::string Run::remains(bool can_resume) {
  if (!run_) return remains_ ? remains_(can_resume) : "";
  finish_save();
  const std::string& path = run_->path();
  const std::string goes_on = checkpoint_.empty() || !can_resume ? "" : fmt::format("; --resume goes on from {}", checkpoint_);
  if (saved_epoch_ > 0) return fmt::format("{}; {} keeps the model of epoch {}", goes_on, path, saved_epoch_);
  if (is_resumed() && !run_->is_staged()) return fmt::format("{}; {} is as it was", goes_on, path);
  if (run_->keeps_earlier()) return fmt::format("{}; {} keeps the earlier run, as no epoch was done", goes_on, path);
  return fmt::format("{}; {} keeps no model, since no epoch was done", goes_on, path);
}

}  // namespace tern::train
