#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "recall/options.h"

namespace tern::recall {

/// A row of sweep.csv: a training and its results.
struct Run {
  std::string task;
  std::int64_t layers = 0, width = 0, mlp = 0, length = 0, pairs = 0, seed = 0;
  std::int64_t params = 0;
  double accuracy = 0, low = 0, high = 0;  ///< test accuracy, with its 95% confidence interval
  std::int64_t answers = 0;
  double train_loss = 0, test_loss = 0;
  std::int64_t epochs = 0, updates = 0;
  double seconds = 0;
  std::int64_t epoch_90 = 0;  ///< first epoch with a validation accuracy of 90%; 0: none
  double seconds_90 = 0;
};

/// The header of the table, and the row of a run; without a line break.
std::string csv_header();
std::string to_csv(const Run& run);
/// Reads the runs of a table. Throws FileError, which names the line, for another file, and for a table without runs.
std::vector<Run> read_csv(const std::filesystem::path& path);
/// Reads the runs of a table to be continued: there may be none, and a last line without a line end, which was cut off, is dropped.
std::vector<Run> read_csv_to_continue(const std::filesystem::path& path);

}  // namespace tern::recall
