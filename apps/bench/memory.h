#pragma once
#include <CLI/CLI.hpp>

namespace tern::bench {

/// `tern-bench memory`: the memory of a forward pass and of a training step by category, as pictures, snapshots and a report.
void add_memory(CLI::App& app);

}  // namespace tern::bench
