#pragma once
#include <CLI/CLI.hpp>

namespace tern::bench {

/// `tern-bench conv1d`: the time of the depthwise convolution and of its gradient, beside that of a copy.
void add_conv(CLI::App& app);

}  // namespace tern::bench
