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

/// All places where a training shows how it goes: log.jsonl, TensorBoard's event file, curves.svg and the terminal. A file that cannot be
/// written is said once, and the training goes on.
class RunView {
 public:
  /// The run outlives the view; without one nothing but the terminal is written. `program` begins the messages.
  RunView(const std::string& program, TrainingRun* run);

  /// True when the terminal waits for progress, so that it need not be made in vain.
  bool is_due() const { return progress_.is_due(); }
  void show(const Progress& progress) { progress_.update(progress); }

  /// A line of the log of an update: "update", and the numbers to show, such as "loss".
  void update(const io::JsonObject& line);
  /// The same for a validation, after which curves.svg is drawn anew. `shown` is printed, and some of the samples go to TensorBoard.
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

/// The tag under which TensorBoard shows a number of the log: "train/loss" for "loss"; "" for what is no curve, as the epoch.
std::string event_tag(const std::string& key);

/// The most bytes that tensors of a device have had at a time, for "memory_bytes" in the log.
std::int64_t peak_memory(Device device);

}  // namespace tern::apps
