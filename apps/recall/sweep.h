#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "recall/options.h"

namespace tern::recall {

/// A grid of trainings: all combinations of lengths, numbers of layers, widths and seeds. An empty list is the value of the options.
struct Grid {
  std::vector<std::int64_t> lengths, layers, widths, seeds;
};

/// The pairs of an mqar example by its length: those of zoology's figure (4 for 64, 8 for 128, 16 for 256, 64 for 512), else length / 16.
std::int64_t pairs_of(std::int64_t length);

/// Trains the grid, appends each finished run to options.out/sweep.csv, and calls plot(). Runs that are in the table are skipped, so that
/// the same command continues an interrupted sweep. options.out/sweep.json has the settings that all rows share. Throws UsageError, before
/// the first run, for an impossible run, and FileError for a table of other settings, or if another process writes to the directory.
void sweep(const Options& options, const Grid& grid);

/// Draws recall.svg and mqar.svg from the runs of these tasks in the sweeps' tables, and prints the accuracy for each number of layers and
/// the least number that reaches 90% with every seed. Throws FileError.
void plot(const std::vector<std::string>& tables, const std::filesystem::path& directory);

}  // namespace tern::recall
