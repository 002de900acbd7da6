#include "common/run_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "io/atomic_file.h"
#include "io/markdown.h"
#include "text/printable.h"

namespace tern::apps {

namespace {

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

}  // namespace

std::string event_tag(const std::string& key) {
  if (key == "update" || key == "epoch" || key == "seconds") return "";
  if (key == "memory_bytes") return "memory/bytes";
  if (key.ends_with("_per_second")) return "speed/" + key;
  if (key.starts_with("valid_")) return "valid/" + key.substr(6);
  if (key == "train_loss") return "train/epoch_loss";
  return "train/" + key;
}

std::int64_t peak_memory(Device device) { return static_cast<std::int64_t>(memory_statistics(device).peak_allocated); }

RunView::RunView(const std::string& program, TrainingRun* run, const std::string& training_loss)
    : run_(run), curves_(training_loss), try_events_(program), try_curves_(program) {}

/// Opens the files at the first line. For a resumed run, reads the curves of its log up to `update`, and drops the events that an earlier
/// session wrote after the checkpoint.
void RunView::open(std::int64_t update) {
  is_open_ = true;
  try_curves_([&] { curves_.read(run_->directory().log(), update); });
  try_events_([&] {
    events_.emplace(run_->directory().events());
    if (events_->goes_on()) events_->begin_session(update);
  });
}

void RunView::add(const io::JsonObject& line) {
  if (!run_) return;
  const std::int64_t update = line.get_int("update");
  if (!is_open_) open(update);
  curves_.add(line);
  run_->log(line);
  if (!events_) return;
  std::vector<std::pair<std::string, double>> scalars;
  for (const auto& [key, value] : line.numbers())
    if (const std::string tag = event_tag(key); !tag.empty()) scalars.emplace_back(tag, value);
  try_events_([&] { events_->scalars(update, scalars); });
}

void RunView::update(const io::JsonObject& line) { add(line); }

void RunView::validated(const io::JsonObject& line, const std::string& shown, const std::vector<Sample>& samples) {
  add(line);
  progress_.print(shown);
  if (!run_) return;
  if (events_)
    try_events_([&] {
      if (!samples.empty()) events_->text(line.get_int("update"), "samples", markdown(samples));
      events_->flush();
    });
  try_curves_([&] {
    // The name of the absolute path, as the user may have written ".".
    std::error_code error;
    const std::string name = std::filesystem::weakly_canonical(run_->directory().path(), error).filename().string();
    const std::string title = name.empty() ? "Learning curves" : "Learning curves of " + text::printable(name, 60);
    io::write_file_atomically(run_->directory().curves(), to_svg(curves_.chart(title)));
  });
}

}  // namespace tern::apps
