#pragma once
#include <CLI/CLI.hpp>

namespace tern::bench {

/// `tern-bench count`: FLOPs, bytes and arithmetic intensity of a transformer's parts, and what bounds each on a device.
void add_count(CLI::App& app);

}  // namespace tern::bench
