#pragma once
#include <CLI/CLI.hpp>

namespace tern::bench {

/// `tern-bench count`: FLOPs, bytes and arithmetic intensity of a transformer's parts, and their bound (compute or memory) on a device.
void add_count(CLI::App& app);

}  // namespace tern::bench
