#pragma once
#include <CLI/CLI.hpp>

namespace tern::bench {

/// `tern-bench accounting`: memory of a model's training state and traffic of a step for any number of devices, by formulas.
void add_accounting(CLI::App& app);

}  // namespace tern::bench
