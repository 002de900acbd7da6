#pragma once
#include <CLI/CLI.hpp>

namespace tern::bench {

/// `tern-bench step`: the time of a training step of a named model.
void add_step(CLI::App& app);

}  // namespace tern::bench
