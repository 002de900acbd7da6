#pragma once
#include <CLI/CLI.hpp>

namespace tern::bench {

/// `tern-bench step`: the time of a training step of a named model, in the terms of PyTorch users' benchmarks.
void add_step(CLI::App& app);

}  // namespace tern::bench
