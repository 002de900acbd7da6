#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/device.h"
#include "common/attempt.h"
#include "common/curves.h"
#include "common/progress.h"
#include "common/training_run.h"
#include "io/event_file.h"

namespace tern::apps {

/// A sentence of the validation set with its translation.
struct Sample {
  std::string source, translation, reference;
};

/// The outputs of a training's progress: log.jsonl, TensorBoard's event file, curves.svg and the terminal. The first failure to write a
/// file is reported, and the training continues.
class RunView {
 public:
  /// The run has to outlive the view; null: only the terminal is written. `program` is the prefix of messages, `training_loss` the name of
  /// the log's "loss" in curves.svg.
  RunView(const std::string& program, TrainingRun* run, const std::string& training_loss = "training loss");

  /// True if the next progress would be shown.
  bool is_due() const { return progress_.is_due(); }
  void show(const Progress& progress) { progress_.update(progress); }

  /// Adds a line of the log for an update: "update", and numbers such as "loss".
  void update(const io::JsonObject& line);
  /// Adds a line for a validation, draws curves.svg, prints `shown`, and adds some of the samples to TensorBoard.
  void validated(const io::JsonObject& line, const std::string& shown, const std::vector<Sample>& samples = {});
  /// Prints a line that stays, above the progress.
  void print(const std::string& line) { progress_.print(line); }

 private:
  void add(const io::JsonObject& line);
  void open(std::int64_t update);

  TrainingRun* const run_;
  ProgressLine progress_;
  Curves curves_;
  Attempt try_events_, try_curves_;
  std::optional<io::EventFile> events_;
  bool is_open_ = false;
};

/// TensorBoard's tag for a number of the log: "train/loss" for "loss"; "" for numbers that are not plotted, such as the epoch.
std::string event_tag(const std::string& key);

/// The peak bytes of tensors on a device, for "memory_bytes" in the log.
std::int64_t peak_memory(Device device);

}  // namespace tern::apps
