#pragma once
#include <CLI/CLI.hpp>

namespace tern::bench {

/// `tern-bench comm`: the time of collectives over sizes and numbers of ranks, the fixed cost of a call that follows from it, and the best
/// size of buckets for a model's gradients.
void add_comm(CLI::App& app);

}  // namespace tern::bench
