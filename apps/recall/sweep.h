#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "recall/options.h"

namespace tern::recall {

/// Runs of one training each: every length with every number of layers, width and seed. An empty list stands for what the
/// options say.
struct Grid {
  std::vector<std::int64_t> lengths, layers, widths, seeds;
};

/// The pairs of an mqar example of some length: those of zoology's figure (4 of 64, 8 of 128, 16 of 256, 64 of 512), else a
/// sixteenth.
std::int64_t pairs_of(std::int64_t length);

/// Trains the grid, appends each run to options.out/sweep.csv when it is done, and does what plot() does. Runs that the table has already
/// are left out: the same command goes on with a sweep that was cut short. options.out/sweep.json keeps the settings that all rows share.
/// Throws UsageError, before the first run, for any run that is impossible, and FileError for a table of other settings, or while another
/// process writes there.
void sweep(const Options& options, const Grid& grid);

/// Draws recall.svg and mqar.svg, each where the sweeps' tables have runs of that task, into a directory, and prints what the runs say
/// together: the accuracy of each number of layers, and the fewest that reach 90% with every seed. Throws FileError.
void plot(const std::vector<std::string>& tables, const std::filesystem::path& directory);

}  // namespace tern::recall
