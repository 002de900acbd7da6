#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "recall/options.h"
#include "recall/trainer.h"

namespace tern::recall {

/// A row of sweep.csv: a training and its results.
struct Run {
  std::string task;
  std::int64_t layers = 0, width = 0, mlp = 0, length = 0, pairs = 0, seed = 0;
  std::int64_t params = 0;
  double accuracy = 0, low = 0, high = 0;  ///< on the test examples, with its 95% confidence interval
  std::int64_t answers = 0;
  double train_loss = 0, test_loss = 0;
  std::int64_t epochs = 0, updates = 0;
  double seconds = 0;
  std::int64_t epoch_90 = 0;  ///< when the validation accuracy first was 90%; 0: never
  double seconds_90 = 0;
};

/// The names of the columns, and a run's values; no line break.
std::string csv_header();
std::string to_csv(const Run& run);
/// Throws FileError, which names the line, for a file that is not a sweep's, or that has no run.
std::vector<Run> read_csv(const std::filesystem::path& path);
/// The runs of a table that a sweep is to go on with: there may be none, and a last line without its end was cut off and is left out.
std::vector<Run> read_csv_to_continue(const std::filesystem::path& path);

}  // namespace tern::recall
