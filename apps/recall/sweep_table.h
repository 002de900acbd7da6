#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "io/run_directory.h"
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
  // Tables without the columns from here on can be drawn.
  std::string mixer = "attention";  ///< with + for the commas of Options::mixer
  double lr = 0;
  std::int64_t state = 0;                             ///< bytes that the model keeps of one text that it has read
  std::optional<double> twice = {}, four_times = {};  ///< accuracy on examples of twice and four times the length and pairs, of harder mqar
};

/// Options::mixer as a cell of the table, whose cells end with commas.
std::string mixer_cell(std::string mixer);

/// Reads the runs of a table. Throws FileError, which names the line, for another file. `continues`: to add runs, without a last line that
/// has no end, which was cut off; the table has to have all columns.
std::vector<Run> read_runs(const std::filesystem::path& path, bool continues);

/// The table of a sweep, which is written to the disk after each run, in the order of the sweep's runs.
class Table {
 public:
  /// Continues the table in a directory if there is one. `order` has all runs.
  Table(const std::filesystem::path& directory, const Options& options, std::vector<Options> order);

  const std::filesystem::path& file() const { return file_; }
  /// True if the run is there, or its model with another rate that has reached the target.
  bool has(const Options& options) const;
  /// Adds a row. If the disk is full or fails, the sweep continues, and the row is written with the next one.
  void add(const Run& run);
  void require_written() const;

 private:
  std::size_t place(const Run& run) const;
  void write() const;

  const io::DirectoryLock lock_;
  const std::filesystem::path file_;
  const std::vector<Options> order_;
  std::vector<Run> runs_;
  std::string fault_;  ///< of the last attempt
};

}  // namespace tern::recall
