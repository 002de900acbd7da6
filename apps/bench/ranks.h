#pragma once
#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/timing.h"
#include "dist/process_group.h"

// Measurements in several processes: a launcher has started them, or `--ranks` does.
namespace tern::bench {

/// Runs this program's arguments again in `ranks` processes, as tern-launch would start them. Their rows go to the file `rows`, if it is
/// named: see rows_for_starter. Throws Stopped where they were asked to stop, UsageError and std::runtime_error where one of them failed,
/// which has said why.
void start_ranks(int ranks, const std::string& rows = "");
/// True in a process that start_ranks has started: it has --ranks among its arguments, and is one of them.
bool is_started_rank();
/// The file that start_ranks has named to this process; nothing without one.
std::optional<std::string> rows_for_starter();

/// --copy-engine-mb, from how many megabytes GPUs of one machine use their copy engines; 0: never.
void add_copy_engine_option(CLI::App& command, dist::GroupOptions& options, const char* group = "");

/// The world size: processes that a launcher has started, this one included.
int launched_ranks();
/// The rank of this one.
int launched_rank();
/// Processes of the launch on this machine.
int local_ranks();
/// Throws UsageError where a launcher has started several, for --ranks would start more from each of them.
void require_no_launcher();

/// The largest of all ranks' values, each by itself; the values where a process is alone.
std::vector<double> largest(dist::ProcessGroup& group, std::vector<double> values);
/// The slowest rank's.
Times slowest(dist::ProcessGroup& group, const Times& times);

}  // namespace tern::bench
