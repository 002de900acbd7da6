#pragma once
#include <CLI/CLI.hpp>

namespace tern::bench {

/// `tern-bench comm`: the time of collectives by size and number of ranks, the fixed overhead of a call, and the best bucket size for a
/// model's gradients.
void add_comm(CLI::App& app);

}  // namespace tern::bench
