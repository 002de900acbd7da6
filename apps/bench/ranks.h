#pragma once
#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/timing.h"
#include "parallel/process_group.h"

// Measurements in several processes, which a launcher has started, or which `--ranks` starts.
namespace tern::bench {

/// Runs this program's command line in `ranks` processes, as tern-launch would. They write their rows to the file `rows` if it is not
/// empty: rows_for_starter. Throws Stopped if they were asked to stop, UsageError or std::runtime_error if one failed, which has printed
/// the reason.
void start_ranks(int ranks, const std::string& rows = "");
/// True in a process that start_ranks has started, although its command line has --ranks.
bool is_started_rank();
/// The file for rows that start_ranks has given to this process; none if there is none.
std::optional<std::string> rows_for_starter();

/// The world size: the number of processes of the launcher.
int launched_ranks();
/// The rank of this process.
int launched_rank();
/// Processes of the launch on this machine.
int local_ranks();
/// Throws UsageError if a launcher has started several processes, each of which would start more for --ranks.
void require_no_launcher();

/// The element-wise maximum of all ranks' values; for a single process the values.
std::vector<double> largest(parallel::ProcessGroup& group, std::vector<double> values);
/// The times of the slowest rank.
Times slowest(parallel::ProcessGroup& group, const Times& times);

}  // namespace tern::bench
