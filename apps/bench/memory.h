#pragma once
#include <CLI/CLI.hpp>

namespace tern::bench {

/// `tern-bench memory`: where the bytes of a forward pass and of a training step are, as pictures, snapshots and a report.
void add_memory(CLI::App& app);

}  // namespace tern::bench
