#pragma once
#include <CLI/CLI.hpp>

namespace tern::bench {

/// `tern-bench accounting`: what a model's training state takes in memory and on the wires, for any number of devices. Measures nothing.
void add_accounting(CLI::App& app);

}  // namespace tern::bench
