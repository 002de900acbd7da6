#pragma once
#include <CLI/CLI.hpp>

namespace tern::bench {

/// `tern-bench ops`: the time of single operators, plain and fused, beside that of a copy of as many bytes.
void add_ops(CLI::App& app);

}  // namespace tern::bench
