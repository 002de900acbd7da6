#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>

#include "common/plot/chart.h"
#include "io/json_object.h"

namespace tern::apps {

/// The learning curves of a run, from the lines of its log: "loss", "valid_loss", "valid_smoothed_loss" (with the label smoothing of the
/// training's loss, to be compared with it), and "valid_bleu" or "valid_accuracy", each at its "update".
class Curves {
 public:
  /// The name of "loss" says what else than the cross entropy it has.
  explicit Curves(std::string training_loss = "training loss") : training_loss_(std::move(training_loss)) {}

  void add(const io::JsonObject& line);
  /// Adds the lines of a log up to an update. A missing log is empty. A line that is not a JSON object is skipped, as a killed process may
  /// leave one. Throws FileError for a log that cannot be read.
  void read(const std::filesystem::path& log, std::int64_t last_update);

  /// The chart, with losses on the left axis and the score on the right axis.
  Chart chart(const std::string& title) const;

 private:
  using Line = std::map<std::int64_t, double>;  ///< the latest value at each update
  Line loss_, valid_loss_, smoothed_, bleu_, accuracy_;
  std::string training_loss_;
};

}  // namespace tern::apps
