#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "recall/options.h"

// The subcommands of tern-recall.
namespace tern::recall {

/// Trains on the task, and writes config.json, log.jsonl, model.safetensors and summary.json to options.out. Throws UsageError or Error for
/// invalid options, before anything is written.
void train(const Options& options);

/// A grid of trainings: all combinations of its lists. An empty list is the value of the options.
struct Grid {
  std::vector<std::int64_t> lengths, layers, widths, seeds;
  std::vector<std::int64_t> pairs;  ///< with lengths: one for each, or one for all; empty: 4, 8, 16 and 64, else a sixteenth
  std::vector<std::string> mixers;  ///< each as Options::mixer
  std::vector<double> lrs;          ///< tried in turn until one reaches Options::target
};

/// Trains the grid, appends each finished run to options.out/sweep.csv, and calls plot(). Runs that are in the table are skipped, so that
/// the same command continues an interrupted sweep. options.out/sweep.json has the settings that all rows share. Throws UsageError, before
/// the first run, for an impossible run, and FileError for a table of other settings, or if another process writes to the directory. `jobs`
/// models are trained at once, each on one CPU thread, or in a stream of its own of the GPU; the results do not depend on it.
void sweep(const Options& options, const Grid& grid, std::int64_t jobs = 1);

/// Draws recall.svg and mqar.svg from the runs of these tasks in the sweeps' tables, of several mixers also recall-states.svg and
/// mqar-states.svg, and prints the accuracy for each number of layers and the least number that reaches 90% with every seed. Of several
/// rates it takes the best. Throws FileError.
void plot(const std::vector<std::string>& tables, const std::filesystem::path& directory);

struct HardcodedOptions : apps::Processors {
  std::int64_t vocab = 0, length = 0;  ///< 0: all four sizes
  std::int64_t examples = 0;           ///< 0: some 24,000 tokens
  std::int64_t seed = 1;
  std::string out;  ///< directory for heat maps; "": none
};

/// Scores the model, prints examples at which it fails, and draws heat maps. Throws UsageError.
void hardcoded(const HardcodedOptions& options);

}  // namespace tern::recall
